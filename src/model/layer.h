// One transformer block and the residual streams it works on (spec 2.3).
#pragma once

#include "model/activations.h"
#include "model/plans.h"
#include "model/step_input.h"
#include "model/tap_writer.h"
#include "model/weights.h"

namespace fathom {

// What a step's operations share.
struct StepScope {
  ExecutionContext& context;
  const StepInput& step;
  const CachePools& pools;
  const ModelPlans& plans;
  const Activations& act;
  const TapWriter& taps;
  View compressed_frequencies;  // [rope / 2] f32: entries are rotated at the position of their group

  // The first rows of a buffer that is sized for the largest step.
  View rows_of(const View& buffer) const { return buffer.rows(0, step.num_tokens()); }
  // The same, or nothing where the buffer is not kept.
  View rows_if_kept(const View& buffer) const { return buffer.empty() ? View{} : rows_of(buffer); }
  // The same memory seen as rows of another width.
  View rows_of(const View& buffer, std::int64_t width) const {
    return make_view(buffer.data, buffer.dtype, {step.num_tokens(), width});
  }
};

// The hc_mult residual streams between sublayers. A sublayer is begun (HCpre, RMSNorm: its input is act.x),
// run by the caller into act.y, and ended (HCpost); ending one and beginning the next is one operation.
class Residual {
 public:
  // The streams lie in buffer `current`; `spare` is free.
  Residual(int current, int spare) : current_(current), spare_(spare) {}

  // `quantised`: where its input after AQ is wanted too, or nothing.
  void begin_sublayer(const StepScope& scope, const HyperConnectionParams& params, const View& norm,
                      const View& quantised = {});
  void end_sublayer(const StepScope& scope);

  bool is_open() const { return open_; }
  int current() const { return current_; }
  View streams(const StepScope& scope) const { return scope.rows_of(scope.act.streams[current_]); }

 private:
  void transition(const StepScope& scope, const HyperConnectionParams* next, const View& norm, const View& quantised);

  int current_;
  int spare_;
  int mix_ = 0;  // which post and comb belong to the open sublayer
  bool open_ = false;
};

// Attention and MoE of layer `index` (trunk, or num_hidden_layers + draft stage). The last HCpost is left
// open: the next layer's begin_sublayer or end_sublayer closes it.
void run_layer(const StepScope& scope, const LayerWeights& weights, std::int32_t index, Residual& residual);

// act.x -> act.y (spec 2.4 to 2.6).
void run_attention(const StepScope& scope, const AttentionWeights& weights, std::int32_t index);
// act.x -> act.y (spec 2.7).
void run_moe(const StepScope& scope, const MoeWeights& weights);

}  // namespace fathom
