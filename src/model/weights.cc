#include "model/weights.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "tensor/scalar_formats.h"

namespace fathom {
namespace {

// Looks tensors up by name and has the backend place them. The first failure is kept; what follows it is empty.
class Binder {
 public:
  Binder(const Checkpoint& checkpoint, Backend& backend, const LoadProgress& progress)
      : checkpoint_(checkpoint),
        backend_(backend),
        progress_(progress),
        total_bytes_(progress ? checkpoint.catalog.total_bytes() : 0) {}
  const Status& status() const { return status_; }

  // Read through typed pointers: norms, hyper-connection parameters, sinks, biases.
  View small(const std::string& name) { return place(find(name), true); }
  // Large tables that are read row by row.
  View table(const std::string& name) { return place(find(name), false); }

  // The weight `prefix`.weight and its scales, in whatever format the checkpoint stores it.
  LinearWeight linear(const std::string& prefix) {
    LinearWeight weight = mapped_linear(prefix);
    weight.values = place(weight.values, false);
    if (!weight.scale.empty()) weight.scale = place(weight.scale, true);
    return weight;
  }

  HyperConnectionParams hyper_connection(const std::string& prefix) {
    return {small(prefix + "_fn"), small(prefix + "_base"), small(prefix + "_scale")};
  }

  ExpertWeights mapped_expert(const std::string& prefix) {
    return {
        .w1 = mapped_linear(prefix + ".w1"), .w2 = mapped_linear(prefix + ".w2"), .w3 = mapped_linear(prefix + ".w3")};
  }

  LayerWeights layer(const std::string& prefix, std::int32_t index, std::int32_t ratio, bool hash_routed) {
    LayerWeights layer;
    layer.attention_hc = hyper_connection(prefix + ".hc_attn");
    layer.ffn_hc = hyper_connection(prefix + ".hc_ffn");
    layer.attention_norm = small(prefix + ".attn_norm.weight");
    layer.ffn_norm = small(prefix + ".ffn_norm.weight");
    layer.attention = attention(prefix + ".attn", ratio);
    layer.moe = moe(prefix + ".ffn", index, hash_routed);
    return layer;
  }

 private:
  View find(const std::string& name) const {
    const TensorInfo* tensor = checkpoint_.catalog.find(name);
    FATHOM_CHECK(tensor != nullptr, ("the checkpoint was verified before: " + name).c_str());
    return checkpoint_.catalog.view(*tensor);
  }

  View place(const View& host, bool aligned) {
    if (!status_.ok()) return {};
    Result<View> placed = backend_.place_weight(host, aligned);
    if (!placed.ok()) {
      status_ = placed.status();
      return {};
    }
    note_placed(host.num_bytes());
    return *placed;
  }

  void note_placed(std::int64_t num_bytes) {
    if (!progress_) return;
    // A tensor that is placed twice does not make more than all.
    placed_bytes_ = std::min(placed_bytes_ + num_bytes, total_bytes_);
    progress_(placed_bytes_, total_bytes_);
  }

  // A NaN among FP8 codes makes a whole output NaN: the file is damaged, and no kernel has to look for them.
  void refuse_nan(const std::string& name, const LinearWeight& weight) {
    const std::span codes(weight.values.data, static_cast<std::size_t>(weight.values.num_bytes()));
    const std::optional<std::size_t> place = find_e4m3_nan(codes);
    if (!place || !status_.ok()) return;
    const std::int64_t row = static_cast<std::int64_t>(*place) / weight.in_features;
    const std::int64_t column = static_cast<std::int64_t>(*place) % weight.in_features;
    status_ = data_loss("tensor " + name + " in " + checkpoint_.path + ": found NaN at [" + std::to_string(row) + ", " +
                        std::to_string(column) + "], expected finite FP8 weights; the file is damaged: fetch it again");
  }

  LinearWeight mapped_linear(const std::string& prefix) {
    LinearWeight weight;
    weight.values = find(prefix + ".weight");
    weight.out_features = weight.values.shape[0];
    weight.in_features = weight.values.shape[1];
    switch (weight.values.dtype) {
      case DType::kF32: weight.format = WeightFormat::kF32; break;
      case DType::kBF16: weight.format = WeightFormat::kBf16; break;
      case DType::kF8E4M3:
        weight.format = WeightFormat::kFp8Block128;
        weight.scale = find(prefix + ".scale");
        refuse_nan(prefix + ".weight", weight);
        break;
      case DType::kI8:
        weight.format = WeightFormat::kMxfp4;
        weight.in_features *= 2;
        weight.scale = find(prefix + ".scale");
        break;
      case DType::kU8: {
        weight.format = WeightFormat::kNvfp4;
        weight.in_features *= 2;
        weight.scale = find(prefix + ".weight_scale");
        const View scale_2 = find(prefix + ".weight_scale_2");
        std::memcpy(&weight.scale_2, scale_2.data, sizeof(float));
        break;
      }
      default: FATHOM_CHECK(false, "dtypes of weights were verified before");
    }
    return weight;
  }

  CompressorWeights compressor(const std::string& prefix) {
    return {linear(prefix + ".wkv"), linear(prefix + ".wgate"), small(prefix + ".ape"), small(prefix + ".norm.weight")};
  }

  AttentionWeights attention(const std::string& prefix, std::int32_t ratio) {
    AttentionWeights attention;
    attention.wq_a = linear(prefix + ".wq_a");
    attention.wq_b = linear(prefix + ".wq_b");
    attention.wkv = linear(prefix + ".wkv");
    attention.wo_a = linear(prefix + ".wo_a");
    attention.wo_b = linear(prefix + ".wo_b");
    attention.q_norm = small(prefix + ".q_norm.weight");
    attention.kv_norm = small(prefix + ".kv_norm.weight");
    attention.sink = small(prefix + ".attn_sink");
    if (ratio != 0) attention.compressor = compressor(prefix + ".compressor");
    if (ratio == 4) {
      attention.indexer.wq_b = linear(prefix + ".indexer.wq_b");
      attention.indexer.weights_proj = linear(prefix + ".indexer.weights_proj");
      attention.indexer.compressor = compressor(prefix + ".indexer.compressor");
    }
    return attention;
  }

  MoeWeights moe(const std::string& prefix, std::int32_t index, bool hash_routed) {
    MoeWeights moe;
    moe.gate = linear(prefix + ".gate");
    if (hash_routed) {
      moe.tid2eid = table(prefix + ".gate.tid2eid");
    } else {
      moe.bias = small(prefix + ".gate.bias");
    }
    const std::int32_t num_experts = checkpoint_.config.n_routed_experts;
    moe.experts.reserve(static_cast<std::size_t>(num_experts));
    for (std::int32_t e = 0; e < num_experts; ++e) {
      moe.experts.push_back(mapped_expert(prefix + ".experts." + std::to_string(e)));
    }
    if (status_.ok()) {
      std::int64_t num_bytes = 0;
      for (const ExpertWeights& expert : moe.experts) {
        for (const LinearWeight* w : {&expert.w1, &expert.w2, &expert.w3}) {
          num_bytes += w->values.num_bytes() + (w->scale.empty() ? 0 : w->scale.num_bytes());
        }
      }
      Result<const void*> packed = backend_.place_experts(moe.experts, index);
      if (packed.ok()) {
        moe.packed = *packed;
        note_placed(num_bytes);
      } else {
        status_ = packed.status();
      }
    }
    const std::string shared = prefix + ".shared_experts";
    moe.shared = {.w1 = linear(shared + ".w1"), .w2 = linear(shared + ".w2"), .w3 = linear(shared + ".w3")};
    return moe;
  }

  const Checkpoint& checkpoint_;
  Backend& backend_;
  const LoadProgress& progress_;
  const std::int64_t total_bytes_;
  std::int64_t placed_bytes_ = 0;
  Status status_;
};

DraftWeights bind_draft(const Checkpoint& checkpoint, Binder& binder) {
  DraftWeights draft;
  draft.kind = checkpoint.report.draft;
  if (draft.kind == DraftKind::kNone) return draft;
  const std::int32_t num_stages = checkpoint.report.num_draft_stages;
  for (std::int32_t k = 0; k < num_stages; ++k) {
    const std::int32_t index = checkpoint.config.num_hidden_layers + k;
    draft.stages.push_back(binder.layer("mtp." + std::to_string(k), index, 0, false));
  }
  const std::string last = "mtp." + std::to_string(num_stages - 1);
  draft.norm = binder.small(last + ".norm.weight");
  draft.hc_head = binder.hyper_connection(last + ".hc_head");
  if (draft.kind == DraftKind::kMtp) {
    draft.e_proj = binder.linear("mtp.0.e_proj");
    draft.h_proj = binder.linear("mtp.0.h_proj");
    draft.enorm = binder.small("mtp.0.enorm.weight");
    draft.hnorm = binder.small("mtp.0.hnorm.weight");
  } else {
    draft.main_proj = binder.linear("mtp.0.main_proj");
    draft.main_norm = binder.small("mtp.0.main_norm.weight");
    draft.markov_w1 = binder.table(last + ".markov_head.markov_w1.weight");
    draft.markov_w2 = binder.linear(last + ".markov_head.markov_w2");
    draft.confidence_proj = binder.linear(last + ".confidence_head.proj");
  }
  return draft;
}

}  // namespace

Result<ModelWeights> bind_weights(const Checkpoint& checkpoint, Backend& backend, bool draft,
                                  const LoadProgress& progress) {
  FATHOM_CHECK(checkpoint.report.ok(), "a checkpoint is bound after it was verified");
  const ModelConfig& config = checkpoint.config;
  Binder binder(checkpoint, backend, progress);
  ModelWeights weights;
  weights.embed = binder.table("embed.weight");
  weights.head = binder.linear("head");
  weights.norm = binder.small("norm.weight");
  weights.hc_head = binder.hyper_connection("hc_head");
  weights.layers.reserve(static_cast<std::size_t>(config.num_hidden_layers));
  for (std::int32_t l = 0; l < config.num_hidden_layers; ++l) {
    weights.layers.push_back(
        binder.layer("layers." + std::to_string(l), l, config.compress_ratio(l), config.is_hash_layer(l)));
  }
  if (draft) weights.draft = bind_draft(checkpoint, binder);
  FATHOM_RETURN_IF_ERROR(binder.status());
  // Blocks that are left out and tensors that nothing uses count too.
  if (progress) progress(checkpoint.catalog.total_bytes(), checkpoint.catalog.total_bytes());
  return weights;
}

}  // namespace fathom
