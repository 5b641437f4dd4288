#include "checkpoint/expected_tensors.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/units.h"
#include "checkpoint/catalog.h"

namespace fathom {
namespace {

constexpr std::int64_t kScaleBlock = 128;  // FP8 weights: one scale for 128 x 128
constexpr std::int64_t kMxfp4Block = 32;   // columns under one E8M0 scale
constexpr std::int64_t kNvfp4Block = 16;   // columns under one E4M3 scale

class ListBuilder {
 public:
  ListBuilder(const ModelConfig& config, const ExpectedOptions& options) : config_(config), options_(options) {}

  std::vector<ExpectedTensor> build() {
    reserve();
    const std::int64_t vocab = config_.vocab_size;
    const std::int64_t hidden = config_.hidden_size;
    add("embed.weight", DType::kBF16, {vocab, hidden}, Component::kEmbed);
    for (std::int32_t layer = 0; layer < config_.num_hidden_layers; ++layer) add_trunk_layer(layer);
    layer_ = -1;
    add("norm.weight", DType::kBF16, {hidden}, Component::kFinal);
    add("head.weight", DType::kBF16, {vocab, hidden}, Component::kHead);
    add_hc_head("", Component::kFinal);
    if (options_.draft != DraftKind::kNone) {
      for (std::int32_t stage = 0; stage < options_.num_draft_stages; ++stage) add_draft_stage(stage);
    }
    return std::move(list_);
  }

 private:
  void reserve() {
    const std::int64_t blocks = config_.num_hidden_layers + options_.num_draft_stages;
    list_.reserve(static_cast<std::size_t>(blocks * (50 + 6 * std::int64_t{config_.n_routed_experts})));
  }

  void add(std::string name, DType dtype, Shape shape, Component component) {
    ExpectedTensor tensor;
    tensor.name = std::move(name);
    tensor.dtype = dtype;
    tensor.shape = shape;
    tensor.component = draft_ ? Component::kDraft : component;
    tensor.layer = layer_;
    tensor.num_parameters = dtype == DType::kI64 ? 0 : shape.num_elements();
    list_.push_back(std::move(tensor));
  }

  void add_scale(std::string name, DType dtype, Shape shape, Component component, bool is_block_scale) {
    add(std::move(name), dtype, shape, component);
    list_.back().num_parameters = 0;
    list_.back().is_scale = true;
    list_.back().is_block_scale = is_block_scale;
  }

  // weight [rows, columns] F8_E4M3 with a scale for each 128 x 128 block
  void add_fp8(const std::string& prefix, std::int64_t rows, std::int64_t columns, Component component) {
    add(prefix + ".weight", DType::kF8E4M3, {rows, columns}, component);
    add_scale(prefix + ".scale", options_.block_scale_dtype,
              {ceil_div(rows, kScaleBlock), ceil_div(columns, kScaleBlock)}, component, true);
  }

  void add_expert_matrix(const std::string& prefix, std::int64_t rows, std::int64_t columns) {
    const ExpertFormat format = options_.expert_format_of ? options_.expert_format_of(prefix)
                                : draft_                  ? options_.draft_expert_format
                                                          : options_.expert_format;
    constexpr Component kPart = Component::kRoutedExperts;
    switch (format) {
      case ExpertFormat::kMxfp4:
        add(prefix + ".weight", DType::kI8, {rows, columns / 2}, kPart);
        list_.back().num_parameters *= 2;
        add_scale(prefix + ".scale", DType::kF8E8M0, {rows, columns / kMxfp4Block}, kPart, false);
        break;
      case ExpertFormat::kNvfp4:
        add(prefix + ".weight", DType::kU8, {rows, columns / 2}, kPart);
        list_.back().num_parameters *= 2;
        add_scale(prefix + ".weight_scale", DType::kF8E4M3, {rows, columns / kNvfp4Block}, kPart, false);
        add_scale(prefix + ".weight_scale_2", DType::kF32, {}, kPart, false);
        add_scale(prefix + ".input_scale", DType::kF32, {}, kPart, false);
        break;
      case ExpertFormat::kFp8: add_fp8(prefix, rows, columns, kPart); break;
    }
  }

  void add_hc_head(const std::string& prefix, Component component) {
    const std::int64_t streams = config_.hc_mult;
    add(prefix + "hc_head_fn", DType::kF32, {streams, config_.hc_hidden_size()}, component);
    add(prefix + "hc_head_base", DType::kF32, {streams}, component);
    add(prefix + "hc_head_scale", DType::kF32, {1}, component);
  }

  void add_attention(const std::string& prefix) {
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t q_rank = config_.q_lora_rank;
    const std::int64_t head_dim = config_.head_dim;
    const std::int64_t width = config_.attention_width();
    const std::int64_t o_rows = std::int64_t{config_.o_groups} * config_.o_lora_rank;
    constexpr Component kPart = Component::kAttention;
    add(prefix + "attn_sink", DType::kF32, {config_.num_attention_heads}, kPart);
    add_fp8(prefix + "wq_a", q_rank, hidden, kPart);
    add(prefix + "q_norm.weight", DType::kBF16, {q_rank}, kPart);
    add_fp8(prefix + "wq_b", width, q_rank, kPart);
    add_fp8(prefix + "wkv", head_dim, hidden, kPart);
    add(prefix + "kv_norm.weight", DType::kBF16, {head_dim}, kPart);
    add_fp8(prefix + "wo_a", o_rows, width / config_.o_groups, kPart);
    add_fp8(prefix + "wo_b", hidden, o_rows, kPart);
  }

  // Ratio 4 has two overlapping halves: twice the rows.
  void add_compressor(const std::string& prefix, std::int64_t ratio, std::int64_t dim, Component component) {
    const std::int64_t rows = ratio == 4 ? 2 * dim : dim;
    add(prefix + "ape", DType::kF32, {ratio, rows}, component);
    add(prefix + "wkv.weight", DType::kBF16, {rows, config_.hidden_size}, component);
    add(prefix + "wgate.weight", DType::kBF16, {rows, config_.hidden_size}, component);
    add(prefix + "norm.weight", DType::kBF16, {dim}, component);
  }

  void add_indexer(const std::string& prefix) {
    constexpr Component kPart = Component::kIndexer;
    add_fp8(prefix + "wq_b", std::int64_t{config_.index_n_heads} * config_.index_head_dim, config_.q_lora_rank, kPart);
    add(prefix + "weights_proj.weight", DType::kBF16, {config_.index_n_heads, config_.hidden_size}, kPart);
    add_compressor(prefix + "compressor.", 4, config_.index_head_dim, kPart);
  }

  void add_ffn(const std::string& prefix, bool routes_by_token_id) {
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t inner = config_.moe_intermediate_size;
    add(prefix + "gate.weight", DType::kBF16, {config_.n_routed_experts, hidden}, Component::kRouter);
    if (routes_by_token_id) {
      add(prefix + "gate.tid2eid", DType::kI64, {config_.vocab_size, config_.num_experts_per_tok}, Component::kRouter);
    } else {
      add(prefix + "gate.bias", DType::kF32, {config_.n_routed_experts}, Component::kRouter);
    }
    for (std::int32_t expert = 0; expert < config_.n_routed_experts; ++expert) {
      const std::string matrix = prefix + "experts." + std::to_string(expert) + ".";
      add_expert_matrix(matrix + "w1", inner, hidden);
      add_expert_matrix(matrix + "w2", hidden, inner);
      add_expert_matrix(matrix + "w3", inner, hidden);
    }
    add_fp8(prefix + "shared_experts.w1", inner, hidden, Component::kSharedExpert);
    add_fp8(prefix + "shared_experts.w2", hidden, inner, Component::kSharedExpert);
    add_fp8(prefix + "shared_experts.w3", inner, hidden, Component::kSharedExpert);
  }

  void add_block(const std::string& prefix, std::int64_t ratio, bool routes_by_token_id) {
    for (const char* part : {"attn", "ffn"}) {
      const std::string hc = prefix + "hc_" + part + "_";
      const std::int64_t rows = config_.hc_transition_rows();
      add(hc + "fn", DType::kF32, {rows, config_.hc_hidden_size()}, Component::kHyperConnection);
      add(hc + "base", DType::kF32, {rows}, Component::kHyperConnection);
      add(hc + "scale", DType::kF32, {3}, Component::kHyperConnection);
      add(prefix + part + "_norm.weight", DType::kBF16, {config_.hidden_size}, Component::kNorm);
    }
    add_attention(prefix + "attn.");
    if (ratio != 0) add_compressor(prefix + "attn.compressor.", ratio, config_.head_dim, Component::kCompressor);
    if (ratio == 4) add_indexer(prefix + "attn.indexer.");
    add_ffn(prefix + "ffn.", routes_by_token_id);
  }

  void add_trunk_layer(std::int32_t layer) {
    layer_ = layer;
    add_block("layers." + std::to_string(layer) + ".", config_.compress_ratio(layer), config_.is_hash_layer(layer));
  }

  void add_draft_stage(std::int32_t stage) {
    draft_ = true;
    layer_ = stage;
    const std::string prefix = "mtp." + std::to_string(stage) + ".";
    const std::int64_t vocab = config_.vocab_size;
    const std::int64_t hidden = config_.hidden_size;
    constexpr Component kPart = Component::kDraft;
    add_block(prefix, 0, false);
    if (options_.draft == DraftKind::kMtp) {
      add_fp8(prefix + "e_proj", hidden, hidden, kPart);
      add_fp8(prefix + "h_proj", hidden, hidden, kPart);
      add(prefix + "enorm.weight", DType::kBF16, {hidden}, kPart);
      add(prefix + "hnorm.weight", DType::kBF16, {hidden}, kPart);
      add(prefix + "norm.weight", DType::kBF16, {hidden}, kPart);
      add_hc_head(prefix, kPart);
      return;
    }
    if (stage == 0) {
      const auto num_taps = static_cast<std::int64_t>(config_.dspark_target_layer_ids.size());
      add_fp8(prefix + "main_proj", hidden, hidden * num_taps, kPart);
      add(prefix + "main_norm.weight", DType::kBF16, {hidden}, kPart);
    }
    if (stage == options_.num_draft_stages - 1) {
      const std::int64_t rank = config_.dspark_markov_rank;
      add(prefix + "norm.weight", DType::kBF16, {hidden}, kPart);
      add_hc_head(prefix, kPart);
      add(prefix + "markov_head.markov_w1.weight", DType::kBF16, {vocab, rank}, kPart);
      add(prefix + "markov_head.markov_w2.weight", DType::kBF16, {vocab, rank}, kPart);
      add(prefix + "confidence_head.proj.weight", DType::kBF16, {1, hidden + rank}, kPart);
    }
  }

  const ModelConfig& config_;
  const ExpectedOptions& options_;
  std::vector<ExpectedTensor> list_;
  std::int32_t layer_ = -1;
  bool draft_ = false;
};

}  // namespace

std::string_view draft_kind_name(DraftKind kind) {
  switch (kind) {
    case DraftKind::kNone: return "none";
    case DraftKind::kMtp: return "mtp";
    case DraftKind::kDspark: return "dspark";
  }
  return "?";
}

std::string_view expert_format_name(ExpertFormat format) {
  switch (format) {
    case ExpertFormat::kMxfp4: return "mxfp4";
    case ExpertFormat::kNvfp4: return "nvfp4";
    case ExpertFormat::kFp8: return "fp8";
  }
  return "?";
}

std::string_view component_name(Component component) {
  constexpr std::string_view kNames[kNumComponents] = {"routed experts",
                                                       "attention projections",
                                                       "shared expert",
                                                       "compressors",
                                                       "indexers",
                                                       "hyper-connections",
                                                       "routers (tid2eid)",
                                                       "norms",
                                                       "final norm, hc_head",
                                                       "embed",
                                                       "head",
                                                       "draft"};
  return kNames[static_cast<std::size_t>(component)];
}

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config, const ExpectedOptions& options) {
  return ListBuilder(config, options).build();
}

DraftTensors find_draft(const TensorCatalog& catalog) {
  constexpr std::string_view kPrefix = "mtp.";
  DraftTensors found;
  bool is_dspark = false;
  for (const TensorInfo& tensor : catalog.tensors()) {
    if (!tensor.name.starts_with(kPrefix)) continue;
    std::int32_t stage = -1;
    const char* end = tensor.name.data() + tensor.name.size();
    const auto [rest, error] = std::from_chars(tensor.name.data() + kPrefix.size(), end, stage);
    if (error != std::errc() || rest == end || *rest != '.' || stage < 0 || stage > 255) continue;
    found.num_stages = std::max(found.num_stages, stage + 1);
    const std::string_view part(rest + 1, static_cast<std::size_t>(end - rest - 1));
    is_dspark = is_dspark || part.starts_with("main_proj.") || part.starts_with("markov_head.");
  }
  if (found.num_stages > 0) found.kind = is_dspark ? DraftKind::kDspark : DraftKind::kMtp;
  return found;
}

ExpertFormat find_expert_format(const ModelConfig& config, const TensorCatalog& catalog, std::string_view prefix) {
  const TensorInfo* weight = catalog.find(std::string(prefix) + ".weight");
  if (weight != nullptr) {
    if (weight->dtype == DType::kU8) return ExpertFormat::kNvfp4;
    if (weight->dtype == DType::kI8) return ExpertFormat::kMxfp4;
    if (weight->dtype == DType::kF8E4M3) return ExpertFormat::kFp8;
  }
  return config.expert_dtype == ExpertDType::kFp8 ? ExpertFormat::kFp8 : ExpertFormat::kMxfp4;
}

}  // namespace fathom
