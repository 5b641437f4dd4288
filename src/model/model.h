// The DeepSeek-V4 forward pass (spec section 2), driven by the config: any width, any layer schedule.
//
// Prefill, chunked prefill and decode are one thing: rows of sequences at positions (StepInput). A Model
// holds weights and activations; caches belong to the caller. One step at a time.
#pragma once

#include <memory>
#include <span>

#include "backend/backend.h"
#include "checkpoint/verify.h"
#include "model/activations.h"
#include "model/cache_layout.h"
#include "model/plans.h"
#include "model/step_input.h"
#include "model/tap_writer.h"
#include "model/weights.h"
#include "ops/numerics.h"

namespace fathom {

struct StepScope;
class Residual;

struct ModelOptions {
  Numerics numerics;
  std::int64_t max_tokens = 512;              // rows of a step
  std::int64_t max_logit_rows = 16;           // rows of a step that yield logits
  std::int64_t max_context_tokens = 0;        // of a sequence; 0: what the config says. Longer ones score in more tiles
  std::int64_t index_score_bytes = 4 * kMiB;  // one tile of index scores; raised as index_score_budget_bytes says
  bool draft = true;                          // bind draft blocks where the checkpoint has them
  LoadProgress progress;                      // of placing weights
};

class Model {
 public:
  // The checkpoint, the backend and the variants must outlive the model.
  static Result<std::unique_ptr<Model>> make(const Checkpoint& checkpoint, Backend& backend,
                                             const VariantTable& variants, const ModelOptions& options);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  const CacheLayout& cache_layout() const { return layout_; }
  const MemoryPlan& memory_plan() const { return arena_.plan; }
  DraftKind draft_kind() const { return weights_.draft.kind; }
  Backend& backend() const { return backend_; }

  // A context whose scratch and variants are this model's.
  ExecutionContext make_context() const;

  // The trunk over the step's rows: writes their cache, returns logits [logit rows, vocab] f32 on the device,
  // valid until the next call of this model. Launches only; faults surface in Backend::finish.
  View forward(ExecutionContext& context, const StepInput& step, const CachePools& pools);

  // What forward returns and leaves behind for this step, when its launches were replayed and not made.
  View replayed(const StepInput& step);

  // The streams after the last block, before hc_head: [tokens, hc, hidden], valid until the next forward.
  View final_streams() const { return final_streams_; }

  // The classic MTP block (spec 2.9). The row at position p has the token of p and, in `streams`, the streams of
  // p - 1 (the trunk's final ones, or draft_streams() for a further draft); its logits are for the token of p + 1.
  // Its key lies at p, so that a cached row is a function of the tokens up to its own position, and position 0 has
  // none (window_floor >= 1). The spec's positions are lower by one: only differences of positions matter here.
  View draft_mtp(ExecutionContext& context, const StepInput& step, const View& streams, const CachePools& pools);
  View draft_streams() const { return draft_streams_; }
  // Room for draft_mtp's `streams`: not where final_streams() or draft_streams(), whichever came last, lie.
  View draft_input_streams(std::int64_t num_rows) const;

  // The DSpark drafter (spec 2.10). After forward over `step`: each row's context keys in all stages' caches.
  void draft_context(ExecutionContext& context, const StepInput& step, const CachePools& pools);
  // One block of rows a sequence (SequenceRows::block_visible): the token just drawn, then noise; all rows want
  // logits. Returns their logits without the Markov bias, which draft_markov adds. Writes the stages' caches at the
  // block's positions, where the context keys of committed tokens will stand.
  View draft_block(ExecutionContext& context, const StepInput& step, const CachePools& pools);
  struct MarkovDrafts {
    View logits;      // [rows, vocab] f32
    View confidence;  // [rows] f32
  };
  // Of chosen rows of the last draft_block, given the token before each: [rows] i32 both, on the device.
  MarkovDrafts draft_markov(ExecutionContext& context, const View& previous, const View& row_indices);

  // Rows that move on the device; a copy of `context.layer` in captured steps.
  Status copy_rows(ExecutionContext& context, const RowCopies& copies) const;

  // One layer alone: streams in and out [tokens, hc, hidden] in host memory, f32. For layer-forced tests.
  Status run_layer_alone(ExecutionContext& context, std::int32_t layer, const StepInput& step,
                         std::span<const float> in, std::span<float> out, const CachePools& pools);

 private:
  static constexpr std::int32_t kNoLayer = -1;

  Model(const Checkpoint& checkpoint, Backend& backend, const VariantTable& variants, const ModelOptions& options);

  StepScope scope_of(ExecutionContext& context, const StepInput& step, const CachePools& pools) const;
  void rotate_positions(const StepScope& scope) const;
  View head(const StepScope& scope, const View& streams, const HyperConnectionParams& hc_head, const View& norm);
  void tap_layer(const StepScope& scope, std::int32_t layer, Residual& residual) const;
  int stream_buffer_of(const View& streams) const;
  Status upload_floats(std::span<const float> values, const View& to) const;
  Status download_floats(const View& from, std::span<float> values) const;

  const ModelConfig& config_;
  ModelOptions options_;
  Backend& backend_;
  const VariantTable& variants_;
  TapWriter taps_;
  CacheLayout layout_;
  ModelPlans plans_;
  ModelWeights weights_;
  ActivationArena arena_;
  DeviceMemory frequencies_;
  View window_frequencies_;      // [rope / 2] f32
  View compressed_frequencies_;  // [rope / 2] f32
  View final_streams_;
  View draft_streams_;
  View last_streams_;     // the later of the two
  View block_collapsed_;  // [block rows, hidden] of the last draft_block
  View block_logits_;     // [block rows, vocab] f32
};

}  // namespace fathom
