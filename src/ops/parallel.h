// Splitting an operation's independent outputs over the pool; which thread computes what changes no bit.
#pragma once

#include <cstdint>
#include <utility>

#include "ops/execution_context.h"

namespace fathom {

// body(begin, end) over disjoint ranges that cover [0, count); bounds are multiples of `grain`. Without a
// pool: one call on this thread.
template <typename Body>
void parallel_ranges(const ExecutionContext& context, std::int64_t count, std::int64_t grain, Body&& body) {
  if (count <= 0) return;
  if (context.threads == nullptr) {
    body(std::int64_t{0}, count);
  } else {
    context.threads->run_ranges(count, grain, std::forward<Body>(body));
  }
}

}  // namespace fathom
