// One decode step of many rows, each at the end of its own context, over caches filled with one small number: what a
// step costs at any length, without the prompts being computed first. For benchmarks; its tokens mean nothing.
#pragma once

#include <memory>
#include <vector>

#include "model/model.h"

namespace fathom {

class FilledStep {
 public:
  // `batch` sequences that hold `context_tokens` each, the step's row included; it closes no group of a compressor
  // unless `closes_groups`. The model must outlive the step. Failure: more rows than the model was loaded for, or no
  // memory.
  static Result<std::unique_ptr<FilledStep>> make(Model& model, std::int32_t batch, std::int64_t context_tokens,
                                                  bool closes_groups = false);

  // Launches the step `count` times and waits: replays of one captured graph, once the first two calls have launched
  // and captured it. `max_context_tokens`: the configured maximum that the graph must serve; graphs of unlike maxima
  // are captured apart.
  Status run(std::int64_t max_context_tokens, int count = 1, SegmentTiming segments = SegmentTiming::kNone);

  // What run() replayed last; null where it launched without a graph.
  std::shared_ptr<const CapturedStep> captured() const { return model_.backend().last_captured(); }

 private:
  FilledStep(Model& model, std::int32_t batch) : model_(model), context_(model.make_context()), batch_(batch) {}

  Model& model_;
  ExecutionContext context_;
  std::int32_t batch_ = 0;
  DeviceMemory context_blocks_, window_blocks_, states_;
  CachePools pools_;
  StepInput step_;
};

// Kernels of each layer of a captured step. Those outside the layers are not counted.
std::vector<int> launches_of_layers(const CapturedStep& step, std::int32_t num_layers);

}  // namespace fathom
