// One step over caches filled with one small number: many rows that decode, each at the end of its own context, or a
// chunk of one prompt. What a step costs at any length, without the prompts being computed first. For benchmarks; its
// tokens mean nothing.
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
  // The last `rows` tokens of a prompt of `context_tokens` as one chunk, with the logits of the last row.
  static Result<std::unique_ptr<FilledStep>> make_chunk(Model& model, std::int32_t rows, std::int64_t context_tokens);

  // Launches the step `count` times and waits: replays of one captured graph, once the first two calls have launched
  // and captured it. `max_context_tokens`: the configured maximum that the graph must serve; graphs of unlike maxima
  // are captured apart.
  Status run(std::int64_t max_context_tokens, int count = 1, SegmentTiming segments = SegmentTiming::kNone);

  // Samples of each operation called while the step is launched, into `trace`; null: none.
  void set_trace(StepTrace* trace) { context_.trace = trace; }

  // What run() replayed last; null where it launched without a graph.
  std::shared_ptr<const CapturedStep> captured() const { return model_.backend().last_captured(); }

 private:
  FilledStep(Model& model, std::int32_t sequences, std::int32_t rows)
      : model_(model), context_(model.make_context()), sequences_(sequences), rows_(rows) {}
  // Positions [begin, begin + rows) of each sequence; its blocks cover `context_tokens`.
  static Result<std::unique_ptr<FilledStep>> make_rows(Model& model, std::int32_t sequences, std::int32_t rows,
                                                       std::int64_t begin, std::int64_t context_tokens);

  Model& model_;
  ExecutionContext context_;
  std::int32_t sequences_ = 0;
  std::int32_t rows_ = 0;  // of each
  DeviceMemory context_blocks_, window_blocks_, states_;
  CachePools pools_;
  StepInput step_;
};

// Kernels of each layer of a captured step. Those outside the layers are not counted.
std::vector<int> launches_of_layers(const CapturedStep& step, std::int32_t num_layers);

}  // namespace fathom
