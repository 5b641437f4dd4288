#include "checkpoint/verify.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <unordered_set>
#include <utility>

#include "checkpoint/safetensors.h"

namespace fathom {
namespace {

constexpr std::string_view kDraftPrefix = "mtp.";
constexpr std::string_view kLayerPrefix = "layers.";

std::string count_text(std::int64_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

// "layers.12.attn..." -> 12
std::optional<std::int32_t> number_after(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  std::int32_t number = -1;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + prefix.size(), end, number);
  if (error != std::errc() || rest == end || *rest != '.') return std::nullopt;
  return number;
}

std::optional<std::int32_t> expert_number(std::string_view name) {
  constexpr std::string_view kExperts = ".ffn.experts.";
  const std::size_t place = name.find(kExperts);
  if (place == std::string_view::npos) return std::nullopt;
  return number_after(name.substr(place), kExperts);
}

class Verifier {
 public:
  Verifier(const ModelConfig& config, const TensorCatalog& catalog) : config_(config), catalog_(catalog) {}

  VerifyReport run() {
    report_.findings = catalog_.findings();
    report_.num_tensors = static_cast<std::int64_t>(catalog_.tensors().size());
    report_.total_bytes = catalog_.total_bytes();
    if (is_transformers_conversion()) {
      add(Severity::kError, "names", catalog_.path(), "module names of Hugging Face transformers (embed_tokens, ...)",
          "the official names (embed.weight, layers.N.attn...): use the vendor's original checkpoint");
      return finish();
    }
    const DraftTensors draft = find_draft(catalog_);
    ExpectedOptions options;
    options.draft = draft.kind;
    options.num_draft_stages = draft.num_stages;
    options.expert_format_of = [this](std::string_view prefix) {
      return find_expert_format(config_, catalog_, prefix);
    };
    if (draft.kind == DraftKind::kDspark && !config_.has_dspark_keys()) options.draft = DraftKind::kNone;
    const std::vector<ExpectedTensor> expected = expected_tensors(config_, options);
    check_expected(expected);
    check_unknown(expected);
    check_draft(draft);
    return finish();
  }

 private:
  void add(Severity severity, std::string kind, std::string name, std::string found, std::string expected) {
    report_.findings.push_back({severity, std::move(kind), std::move(name), std::move(found), std::move(expected)});
  }

  bool is_transformers_conversion() const {
    return catalog_.contains("embed_tokens.weight") && !catalog_.contains("embed.weight");
  }

  // A finding about a tensor: errors in the trunk, and in the draft block a reason not to use it.
  void add_tensor_finding(const ExpectedTensor& tensor, const char* kind, std::string found, std::string expected) {
    if (tensor.component != Component::kDraft) {
      return add(Severity::kError, kind, tensor.name, std::move(found), std::move(expected));
    }
    if (draft_problem_.empty()) {
      draft_problem_ = tensor.name + ": found " + found + ", expected " + expected;
    }
    ++num_draft_problems_;
  }

  void check_expected(const std::vector<ExpectedTensor>& expected) {
    // A block without any tensor is one finding, not a thousand.
    std::map<std::pair<bool, std::int32_t>, std::pair<std::int64_t, std::int64_t>> blocks;  // -> present, expected
    for (const ExpectedTensor& tensor : expected) {
      if (tensor.layer < 0) continue;
      auto& [present, total] = blocks[{tensor.component == Component::kDraft, tensor.layer}];
      present += catalog_.contains(tensor.name) || catalog_.is_lost(tensor.name) ? 1 : 0;
      ++total;
    }
    for (const auto& [block, counts] : blocks) {
      if (counts.first > 0) continue;
      ExpectedTensor whole;
      whole.name = (block.first ? "mtp." : "layers.") + std::to_string(block.second);
      whole.component = block.first ? Component::kDraft : Component::kNorm;
      add_tensor_finding(whole, "missing-layer", "no tensors",
                         count_text(counts.second, "tensor") +
                             " (config.json: num_hidden_layers = " + std::to_string(config_.num_hidden_layers) + ")");
    }
    for (const ExpectedTensor& tensor : expected) {
      if (tensor.layer >= 0 && blocks[{tensor.component == Component::kDraft, tensor.layer}].first == 0) continue;
      check_tensor(tensor);
    }
  }

  void check_tensor(const ExpectedTensor& expected) {
    const TensorInfo* found = catalog_.find(expected.name);
    const std::string wanted = describe_tensor(expected.dtype, expected.shape);
    if (found == nullptr) {
      if (catalog_.is_lost(expected.name)) {
        // Reported where it was lost; the draft block still cannot be used.
        if (expected.component == Component::kDraft) add_tensor_finding(expected, "missing", "no usable data", wanted);
        return;
      }
      return add_tensor_finding(expected, expected.is_scale ? "missing-scale" : "missing", "nothing",
                                wanted + (expected.is_scale ? ", the scale of its .weight" : ""));
    }
    const bool dtype_fits = found->dtype == expected.dtype || (expected.is_block_scale && found->dtype == DType::kF32);
    if (!dtype_fits) {
      return add_tensor_finding(expected, "dtype", describe_tensor(found->dtype, found->shape), wanted);
    }
    if (found->shape != expected.shape) {
      return add_tensor_finding(expected, "shape", describe_tensor(found->dtype, found->shape), wanted);
    }
  }

  void check_unknown(const std::vector<ExpectedTensor>& expected) {
    std::unordered_set<std::string_view> known;
    known.reserve(expected.size());
    for (const ExpectedTensor& tensor : expected) known.insert(tensor.name);
    std::int32_t highest_layer = -1;
    std::int64_t num_beyond_layers = 0;
    std::int32_t highest_expert = -1;
    std::int64_t num_beyond_experts = 0;
    for (const TensorInfo& tensor : catalog_.tensors()) {
      if (known.contains(tensor.name)) continue;
      if (tensor.name.starts_with(kDraftPrefix)) {
        ++num_unknown_draft_;
        if (unknown_draft_.empty()) unknown_draft_ = tensor.name;
        continue;
      }
      const std::optional<std::int32_t> layer = number_after(tensor.name, kLayerPrefix);
      if (layer && *layer >= config_.num_hidden_layers) {
        highest_layer = std::max(highest_layer, *layer);
        ++num_beyond_layers;
        continue;
      }
      const std::optional<std::int32_t> expert = expert_number(tensor.name);
      if (expert && *expert >= config_.n_routed_experts) {
        highest_expert = std::max(highest_expert, *expert);
        ++num_beyond_experts;
        continue;
      }
      add(Severity::kError, "unknown", tensor.name, describe_tensor(tensor.dtype, tensor.shape),
          "no tensor of this name");
    }
    if (num_beyond_layers > 0) {
      add(Severity::kError, "layer-count", "num_hidden_layers",
          std::to_string(config_.num_hidden_layers) + " in config.json but " + count_text(num_beyond_layers, "tensor") +
              " of layers up to layers." + std::to_string(highest_layer),
          "config.json and tensors to agree");
    }
    if (num_beyond_experts > 0) {
      add(Severity::kError, "expert-count", "n_routed_experts",
          std::to_string(config_.n_routed_experts) + " in config.json but " + count_text(num_beyond_experts, "tensor") +
              " of experts up to experts." + std::to_string(highest_expert),
          "config.json and tensors to agree");
    }
  }

  void check_draft(const DraftTensors& draft) {
    if (draft.kind == DraftKind::kNone) {
      if (config_.num_nextn_predict_layers > 0) {
        add(Severity::kWarning, "draft", "mtp.*", "no draft tensors; speculation is off",
            "num_nextn_predict_layers = " + std::to_string(config_.num_nextn_predict_layers) + " of them");
      }
      return;
    }
    std::string problem;
    if (draft.kind == DraftKind::kDspark && !config_.has_dspark_keys()) {
      problem = "DSpark tensors (" + unknown_draft_ +
                ", ...) but config.json has no dspark_block_size: draft and config are of different releases";
    } else if (draft.kind == DraftKind::kMtp && config_.has_dspark_keys()) {
      problem = "a classic MTP block but config.json has DSpark keys: draft and config are of different releases";
    } else if (num_draft_problems_ > 0) {
      problem = draft_problem_;
      if (num_draft_problems_ > 1) problem += " (and " + count_text(num_draft_problems_ - 1, "more finding") + ")";
    } else if (num_unknown_draft_ > 0) {
      problem = "unknown tensor " + unknown_draft_;
      if (num_unknown_draft_ > 1) problem += " (and " + std::to_string(num_unknown_draft_ - 1) + " more)";
    }
    if (problem.empty()) {
      report_.draft = draft.kind;
      report_.num_draft_stages = draft.num_stages;
      return;
    }
    report_.draft_problem = problem;
    add(Severity::kWarning, "draft", "mtp.*", problem + "; speculation is off",
        "a complete draft block of this release");
  }

  VerifyReport finish() {
    std::stable_sort(report_.findings.begin(), report_.findings.end(),
                     [](const Finding& a, const Finding& b) { return a.severity > b.severity; });
    return std::move(report_);
  }

  const ModelConfig& config_;
  const TensorCatalog& catalog_;
  VerifyReport report_;
  std::string draft_problem_;
  std::int64_t num_draft_problems_ = 0;
  std::string unknown_draft_;
  std::int64_t num_unknown_draft_ = 0;
};

std::string file_beside(const TensorCatalog& catalog, const char* name) {
  return (std::filesystem::path(catalog.directory()) / name).string();
}

Result<ModelConfig> read_config(const TensorCatalog& catalog) {
  const std::string path = file_beside(catalog, "config.json");
  std::error_code error;
  const auto status = std::filesystem::symlink_status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return not_found("model " + catalog.path() + ": found no config.json, expected it as " + path +
                     " beside the .safetensors files");
  }
  constexpr std::int64_t kMaxConfigBytes = 16 << 20;
  FATHOM_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxConfigBytes));
  if (is_lfs_pointer(std::as_bytes(std::span(text)))) {
    return data_loss(path + ": found a Git LFS pointer, expected the file itself: fetch it with `git lfs pull`");
  }
  return parse_config(text, path);
}

Result<GenerationDefaults> read_generation(const TensorCatalog& catalog) {
  const std::string path = file_beside(catalog, "generation_config.json");
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return GenerationDefaults{};
  FATHOM_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, 1 << 20));
  return parse_generation_config(text, path);
}

Status status_of(const VerifyReport& report, const std::string& path) {
  constexpr std::size_t kShown = 3;
  std::string text;
  std::size_t num_errors = 0;
  for (const Finding& finding : report.findings) {
    if (finding.severity != Severity::kError) continue;
    if (num_errors++ < kShown) text += (text.empty() ? "" : "; ") + finding.to_string().substr(sizeof("error: ") - 1);
  }
  if (num_errors == 0) return {};
  if (num_errors > kShown) {
    text += "; and " + std::to_string(num_errors - kShown) + " more (fathom verify --model lists them)";
  }
  return data_loss("cannot load " + path + ": " + text);
}

}  // namespace

VerifyReport verify_checkpoint(const ModelConfig& config, const TensorCatalog& catalog) {
  return Verifier(config, catalog).run();
}

Result<Checkpoint> open_checkpoint(const std::string& path) {
  Checkpoint checkpoint;
  checkpoint.path = path;
  FATHOM_ASSIGN_OR_RETURN(checkpoint.catalog, open_catalog(path));
  FATHOM_ASSIGN_OR_RETURN(checkpoint.config, read_config(checkpoint.catalog));
  FATHOM_ASSIGN_OR_RETURN(checkpoint.generation, read_generation(checkpoint.catalog));
  checkpoint.report = verify_checkpoint(checkpoint.config, checkpoint.catalog);
  FATHOM_RETURN_IF_ERROR(status_of(checkpoint.report, path));
  return checkpoint;
}

VerifyReport verify_path(const std::string& path) {
  VerifyReport report;
  Result<TensorCatalog> catalog = open_catalog(path);
  if (!catalog.ok()) {
    report.findings.push_back({Severity::kError, "open", path, catalog.status().message(), ""});
    return report;
  }
  Result<ModelConfig> config = read_config(*catalog);
  if (!config.ok()) {
    report.findings.push_back({Severity::kError, "config", "config.json", config.status().message(), ""});
    report.findings.insert(report.findings.end(), catalog->findings().begin(), catalog->findings().end());
    return report;
  }
  report = verify_checkpoint(*config, *catalog);
  if (Result<GenerationDefaults> generation = read_generation(*catalog); !generation.ok()) {
    report.findings.insert(report.findings.begin(),
                           {Severity::kError, "config", "generation_config.json", generation.status().message(), ""});
  }
  return report;
}

}  // namespace fathom
