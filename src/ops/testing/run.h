// Running one variant of an operation, and what its results are held to.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/numerics.h"
#include "ops/registry.h"

namespace fathom::testing {

inline constexpr Numerics kAllNumerics[] = {Numerics::plain(), Numerics::vendor(), Numerics::serve()};
// Row counts around vector widths, tiles and blocks.
inline constexpr std::int32_t kRowCounts[] = {1, 2, 3, 5, 7, 8, 31, 65, 130};

// Calls launch(context) with `variant` of `op` chosen (the others: reference), `num_threads` threads (0: no
// pool) and poisoned scratch of `scratch_bytes`.
void run_with(OpKind op, std::string_view variant, int num_threads, std::int64_t scratch_bytes,
              const std::function<void(ExecutionContext&)>& launch);

// Names of an operation's registered CPU variants; without `reference` for the second.
std::vector<std::string> cpu_variants(OpKind op);
std::vector<std::string> fast_variants(OpKind op);

// ||a - b|| / ||b||; infinite when an element is not finite in one and different in the other.
double relative_l2(std::span<const float> a, std::span<const float> b);
::testing::AssertionResult within(std::span<const float> a, std::span<const float> b, double bound);

// For results that end in a rounding (bf16, e4m3, e2m1): sums that differ in their last fp32 bit may round to
// neighbouring values. An element differs by more than fp32 noise (1e-5 relative) with a probability of at most
// `max_share`: noise of 8e-6 on either side of a tie, ties being 2^-8 apart, makes 0.004. So the number that differ has
// at most a binomial distribution; its mean and six deviations are allowed. Each differs by at most `step` of the
// larger magnitude or `step * floor`, whichever is more.
struct RoundingAllowance {
  double step = 0x1p-7;      // one bf16 ulp
  double max_share = 0.004;  // of the elements on average; two always
  double floor = 1e-3;       // elements near zero: relative to the largest element
  bool pairs = false;        // rotated channels: an element is as large as the larger of its pair
};
::testing::AssertionResult within_rounding(std::span<const float> a, std::span<const float> b,
                                           const RoundingAllowance& allowance = {});

// Bitwise equality, with the first difference named.
::testing::AssertionResult same_bits(std::span<const float> a, std::span<const float> b);

// run(variant, threads, rows) gives the output rows [rows.size(), width] when the inputs are the given rows of
// a fixed set. Holds a variant to architecture's row invariance: whole against each row alone, halves, a
// shuffled order with repetition, 1, 2 and 3 threads.
using RowRunner =
    std::function<std::vector<float>(const std::string& variant, int threads, std::span<const std::int32_t> rows)>;
void expect_row_invariance(OpKind op, std::int32_t num_rows, const RowRunner& run);

// Each fast variant against `reference` on the same inputs, under every row count up to num_rows.
using Comparison = std::function<::testing::AssertionResult(std::span<const float>, std::span<const float>)>;
void expect_matches_reference(OpKind op, std::int32_t num_rows, const RowRunner& run, const Comparison& compare);

// Sums in another order: `bound` relative L2; in `serve` also the neighbouring bf16 value.
Comparison sum_order(const Numerics& numerics, double bound = 2e-6);

std::vector<std::int32_t> iota_rows(std::int32_t begin, std::int32_t end);

}  // namespace fathom::testing
