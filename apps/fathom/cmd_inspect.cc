#include <unistd.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "checkpoint/verify.h"
#include "commands.h"
#include "engine/draft_streams.h"
#include "model/capacity.h"
#include "ops/registry.h"
#include "standard_streams.h"

namespace fathom::app {
namespace {

// What the checkpoint is, counted from the same list that verify checks.
struct Description {
  std::string release;
  std::set<std::string> expert_formats;
  std::string scale_format = "E8M0 scales";
  std::array<std::int64_t, kNumComponents> component_bytes{};
  std::int64_t trunk_parameters = 0;
  std::int64_t draft_parameters = 0;
  std::int64_t trunk_bytes = 0;
  std::int64_t draft_bytes = 0;
};

Description describe(const Checkpoint& checkpoint) {
  Description description;
  ExpectedOptions options;
  options.draft = checkpoint.report.draft;
  options.num_draft_stages = checkpoint.report.num_draft_stages;
  options.expert_format_of = [&](std::string_view prefix) {
    const ExpertFormat format = find_expert_format(checkpoint.config, checkpoint.catalog, prefix);
    if (prefix.starts_with("layers.")) description.expert_formats.insert(std::string(expert_format_name(format)));
    return format;
  };
  for (const ExpectedTensor& tensor : expected_tensors(checkpoint.config, options)) {
    const TensorInfo* found = checkpoint.catalog.find(tensor.name);
    const std::int64_t bytes = found != nullptr ? found->num_bytes : 0;
    const bool is_draft = tensor.component == Component::kDraft;
    description.component_bytes[static_cast<std::size_t>(tensor.component)] += bytes;
    (is_draft ? description.draft_bytes : description.trunk_bytes) += bytes;
    (is_draft ? description.draft_parameters : description.trunk_parameters) += tensor.num_parameters;
    if (tensor.is_block_scale && found != nullptr && found->dtype == DType::kF32) {
      description.scale_format = "F32 scales (Base)";
    }
  }
  switch (checkpoint.report.draft) {
    case DraftKind::kDspark: description.release = "0731 or DSpark"; break;
    case DraftKind::kMtp: description.release = "preview"; break;
    case DraftKind::kNone: description.release = "unknown (no draft tensors)"; break;
  }
  return description;
}

std::string formats_text(const Description& description) {
  std::string text = "experts ";
  for (const std::string& format : description.expert_formats) {
    text += (text.ends_with(' ') ? "" : "+") + format;
  }
  return text + ", other linears fp8 e4m3 128x128 with " + description.scale_format;
}

std::string millions(std::int64_t count) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1f M", static_cast<double>(count) / 1e6);
  return text;
}

void print_row(const char* label, const std::string& value) { std::printf("%-22s %s\n", label, value.c_str()); }

void print_model(const InspectOptions& options, const Checkpoint& checkpoint, const Description& description) {
  const ModelConfig& config = checkpoint.config;
  print_row("model", options.model);
  print_row("release", description.release);
  print_row("layers",
            std::to_string(config.num_hidden_layers) + " (" + std::to_string(config.num_layers_of(LayerKind::kWindow)) +
                " window, " + std::to_string(config.num_layers_of(LayerKind::kRatio4)) + " ratio-4, " +
                std::to_string(config.num_layers_of(LayerKind::kRatio128)) + " ratio-128), hidden " +
                std::to_string(config.hidden_size) + ", " + std::to_string(config.num_attention_heads) + " heads");
  print_row("experts", std::to_string(config.n_routed_experts) + " routed, " +
                           std::to_string(config.num_experts_per_tok) + " a token, 1 shared");
  print_row("vocabulary", std::to_string(config.vocab_size));
  print_row("longest context", std::to_string(config.max_position_embeddings) + " tokens");
  print_row("formats", formats_text(description));
  print_row("draft", std::string(draft_kind_name(checkpoint.report.draft)) +
                         (checkpoint.report.num_draft_stages > 0
                              ? ", " + std::to_string(checkpoint.report.num_draft_stages) + " stage(s)"
                              : ""));
  print_row("parameters",
            millions(description.trunk_parameters) + " trunk, " + millions(description.draft_parameters) + " draft");
  print_row("tensors", std::to_string(checkpoint.report.num_tensors) + " in " +
                           std::to_string(checkpoint.catalog.shards().size()) + " shard(s)");
  std::printf("\nweights\n");
  for (int i = 0; i < kNumComponents; ++i) {
    const std::int64_t bytes = description.component_bytes[static_cast<std::size_t>(i)];
    if (bytes == 0) continue;
    std::printf("  %-20s %15lld B  %s\n", std::string(component_name(static_cast<Component>(i))).c_str(),
                static_cast<long long>(bytes), format_bytes(bytes).c_str());
  }
}

void print_plan(const CapacityPlan& plan) {
  const CapacityRequest& request = plan.request;
  std::printf("\nmemory plan (%s numerics, %lld sequence(s) of %lld tokens, steps of %lld tokens)\n",
              std::string(numerics_name(request.numerics.mode)).c_str(), static_cast<long long>(request.max_sequences),
              static_cast<long long>(request.max_context_tokens), static_cast<long long>(request.max_step_tokens));
  const auto row = [](const char* label, std::int64_t bytes) {
    std::printf("  %-34s %15lld B  %s\n", label, static_cast<long long>(bytes), format_bytes(bytes).c_str());
  };
  row("weights", request.weights_bytes);
  row("activations and workspace", plan.activation_bytes);
  row("window blocks of a prefill step", plan.prefill_window_bytes);
  if (plan.spare_bytes > 0) row("blocks and state of nobody (drafts)", plan.spare_bytes);
  row("context block (128 tokens)", plan.layout.context_block_bytes);
  std::printf("  %-34s %15.2f B\n", "  a token of context", plan.bytes_per_token);
  row("window block, all layers", plan.layout.window_block_bytes);
  row("  of it draft layers", plan.layout.window_block_bytes - plan.layout.trunk_window_bytes);
  row("compressor state slot", plan.layout.state_slot_bytes);
  row("one sequence, fixed part", plan.fixed_sequence_bytes);
  row("one sequence at its longest", plan.sequence_bytes);
  row("total", plan.total_bytes);
  row("available", request.memory_bytes);
}

// Without the draft head: what it costs is the difference.
struct Undrafted {
  std::int64_t weights_bytes = 0;
  CapacityPlan plan;
  // Of a sequence that drafts, beside the cache: the MTP block's stream rows (fp32 on the CPU).
  std::int64_t draft_state_bytes = 0;
};

Undrafted plan_undrafted(const Checkpoint& checkpoint, const Description& description, CapacityRequest request,
                         const DeviceInfo& device) {
  const ModelConfig& config = checkpoint.config;
  Undrafted without;
  without.weights_bytes = description.trunk_bytes;
  if (checkpoint.report.draft == DraftKind::kMtp) {
    without.draft_state_bytes = (DraftStreams::kKept + 1) * config.hc_mult * config.hidden_size * 4;
  }
  request.weights_bytes = description.trunk_bytes;
  request.num_draft_layers = 0;
  without.plan = plan_capacity(config, request, device);
  return without;
}

void print_undrafted(const CapacityPlan& plan, const Undrafted& without) {
  std::printf("\nwithout the draft head                            without            with      difference\n");
  const auto row = [](const char* label, std::int64_t none, std::int64_t with) {
    std::printf("  %-34s %15lld B %13lld B  %s\n", label, static_cast<long long>(none), static_cast<long long>(with),
                format_bytes(with - none).c_str());
  };
  row("weights", without.weights_bytes, plan.request.weights_bytes);
  const std::int64_t state = without.draft_state_bytes;
  row("one sequence, fixed part", without.plan.fixed_sequence_bytes, plan.fixed_sequence_bytes + state);
  row("one sequence at its longest", without.plan.sequence_bytes, plan.sequence_bytes + state);
  row("total", without.plan.total_bytes, plan.total_bytes + plan.request.max_sequences * state);
}

std::string verdict(const CapacityPlan& plan) {
  const CapacityRequest& request = plan.request;
  const std::string available = format_bytes(request.memory_bytes);
  if (plan.fits) return "fits: " + format_bytes(plan.total_bytes) + " of " + available;
  if (!plan.weights_fit) {
    return "does not fit: the weights alone, with the activations of a step, need " +
           format_bytes(request.weights_bytes + plan.activation_bytes + plan.prefill_window_bytes + plan.spare_bytes) +
           " and " + available + " are available";
  }
  std::string text =
      "does not fit: " + format_bytes(plan.total_bytes) + " needed, " + available + " available; what fits: ";
  if (plan.largest_context_tokens == 0 && plan.largest_num_sequences == 0) return text + "not one sequence";
  if (plan.largest_context_tokens > 0) {
    text += std::to_string(request.max_sequences) + " sequence(s) of " + std::to_string(plan.largest_context_tokens) +
            " tokens";
  }
  if (plan.largest_num_sequences > 0) {
    text += std::string(plan.largest_context_tokens > 0 ? ", or " : "") + std::to_string(plan.largest_num_sequences) +
            " of " + std::to_string(request.max_context_tokens);
  }
  return text;
}

// Operation, the variant that runs by default (the last one), and the others.
std::vector<std::pair<std::string, std::vector<std::string>>> list_variants() {
  OpRegistry registry;
  register_cpu_variants(registry);
  std::vector<std::pair<std::string, std::vector<std::string>>> operations;
  for (int i = 0; i < kNumOpKinds; ++i) {
    const auto op = static_cast<OpKind>(i);
    std::vector<std::string> names;
    for (const Variant& variant : registry.variants_of(op, BackendKind::kCpu)) names.emplace_back(variant.name);
    if (!names.empty()) operations.emplace_back(std::string(op_name(op)), std::move(names));
  }
  return operations;
}

void print_variants() {
  std::printf("\noperations (default variant, others)\n");
  for (const auto& [op, names] : list_variants()) {
    std::string text = names.back();
    for (std::size_t i = names.size() - 1; i-- > 0;) text += ", " + names[i];
    std::printf("  %-20s %s\n", op.c_str(), text.c_str());
  }
}

void print_json(const InspectOptions& options, const Checkpoint& checkpoint, const Description& description,
                const CapacityPlan& plan, const Undrafted& without) {
  nlohmann::ordered_json json;
  json["model"] = options.model;
  json["release"] = description.release;
  json["expert_formats"] = description.expert_formats;
  json["draft"] = draft_kind_name(checkpoint.report.draft);
  json["num_draft_stages"] = checkpoint.report.num_draft_stages;
  json["parameters"] = {{"trunk", description.trunk_parameters}, {"draft", description.draft_parameters}};
  json["num_tensors"] = checkpoint.report.num_tensors;
  json["num_shards"] = checkpoint.catalog.shards().size();
  nlohmann::ordered_json& weights = json["weights_bytes"];
  weights["total"] = checkpoint.report.total_bytes;
  for (int i = 0; i < kNumComponents; ++i) {
    weights[std::string(component_name(static_cast<Component>(i)))] =
        description.component_bytes[static_cast<std::size_t>(i)];
  }
  nlohmann::ordered_json& operations = json["operations"];
  for (const auto& [op, names] : list_variants()) operations[op] = {{"default", names.back()}, {"variants", names}};
  json["memory_plan"] = {
      {"numerics", numerics_name(plan.request.numerics.mode)},
      {"max_context", plan.request.max_context_tokens},
      {"max_sequences", plan.request.max_sequences},
      {"weights_bytes", plan.request.weights_bytes},
      {"activation_bytes", plan.activation_bytes},
      {"prefill_window_bytes", plan.prefill_window_bytes},
      {"spare_bytes", plan.spare_bytes},
      {"context_block_bytes", plan.layout.context_block_bytes},
      {"bytes_per_token", plan.bytes_per_token},
      {"window_block_bytes", plan.layout.window_block_bytes},
      {"state_slot_bytes", plan.layout.state_slot_bytes},
      {"fixed_sequence_bytes", plan.fixed_sequence_bytes},
      {"sequence_bytes", plan.sequence_bytes},
      {"total_bytes", plan.total_bytes},
      {"available_bytes", plan.request.memory_bytes},
      {"weights_fit", plan.weights_fit},
      {"fits", plan.fits},
      {"largest_context", plan.largest_context_tokens},
      {"largest_sequences", plan.largest_num_sequences},
      {"verdict", verdict(plan)},
  };
  json["without_draft"] = {{"weights_bytes", without.weights_bytes},
                           {"fixed_sequence_bytes", without.plan.fixed_sequence_bytes},
                           {"sequence_bytes", without.plan.sequence_bytes},
                           {"total_bytes", without.plan.total_bytes}};
  json["draft_state_bytes"] = without.draft_state_bytes;
  std::printf("%s\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

std::int64_t physical_memory_bytes() {
  return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

}  // namespace

int run_inspect(const InspectOptions& options) {
  const Result<Checkpoint> checkpoint = open_checkpoint(options.model);
  if (!checkpoint.ok()) return report_failure("inspect", checkpoint.status());
  const ModelConfig& config = checkpoint->config;
  const std::int64_t longest = config.max_position_embeddings;
  const auto refuse = [](const char* flag, std::int64_t found, const std::string& expected) {
    return report_failure(
        "inspect", invalid_argument(std::string(flag) + ": found " + std::to_string(found) + ", expected " + expected));
  };
  constexpr std::int64_t kMostSequences = 1 << 20;
  if (options.max_context < 0 || options.max_context > longest) {
    return refuse("--max-context", options.max_context, "1 to " + std::to_string(longest) + ", the model's longest");
  }
  if (options.max_sequences < 1 || options.max_sequences > kMostSequences) {
    return refuse("--max-sequences", options.max_sequences, "1 to " + std::to_string(kMostSequences));
  }
  if (options.memory_bytes < 0) return refuse("--memory", options.memory_bytes, "0 (this machine's) or more bytes");
  CapacityRequest request;
  request.weights_bytes = checkpoint->report.total_bytes;
  request.num_draft_layers = checkpoint->report.num_draft_stages;
  request.numerics = Numerics::serve();
  request.max_context_tokens = options.max_context > 0 ? options.max_context : longest;
  request.max_sequences = options.max_sequences;
  request.memory_bytes = options.memory_bytes > 0 ? options.memory_bytes : physical_memory_bytes();
  DeviceInfo device;
  device.num_threads = static_cast<std::int32_t>(sysconf(_SC_NPROCESSORS_ONLN));
  const CapacityPlan plan = plan_capacity(config, request, device);
  const Description description = describe(*checkpoint);
  const Undrafted without = plan_undrafted(*checkpoint, description, request, device);
  if (options.json) {
    print_json(options, *checkpoint, description, plan, without);
  } else {
    print_model(options, *checkpoint, description);
    print_variants();
    print_plan(plan);
    if (checkpoint->report.num_draft_stages > 0) print_undrafted(plan, without);
    std::printf("%s\n", verdict(plan).c_str());
    for (const Finding& finding : checkpoint->report.findings) std::printf("%s\n", finding.to_string().c_str());
  }
  return 0;
}

}  // namespace fathom::app
