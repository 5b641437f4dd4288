// config.json of a DeepSeek-V4 checkpoint (spec section 1), checked, with the vendor's key names.
//
// A ModelConfig that parse_config or a built-in returned is safe to compute with: every count is in the
// range kLimits states, so products of any three of its fields fit in 64 bits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fathom {

// What a layer attends to besides its window; from compress_ratios[layer] alone.
enum class LayerKind : std::uint8_t {
  kWindow,    // ratio 0: the last sliding_window tokens
  kRatio4,    // ratio 4: window + index_topk compressed entries chosen by the indexer
  kRatio128,  // ratio 128: window + every compressed entry
};

// config.json's expert_dtype. NVFP4 checkpoints say "fp4" too: the tensors decide (see expected_tensors.h).
enum class ExpertDType : std::uint8_t { kFp4, kFp8 };

// YaRN; applies to ratio-4 and ratio-128 layers only.
struct RopeScaling {
  float factor = 16.0f;
  float beta_fast = 32.0f;
  float beta_slow = 1.0f;
  std::int32_t original_max_position_embeddings = 65536;
};

struct ModelConfig {
  std::int32_t vocab_size = 0;           // V
  std::int32_t hidden_size = 0;          // D
  std::int32_t num_hidden_layers = 0;    // main blocks, without draft stages
  std::int32_t num_attention_heads = 0;  // H
  std::int32_t num_key_value_heads = 1;  // always 1: one shared K=V head
  std::int32_t head_dim = 512;           // always 512 (the 584-byte cache row)
  std::int32_t qk_rope_head_dim = 64;    // always 64: the last channels of a head
  std::int32_t q_lora_rank = 0;
  std::int32_t o_lora_rank = 0;  // per group
  std::int32_t o_groups = 0;     // divides num_attention_heads
  std::int32_t sliding_window = 128;

  // num_hidden_layers entries, then one 0 for each draft stage the vendor's file declares.
  std::vector<std::int32_t> compress_ratios;

  std::int32_t index_n_heads = 0;
  std::int32_t index_head_dim = 128;  // always 128
  std::int32_t index_topk = 0;

  std::int32_t n_routed_experts = 0;
  std::int32_t n_shared_experts = 1;  // always 1
  std::int32_t num_experts_per_tok = 0;
  std::int32_t moe_intermediate_size = 0;
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1.0f;
  std::int32_t num_hash_layers = 0;  // layers [0, num_hash_layers) route by token id
  float swiglu_limit = 10.0f;

  std::int32_t hc_mult = 4;  // residual streams; always 4
  std::int32_t hc_sinkhorn_iters = 20;
  float hc_eps = 1e-6f;
  float rms_norm_eps = 1e-6f;

  float rope_theta = 10000.0f;            // ratio-0 layers and draft stages
  float compress_rope_theta = 160000.0f;  // ratio-4 and ratio-128 layers
  RopeScaling rope_scaling;
  std::int32_t max_position_embeddings = 0;

  std::int32_t bos_token_id = 0;
  std::int32_t eos_token_id = 1;
  ExpertDType expert_dtype = ExpertDType::kFp4;

  // "trust the tensors": 0731 still says 1 although three stages ship.
  std::int32_t num_nextn_predict_layers = 0;

  // DSpark keys; 0 / empty when the file has none.
  std::int32_t dspark_block_size = 0;
  std::int32_t dspark_markov_rank = 0;
  std::int32_t dspark_noise_token_id = 0;
  std::vector<std::int32_t> dspark_target_layer_ids;  // trunk layers whose output feeds main_proj

  bool has_dspark_keys() const { return dspark_block_size > 0; }
  LayerKind layer_kind(std::int32_t layer) const;  // layer in [0, num_hidden_layers)
  std::int32_t compress_ratio(std::int32_t layer) const { return compress_ratios[static_cast<std::size_t>(layer)]; }
  std::int32_t num_layers_of(LayerKind kind) const;
  bool is_hash_layer(std::int32_t layer) const { return layer < num_hash_layers; }
  std::int32_t heads_per_group() const { return num_attention_heads / o_groups; }
  std::int32_t nope_head_dim() const { return head_dim - qk_rope_head_dim; }       // 448
  std::int32_t hc_transition_rows() const { return hc_mult * (hc_mult + 2); }      // 24: rows of hc_*_fn
  std::int32_t hc_hidden_size() const { return hc_mult * hidden_size; }            // all streams of one token
  std::int32_t attention_width() const { return num_attention_heads * head_dim; }  // rows of wq_b
};

// `origin` (a path, or a built-in's name) starts every error message. Unknown keys are ignored; a key that
// is missing, of the wrong type, out of range or of an architecture this program does not implement
// (DeepSeek-V4.1, V3, ...) is named with what was found and what was expected.
Result<ModelConfig> parse_config(std::string_view text, const std::string& origin);

// config.json text that parse_config reads back to the same ModelConfig.
std::string config_to_json(const ModelConfig& config);

// The published shapes (spec sections 0 and 1) and the embedded model's.
ModelConfig flash_config();         // preview: one classic MTP block
ModelConfig flash_dspark_config();  // 0731: three-stage DSpark drafter
ModelConfig pro_config();
ModelConfig mini_config();

// generation_config.json: what the checkpoint recommends when a request says nothing.
struct GenerationDefaults {
  bool do_sample = true;
  float temperature = 1.0f;         // 0 to 100
  float top_p = 1.0f;               // over 0, to 1
  float min_p = 0.0f;               // 0 to 1
  float repetition_penalty = 1.0f;  // over 0, to 100
  std::int32_t top_k = 0;           // -1 and 0: off
};
// Failure: names origin, key, what was found and the range.
Result<GenerationDefaults> parse_generation_config(std::string_view text, const std::string& origin);

}  // namespace fathom
