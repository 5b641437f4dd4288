// sample on the device: rows that ask for no cut, bias, mask or penalty; the others are drawn by sample_token.
//
// The same token as sample_token's for the same logits: (v - max) / T in fp32, the same Philox word, the Gumbel
// term and the comparison in fp64, equal scores to the lowest id. NaN counts as impossible.
#pragma once

#include "ops/execution_context.h"
#include "ops/registry.h"

namespace fathom {

struct DeviceSampleArgs {
  View logits;       // [rows, vocab] f32
  View temperature;  // [rows] f32; 0: plain argmax
  View seed;         // [rows] u64
  View choice;       // [rows] u32
  View position;     // [rows] i64: index of the token being drawn
  View tokens;       // out [rows] i32; -1 where every logit is impossible
  View logprobs;     // out [rows] f32: log softmax of the logits before temperature
};

// Present only in builds with CUDA.
void sample_rows_cuda(ExecutionContext& context, const DeviceSampleArgs& args);

}  // namespace fathom
