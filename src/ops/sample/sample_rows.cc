#include "ops/sample/sample_rows.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/units.h"
#include "ops/check_view.h"
#include "ops/cost_terms.h"
#include "ops/sample/team_area.h"

namespace fathom {

SampleRowsPlan plan_sample_rows(std::int64_t vocab) {
  return {vocab, 0, std::int64_t{kMaxTeams} * static_cast<std::int64_t>(sizeof(TeamArea))};
}

void run_sample_rows(ExecutionContext& context, const SampleRowsPlan& plan, const SampleRowsArgs& args) {
  if (args.logits.empty()) return;
  check_view(args.logits, DType::kF32, args.logits.shape[0], plan.vocab);
  run_operation(context, OpKind::kSample, plan, args, [&] { return cost_sample_rows(plan, args); });
}

OpCost cost_sample_rows(const SampleRowsPlan&, const SampleRowsArgs& args) { return {view_bytes(args.logits), 0.0}; }

// sample_token, row by row: the rule itself.
void sample_rows_cpu(ExecutionContext&, const SampleRowsPlan& plan, const SampleRowsArgs& args) {
  static thread_local SampleWorkspace workspace;
  static thread_local SampledToken drawn;
  static thread_local std::vector<std::pair<TokenId, float>> biases;
  static thread_local std::vector<TokenId> prompt, output;
  const auto vocab = static_cast<std::size_t>(plan.vocab);
  const auto words = static_cast<std::size_t>(ceil_div(plan.vocab, 32));
  for (std::int64_t r = 0; r < args.logits.shape[0]; ++r) {
    const SampleRow& row = args.rows[r];
    SampleSpec spec;
    spec.temperature = row.temperature, spec.top_p = row.top_p, spec.top_k = row.top_k, spec.min_p = row.min_p;
    spec.repetition_penalty = row.repetition_penalty;
    spec.frequency_penalty = row.frequency_penalty, spec.presence_penalty = row.presence_penalty;
    spec.seed = row.seed, spec.choice = row.choice, spec.num_logprobs = row.num_logprobs;
    if (row.mask_begin >= 0) spec.allowed = {args.masks + row.mask_begin, words};
    biases.clear(), prompt.clear(), output.clear();
    for (std::int32_t i = 0; i < row.bias_count; ++i) {
      const SampleBias& bias = args.biases[row.bias_begin + i];
      biases.emplace_back(bias.id, bias.bias);
    }
    for (std::int32_t i = 0; i < row.history_count; ++i) {
      const SampleHistory& known = args.histories[row.history_begin + i];
      if (known.count == 0) prompt.push_back(known.id);
      output.insert(output.end(), static_cast<std::size_t>(known.count), known.id);
    }
    spec.logit_bias = biases, spec.prompt_ids = prompt, spec.output_ids = output;
    if (row.forced >= 0) spec.forced = {&row.forced, 1};
    sample_token({args.logits.as<float>() + r * plan.vocab, vocab}, row.position, spec, workspace, drawn);
    SampledRow& out = args.sampled[r];
    out.token = drawn.token, out.logprob = drawn.logprob;
    if (args.ids != nullptr) args.ids[r] = std::max(drawn.token, 0);
    out.num_top = static_cast<std::int32_t>(drawn.top.size());
    for (std::size_t i = 0; i < drawn.top.size(); ++i) {
      out.top_token[i] = drawn.top[i].token;
      out.top_logprob[i] = drawn.top[i].logprob;
    }
  }
}

std::span<const Variant> sample_rows_variants() {
  static const std::array variants = {make_variant(OpKind::kSample, "cpu", BackendKind::kCpu, &sample_rows_cpu)};
  return variants;
}

}  // namespace fathom
