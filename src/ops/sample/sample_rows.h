// sample_rows: the tokens of a step's logits rows, drawn where the logits lie (sample.h has the rule: the same tokens).
//
// What a row asks for comes as one record and three lists in device memory, at the same places in every step, so the
// draw can stand in a captured step. One block of records goes back.
#pragma once

#include <cstdint>
#include <span>

#include "ops/host_device.h"
#include "ops/registry.h"
#include "ops/sample/nucleus_weight.h"
#include "ops/sample/sample.h"

namespace fathom {

// The most alternatives a row can ask for; a step that asks for more is drawn on the host.
inline constexpr std::int32_t kMaxSampleTop = 20;

// SampleSpec of one row, for the device. Lists are [begin, begin + count) of those of the step.
struct SampleRow {
  std::uint64_t seed = 0;
  std::int64_t position = 0;  // of the token being drawn
  std::uint32_t choice = 0;
  float temperature = 1.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  std::int32_t top_k = 0;
  std::int32_t num_logprobs = -1;
  std::int32_t forced = -1;
  std::int32_t mask_begin = -1;  // word of the masks; -1: all allowed
  std::int32_t bias_begin = 0, bias_count = 0;
  std::int32_t history_begin = 0, history_count = 0;
  std::int32_t value_row = -1;  // of SampleRowsArgs::values, where the row changes its logits or cuts; else -1

  FATHOM_HOST_DEVICE bool changes_logits() const { return mask_begin >= 0 || bias_count > 0 || history_count > 0; }
  FATHOM_HOST_DEVICE bool cuts() const { return temperature > 0.0f && (top_k > 0 || top_p < 1.0f || min_p > 0.0f); }
};

// An id that penalties concern, once.
struct SampleHistory {
  std::int32_t id = -1;
  std::int32_t count = 0;  // in the output; 0: in the prompt only
};
struct SampleBias {
  std::int32_t id = -1;
  float bias = 0.0f;
};

struct SampledRow {
  std::int32_t token = -1;
  float logprob = 0.0f;
  std::int32_t num_top = 0;
  std::int32_t top_token[kMaxSampleTop];
  float top_logprob[kMaxSampleTop];
};

struct SampleRowsPlan {
  std::int64_t vocab = 0;
  std::int64_t workspace_bytes = 0;
  std::int64_t exchange_bytes = 0;  // of SampleRowsArgs::exchange
};
struct SampleRowsArgs {
  View logits;                      // [rows, vocab] f32, not changed
  const SampleRow* rows = nullptr;  // [rows]
  const std::uint32_t* masks = nullptr;
  const SampleBias* biases = nullptr;
  const SampleHistory* histories = nullptr;
  View exchange;                  // [plan.exchange_bytes] u8, zeros before the first call, of one stream
  View values;                    // scratch [value rows, vocab] f32
  SampledRow* sampled = nullptr;  // out [rows]
  std::int32_t* ids = nullptr;    // out [rows], or null: the tokens alone, 0 where none could be drawn
};

SampleRowsPlan plan_sample_rows(std::int64_t vocab);
void run_sample_rows(ExecutionContext& context, const SampleRowsPlan& plan, const SampleRowsArgs& args);
OpCost cost_sample_rows(const SampleRowsPlan& plan, const SampleRowsArgs& args);

void sample_rows_cpu(ExecutionContext& context, const SampleRowsPlan& plan, const SampleRowsArgs& args);
std::span<const Variant> sample_rows_variants();

}  // namespace fathom
