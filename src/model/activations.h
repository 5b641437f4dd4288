// Every intermediate value of a forward pass, as views into one arena planned for the largest step.
#pragma once

#include "backend/backend.h"
#include "checkpoint/config.h"
#include "model/memory_plan.h"

namespace fathom {

struct ActivationLimits {
  std::int64_t max_tokens = 512;       // rows of a step
  std::int64_t max_logit_rows = 16;    // rows of a step that yield logits
  std::int64_t index_score_bytes = 0;  // budget of one tile of index scores
  std::int64_t workspace_bytes = 0;    // the largest operation's
  std::int64_t num_arrivals = 0;       // the largest operation's (ExecutionContext::arrivals)
  bool quantised_inputs = false;       // rows that FP8 linears read are kept after AQ too (CUDA)
  bool fused_rows = false;             // attention_rows may run: it reads and writes all its rows at once (CUDA)
  bool draft = false;                  // room for draft blocks
  std::int32_t num_taps = 0;           // trunk layers that a DSpark drafter taps
};

// Shapes at the largest step; a step of T rows uses the first T of each. "act" is the backend's activation dtype.
struct Activations {
  // Residual streams, double-buffered; a third one when draft blocks read the trunk's final streams.
  static constexpr int kMaxStreams = 3;
  View streams[kMaxStreams];  // [tokens, hc, hidden] act
  View post[2];               // [tokens, hc] f32
  View comb[2];               // [tokens, hc, hc] f32
  View x;                     // [tokens, hidden] act: normed input of a sublayer
  View x_quantised;           // [tokens, hidden] act: x of an attention sublayer after AQ; unset without them
  View y;                     // [tokens, hidden] act: output of a sublayer
  View window_rope;           // [tokens, rope / 2, 2] f32
  View compressed_rope;       // [tokens, rope / 2, 2] f32

  View q_low;            // [tokens, q_lora] act
  View q_low_normed;     // [tokens, q_lora] act
  View q_low_quantised;  // [tokens, q_lora] act: q_low_normed after AQ; unset without them
  View kv_raw;           // [tokens, head_dim] act
  View main_u;           // [tokens, c * head_dim] f32, width of the layer's ratio
  View main_g;
  View index_u;        // [tokens, 2 * index_head_dim] f32
  View index_g;        // [tokens, 2 * index_head_dim] f32
  View index_weights;  // [tokens, index_heads] act
  View q_raw;          // [tokens, heads * head_dim] act
  View q;              // [tokens, heads, head_dim] act
  View index_q_raw;    // [tokens, index_heads * index_head_dim] act
  View index_q;        // [tokens, index_heads, index_head_dim] act
  View index_scores;   // [index_score_bytes / 4] f32
  View selected;       // [tokens, index_topk] i32
  View o;              // [tokens, heads, head_dim] act

  View expert_ids;      // [tokens, topk] i32
  View expert_weights;  // [tokens, topk] f32

  View collapsed;  // [logit rows, hidden] act
  View normed;     // [logit rows, hidden] act
  View logits;     // [logit rows, vocab] f32

  // Draft blocks.
  View embedded;  // [tokens, hidden] act
  // DSpark.
  View taps;              // [tokens, num_taps * hidden] act
  View tap_projection;    // [tokens, hidden] act
  View tap_context;       // [tokens, hidden] act: M of spec 2.10
  View corrected_logits;  // [logit rows, vocab] f32
  View draft_confidence;  // [logit rows] f32

  std::byte* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
  View arrivals;  // [num_arrivals] i32 zeros; unset without them
  std::int64_t index_score_bytes = 0;
};

struct ActivationArena {
  MemoryPlan plan;
  DeviceMemory memory;
  Activations act;
};

// The plan alone: nothing is allocated.
MemoryPlan plan_activations(const ModelConfig& config, DType activation_dtype, const ActivationLimits& limits);
Result<ActivationArena> make_activations(const ModelConfig& config, const ActivationLimits& limits, Backend& backend);

}  // namespace fathom
