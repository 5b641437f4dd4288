#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/config.h"

namespace fathom {
namespace {

// `count` layers that alternate 4, 128, 4, ... after `head`, then `num_draft` zeros.
std::vector<std::int32_t> alternating_ratios(std::vector<std::int32_t> head, std::int32_t num_layers,
                                             std::int32_t num_draft) {
  std::vector<std::int32_t> ratios = std::move(head);
  for (std::int32_t next = 4; static_cast<std::int32_t>(ratios.size()) < num_layers; next = next == 4 ? 128 : 4) {
    ratios.push_back(next);
  }
  ratios.insert(ratios.end(), static_cast<std::size_t>(num_draft), 0);
  return ratios;
}

// fp32 fields print as the shortest decimal that reads back to the same float ("1e-06", not 9.99999997e-07).
double shortest_decimal(float value) {
  char text[32];
  for (int digits = 1; digits <= 9; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, static_cast<double>(value));
    if (std::strtof(text, nullptr) == value) break;
  }
  return std::strtod(text, nullptr);
}

}  // namespace

ModelConfig flash_config() {
  ModelConfig config;
  config.vocab_size = 129280;
  config.hidden_size = 4096;
  config.num_hidden_layers = 43;
  config.num_attention_heads = 64;
  config.q_lora_rank = 1024;
  config.o_lora_rank = 1024;
  config.o_groups = 8;
  config.compress_ratios = alternating_ratios({0, 0}, 43, 1);
  config.index_n_heads = 64;
  config.index_topk = 512;
  config.n_routed_experts = 256;
  config.num_experts_per_tok = 6;
  config.moe_intermediate_size = 2048;
  config.routed_scaling_factor = 1.5f;
  config.num_hash_layers = 3;
  config.max_position_embeddings = 1048576;
  config.num_nextn_predict_layers = 1;
  return config;
}

ModelConfig flash_dspark_config() {
  ModelConfig config = flash_config();
  config.compress_ratios = alternating_ratios({0, 0}, 43, 3);
  config.dspark_block_size = 5;
  config.dspark_markov_rank = 256;
  config.dspark_noise_token_id = 128799;
  config.dspark_target_layer_ids = {40, 41, 42};
  return config;
}

ModelConfig pro_config() {
  ModelConfig config = flash_config();
  config.hidden_size = 7168;
  config.num_hidden_layers = 61;
  config.num_attention_heads = 128;
  config.q_lora_rank = 1536;
  config.o_groups = 16;
  config.compress_ratios = alternating_ratios({128, 128}, 61, 1);
  config.index_topk = 1024;
  config.n_routed_experts = 384;
  config.moe_intermediate_size = 3072;
  config.routed_scaling_factor = 2.5f;
  return config;
}

ModelConfig mini_config() {
  ModelConfig config = flash_config();
  config.vocab_size = 4096;
  config.hidden_size = 256;
  config.num_hidden_layers = 6;
  config.num_attention_heads = 8;
  config.q_lora_rank = 128;
  config.o_lora_rank = 128;
  config.o_groups = 2;
  config.compress_ratios = alternating_ratios({0, 0}, 6, 1);
  config.index_n_heads = 8;
  config.index_topk = 64;
  config.n_routed_experts = 16;
  config.num_experts_per_tok = 2;
  config.moe_intermediate_size = 128;
  config.num_hash_layers = 2;
  config.max_position_embeddings = 65536;
  return config;
}

std::string config_to_json(const ModelConfig& config) {
  nlohmann::ordered_json json = {
      {"architectures", {"DeepseekV4ForCausalLM"}},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"bos_token_id", config.bos_token_id},
      {"eos_token_id", config.eos_token_id},
      {"expert_dtype", config.expert_dtype == ExpertDType::kFp4 ? "fp4" : "fp8"},
      {"hc_eps", shortest_decimal(config.hc_eps)},
      {"hc_mult", config.hc_mult},
      {"hc_sinkhorn_iters", config.hc_sinkhorn_iters},
      {"head_dim", config.head_dim},
      {"hidden_act", "silu"},
      {"hidden_size", config.hidden_size},
      {"index_head_dim", config.index_head_dim},
      {"index_n_heads", config.index_n_heads},
      {"index_topk", config.index_topk},
      {"max_position_embeddings", config.max_position_embeddings},
      {"model_type", "deepseek_v4"},
      {"moe_intermediate_size", config.moe_intermediate_size},
      {"n_routed_experts", config.n_routed_experts},
      {"n_shared_experts", config.n_shared_experts},
      {"norm_topk_prob", config.norm_topk_prob},
      {"num_attention_heads", config.num_attention_heads},
      {"num_experts_per_tok", config.num_experts_per_tok},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_hash_layers", config.num_hash_layers},
      {"num_key_value_heads", config.num_key_value_heads},
      {"num_nextn_predict_layers", config.num_nextn_predict_layers},
      {"o_groups", config.o_groups},
      {"o_lora_rank", config.o_lora_rank},
      {"q_lora_rank", config.q_lora_rank},
      {"qk_rope_head_dim", config.qk_rope_head_dim},
      {"quantization_config",
       {{"activation_scheme", "dynamic"},
        {"fmt", "e4m3"},
        {"quant_method", "fp8"},
        {"scale_fmt", "ue8m0"},
        {"weight_block_size", {128, 128}}}},
      {"rms_norm_eps", shortest_decimal(config.rms_norm_eps)},
      {"rope_scaling",
       {{"beta_fast", shortest_decimal(config.rope_scaling.beta_fast)},
        {"beta_slow", shortest_decimal(config.rope_scaling.beta_slow)},
        {"factor", shortest_decimal(config.rope_scaling.factor)},
        {"original_max_position_embeddings", config.rope_scaling.original_max_position_embeddings},
        {"type", "yarn"}}},
      {"rope_theta", shortest_decimal(config.rope_theta)},
      {"compress_rope_theta", shortest_decimal(config.compress_rope_theta)},
      {"routed_scaling_factor", shortest_decimal(config.routed_scaling_factor)},
      {"scoring_func", "sqrtsoftplus"},
      {"sliding_window", config.sliding_window},
      {"swiglu_limit", shortest_decimal(config.swiglu_limit)},
      {"tie_word_embeddings", false},
      {"topk_method", "noaux_tc"},
      {"torch_dtype", "bfloat16"},
      {"vocab_size", config.vocab_size},
      {"compress_ratios", config.compress_ratios},
  };
  if (config.has_dspark_keys()) {
    json["dspark_block_size"] = config.dspark_block_size;
    json["dspark_markov_rank"] = config.dspark_markov_rank;
    json["dspark_noise_token_id"] = config.dspark_noise_token_id;
    json["dspark_target_layer_ids"] = config.dspark_target_layer_ids;
  }
  return json.dump(2) + "\n";
}

}  // namespace fathom
