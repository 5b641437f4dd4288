// The weights of a model as the operations want them: views in the checkpoint's own bits (spec section 5).
#pragma once

#include <functional>
#include <vector>

#include "backend/backend.h"
#include "checkpoint/verify.h"
#include "ops/hyper_connection/hyper_connection.h"
#include "tensor/weights.h"

namespace fathom {

// Spec 2.5; unset in layers without one.
struct CompressorWeights {
  LinearWeight wkv;    // [c * d, hidden] bf16
  LinearWeight wgate;  // [c * d, hidden] bf16
  View ape;            // [ratio, c * d] f32
  View norm;           // [d] bf16
};

// Spec 2.6; ratio-4 layers.
struct IndexerWeights {
  LinearWeight wq_b;          // [index_heads * 128, q_lora] fp8
  LinearWeight weights_proj;  // [index_heads, hidden] bf16
  CompressorWeights compressor;
};

// Spec 2.4.
struct AttentionWeights {
  LinearWeight wq_a;  // [q_lora, hidden] fp8
  LinearWeight wq_b;  // [heads * head_dim, q_lora] fp8
  LinearWeight wkv;   // [head_dim, hidden] fp8
  LinearWeight wo_a;  // [groups * o_lora, heads / groups * head_dim] fp8
  LinearWeight wo_b;  // [hidden, groups * o_lora] fp8
  View q_norm;        // [q_lora] bf16
  View kv_norm;       // [head_dim] bf16
  View sink;          // [heads] f32
  CompressorWeights compressor;
  IndexerWeights indexer;
};

// Spec 2.7.
struct MoeWeights {
  LinearWeight gate;  // [experts, hidden] bf16
  View bias;          // [experts] f32; scored layers
  View tid2eid;       // [vocab, topk] i64, maybe misaligned; hash-routed layers
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;          // fp8
  const void* packed = nullptr;  // the backend's own form of the experts, if it has one
};

struct LayerWeights {
  HyperConnectionParams attention_hc;
  HyperConnectionParams ffn_hc;
  View attention_norm;  // [hidden] bf16
  View ffn_norm;        // [hidden] bf16
  AttentionWeights attention;
  MoeWeights moe;
};

// Spec 2.9 and 2.10.
struct DraftWeights {
  DraftKind kind = DraftKind::kNone;
  std::vector<LayerWeights> stages;
  // Head, of the last stage: it shares `embed` and `head` with the trunk.
  View norm;  // [hidden] bf16
  HyperConnectionParams hc_head;
  // MTP.
  LinearWeight e_proj, h_proj;  // [hidden, hidden] fp8
  View enorm, hnorm;            // [hidden] bf16
  // DSpark.
  LinearWeight main_proj;        // [hidden, taps * hidden] fp8
  View main_norm;                // [hidden] bf16
  View markov_w1;                // [vocab, rank] bf16, maybe misaligned
  LinearWeight markov_w2;        // [vocab, rank] bf16
  LinearWeight confidence_proj;  // [1, hidden + rank] bf16
};

struct ModelWeights {
  View embed;         // [vocab, hidden] bf16, maybe misaligned
  LinearWeight head;  // [vocab, hidden] bf16
  View norm;          // [hidden] bf16
  HyperConnectionParams hc_head;
  std::vector<LayerWeights> layers;
  DraftWeights draft;
};

// The checkpoint was verified when it was opened and must outlive the weights. Failure: the backend cannot
// place them, or an FP8 weight holds a NaN code (their bytes are read once for this). `draft` false leaves draft blocks
// out. `progress` (may be empty) hears of every tensor placed (of all experts of a layer at once), in bytes of the
// checkpoint; the last time of all of them.
using LoadProgress = std::function<void(std::int64_t done, std::int64_t total)>;
Result<ModelWeights> bind_weights(const Checkpoint& checkpoint, Backend& backend, bool draft,
                                  const LoadProgress& progress = {});

}  // namespace fathom
