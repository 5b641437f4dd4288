// `fathom bench decode --synthetic flash --layers N`: decode steps and chunks of prompts of random weights at full
// width, by batch and context: microseconds, bytes and share of the floor of every operation, launches of a layer, and
// what a configured maximum costs a step that is far from it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "commands.h"
#include "engine/filled_step.h"
#include "engine/load_model.h"
#include "opened_model.h"
#include "synthetic_model.h"

namespace fathom::app {
namespace {

// What the floors stand on, measured on an H200: a large copy, bytes read and written, and a large bf16 product.
constexpr double kBytesPerUs = 4.3e6, kFlopsPerUs = 790e6;
constexpr std::int64_t kShortMaximum = 8192, kLongMaximum = 1 << 20, kActual = 2048;
constexpr double kMaximumBar = 1.02;
constexpr int kRounds = 5, kReplays = 8;

double floor_us(const OpCost& cost) { return std::max(cost.bytes / kBytesPerUs, cost.flops / kFlopsPerUs); }

Result<double> replay_us(FilledStep& step, std::int64_t max_context) {
  const auto begin = std::chrono::steady_clock::now();
  FATHOM_RETURN_IF_ERROR(step.run(max_context, kReplays));
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / kReplays;
}

// The best of some replays for each call of the step, with events between the calls.
Result<std::vector<double>> call_times_us(FilledStep& step, std::int64_t max_context, Backend& backend) {
  std::vector<double> best;
  FATHOM_RETURN_IF_ERROR(step.run(max_context, 3, SegmentTiming::kOperations));
  for (int i = 0; i < kRounds; ++i) {
    FATHOM_RETURN_IF_ERROR(step.run(max_context, 1, SegmentTiming::kOperations));
    FATHOM_ASSIGN_OR_RETURN(const std::vector<double> times, backend.segment_times_us(*step.captured()));
    if (best.empty()) best = times;
    for (std::size_t s = 0; s < best.size(); ++s) best[s] = std::min(best[s], times[s]);
  }
  return best;
}

struct OperationTotal {
  int calls = 0, launches = 0;
  double us = 0, bytes = 0, floor_us = 0;
};

void print_operations(const CapturedStep& step, const std::vector<double>& segment_us) {
  std::map<std::string, OperationTotal> totals;
  OperationTotal all;
  for (std::size_t s = 0; s < step.segments.size() && s < segment_us.size(); ++s) {
    const CapturedSegment& segment = step.segments[s];
    for (std::int32_t c = segment.first_call; c < segment.first_call + segment.num_calls; ++c) {
      const CapturedCall& call = step.calls[static_cast<std::size_t>(c)];
      const std::string name = std::string(call.scope.operation) + "/" + std::string(call.scope.variant);
      for (OperationTotal* total : {&totals[name], &all}) {
        ++total->calls;
        total->launches += call.num_nodes;
        total->us += segment_us[s] / segment.num_calls;
        total->bytes += call.cost.bytes;
        total->floor_us += floor_us(call.cost);
      }
    }
  }
  const auto print = [](const std::string& name, const OperationTotal& t) {
    std::printf("    %-36s %4d calls %4d launches %10.1f us %12.2f MB %9.1f us floor %5.1f %% of it reached\n",
                name.c_str(), t.calls, t.launches, t.us, t.bytes / 1e6, t.floor_us, 100 * t.floor_us / t.us);
  };
  for (const auto& [name, total] : totals) print(name, total);
  print("all, events between them included", all);
}

Status bench_step(Model& model, std::unique_ptr<FilledStep> step, const std::string& what, std::int64_t context) {
  FATHOM_RETURN_IF_ERROR(step->run(context, 3));
  const auto captured = step->captured();
  if (captured == nullptr) return failed_precondition("this device replays no graphs: --device cuda");
  double best = 1e30;
  for (int i = 0; i < kRounds; ++i) {
    FATHOM_ASSIGN_OR_RETURN(const double us, replay_us(*step, context));
    best = std::min(best, us);
  }
  double floor = 0;
  for (const CapturedCall& call : captured->calls) floor += floor_us(call.cost);
  std::printf(
      "context %lld, %s: %.1f us a step, floor %.1f us (%.1f %% of it reached), %zu nodes; launches of a layer:",
      static_cast<long long>(context), what.c_str(), best, floor, 100 * floor / best, captured->nodes.size());
  const std::int32_t num_layers = model.config().num_hidden_layers;
  const std::vector<int> launches = launches_of_layers(*captured, num_layers);
  for (std::int32_t layer = 0; layer < num_layers; ++layer)
    std::printf(" %d (ratio %d)", launches[static_cast<std::size_t>(layer)], model.config().compress_ratio(layer));
  std::printf("\n");
  FATHOM_ASSIGN_OR_RETURN(const std::vector<double> times, call_times_us(*step, context, model.backend()));
  print_operations(*step->captured(), times);
  std::fflush(stdout);  // of a run that is cut short, what was measured stays
  model.backend().drop_captured();
  return {};
}

// By turns, so that the card's clocks meet both. Whether the bar is held.
Result<bool> bench_maximum(Model& model, std::int32_t batch) {
  FATHOM_ASSIGN_OR_RETURN(auto step, FilledStep::make(model, batch, kActual));
  double best[2] = {1e30, 1e30};
  for (int round = 0; round < 2 * kRounds; ++round) {
    for (const int which : {0, 1}) {
      FATHOM_ASSIGN_OR_RETURN(const double us, replay_us(*step, which == 0 ? kShortMaximum : kLongMaximum));
      if (round > 0) best[which] = std::min(best[which], us);
    }
  }
  model.backend().drop_captured();
  const bool held = best[1] <= kMaximumBar * best[0];
  std::printf("%s context %lld, batch %d: configured for %lld %.1f us, for %lld %.1f us: %+.2f %% (at most 2 %%)\n",
              held ? "PASS" : "FAIL", static_cast<long long>(kActual), batch, static_cast<long long>(kShortMaximum),
              best[0], static_cast<long long>(kLongMaximum), best[1], 100 * (best[1] / best[0] - 1));
  return held;
}

Result<bool> bench(const BenchOptions& options) {
  SyntheticModel synthetic;
  FATHOM_ASSIGN_OR_RETURN(const std::string path, synthetic.make(options.synthetic, options.layers, 0));
  const std::int32_t most = *std::max_element(options.batches.begin(), options.batches.end());
  LoadOptions load;
  load.device = parse_device(options.model.device).value_or(DeviceChoice::kCpu);
  load.num_threads = options.model.threads;
  FATHOM_ASSIGN_OR_RETURN(load.variants, parse_variants(options.model.variants));
  load.max_step_tokens = std::max(most, *std::max_element(options.chunks.begin(), options.chunks.end()));
  load.max_logit_rows = most;
  load.draft = false;
  FATHOM_ASSIGN_OR_RETURN(const LoadedModel loaded, load_model(path, load));
  Model& model = *loaded.model;
  std::printf(
      "fathom bench decode: %s, %d layers and the head, random weights, on %s; floors of %.1f TB/s and %.0f TFLOP/s\n",
      options.synthetic.c_str(), model.config().num_hidden_layers, loaded.backend->device_name().c_str(),
      kBytesPerUs / 1e6, kFlopsPerUs / 1e6);
  for (const std::int64_t context : options.contexts) {
    for (const std::int32_t batch : options.batches) {
      FATHOM_ASSIGN_OR_RETURN(auto step, FilledStep::make(model, batch, context));
      FATHOM_RETURN_IF_ERROR(bench_step(model, std::move(step), "batch " + std::to_string(batch), context));
    }
    for (const std::int32_t rows : options.chunks) {
      if (rows == 0 || rows > context) continue;
      FATHOM_ASSIGN_OR_RETURN(auto step, FilledStep::make_chunk(model, rows, context));
      FATHOM_RETURN_IF_ERROR(
          bench_step(model, std::move(step), "a chunk of " + std::to_string(rows) + " tokens", context));
    }
  }
  bool held = true;
  if (model.config().max_position_embeddings >= kLongMaximum) {
    for (const std::int32_t batch : options.batches) {
      FATHOM_ASSIGN_OR_RETURN(const bool pass, bench_maximum(model, batch));
      held = held && pass;
    }
  }
  return held;
}

}  // namespace

int run_bench_synthetic(const BenchOptions& options) {
  const Result<bool> held = bench(options);
  if (!held.ok()) {
    std::fprintf(stderr, "fathom bench: %s\n", std::string(held.status().message()).c_str());
    return 1;
  }
  return *held ? 0 : 1;
}

}  // namespace fathom::app
