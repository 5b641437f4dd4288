#include "ops/registry.h"

namespace fathom {
namespace {

constexpr std::array<std::string_view, kNumOpKinds> kOpNames = {
    "embed",       "hyper_connection", "hc_head",          "linear",      "rms_norm",       "rope_rows",
    "q_norm_rope", "kv_write",         "compress_kv",      "index_query", "attention_rows", "index_scores",
    "select_topk", "sparse_attention", "attention_output", "moe_route",   "moe_experts",    "lm_head",
    "draft_input", "stream_mean",      "markov_head",      "sample",      "all_reduce",
};

}  // namespace

std::string_view op_name(OpKind kind) { return kOpNames[static_cast<std::size_t>(kind)]; }

std::optional<OpKind> parse_op_name(std::string_view name) {
  for (int i = 0; i < kNumOpKinds; ++i) {
    if (kOpNames[static_cast<std::size_t>(i)] == name) return static_cast<OpKind>(i);
  }
  return std::nullopt;
}

std::vector<Variant> OpRegistry::variants_of(OpKind op, BackendKind backend) const {
  std::vector<Variant> found;
  for (const Variant& variant : variants_) {
    if (variant.op == op && variant.backend == backend) found.push_back(variant);
  }
  return found;
}

Result<VariantTable> VariantTable::choose(const OpRegistry& registry, BackendKind backend,
                                          std::span<const std::pair<std::string, std::string>> overrides) {
  VariantTable table;
  for (const Variant& variant : registry.variants()) {
    if (variant.backend == backend) table.chosen_[static_cast<std::size_t>(variant.op)] = variant;
  }
  for (const auto& [op, name] : overrides) {
    const std::optional<OpKind> kind = parse_op_name(op);
    if (op != "*" && !kind) {
      std::string known;
      for (std::string_view candidate : kOpNames) known += (known.empty() ? "" : ", ") + std::string(candidate);
      return invalid_argument("--variant names the operation \"" + op + "\"; expected one of: " + known + ", or *");
    }
    bool found = false;
    std::string choices;
    for (const Variant& variant : registry.variants()) {
      if (variant.backend != backend || (kind && variant.op != *kind)) continue;
      if (kind) choices += (choices.empty() ? "" : ", ") + std::string(variant.name);
      if (variant.name != name) continue;
      table.chosen_[static_cast<std::size_t>(variant.op)] = variant;
      found = true;
    }
    if (!found) {
      return invalid_argument("--variant " + op + "=" + name + ": no such variant on this backend" +
                              (choices.empty() ? std::string() : "; expected one of: " + choices));
    }
  }
  return table;
}

void add_op_sample(ExecutionContext& context, OpKind op, std::string_view variant,
                   std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end,
                   OpCost cost) {
  using Microseconds = std::chrono::duration<double, std::micro>;
  StepTrace& trace = *context.trace;
  trace.samples.push_back({{context.layer, op_name(op), variant},
                           Microseconds(begin - trace.origin).count(),
                           Microseconds(end - begin).count(),
                           cost});
  trace.collect_us += Microseconds(std::chrono::steady_clock::now() - end).count();
}

}  // namespace fathom
