#include "ops/testing/run.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>

#include "ops/simd/instruction_set.h"
#include "tensor/buffer.h"

namespace fathom::testing {
namespace {

const OpRegistry& registry() {
  static const OpRegistry filled = [] {
    // Vector code runs on the instruction set named by FATHOM_TEST_SIMD; unset: the machine's best.
    if (const char* name = std::getenv("FATHOM_TEST_SIMD"); name != nullptr) {
      FATHOM_CHECK(simd::choose_instruction_set(name), "this machine has the instruction set of FATHOM_TEST_SIMD");
    }
    OpRegistry made;
    register_cpu_variants(made);
    return made;
  }();
  return filled;
}

ThreadPool* pool_of(int num_threads) {
  static std::array<std::unique_ptr<ThreadPool>, 8> pools;
  if (num_threads == 0) return nullptr;
  std::unique_ptr<ThreadPool>& pool = pools.at(static_cast<std::size_t>(num_threads));
  if (pool == nullptr) pool = std::make_unique<ThreadPool>(num_threads);
  return pool.get();
}

}  // namespace

void run_with(OpKind op, std::string_view variant, int num_threads, std::int64_t scratch_bytes,
              const std::function<void(ExecutionContext&)>& launch) {
  const std::pair<std::string, std::string> overrides[] = {{"*", "reference"},
                                                           {std::string(op_name(op)), std::string(variant)}};
  const Result<VariantTable> table = VariantTable::choose(registry(), BackendKind::kCpu, overrides);
  ASSERT_TRUE(table.ok()) << op_name(op) << '/' << variant;
  const Buffer scratch(scratch_bytes + Buffer::kAlignment);
  std::memset(scratch.data(), 0xcb, static_cast<std::size_t>(scratch.num_bytes()));
  ExecutionContext context;
  context.variants = &*table;
  context.threads = pool_of(num_threads);
  context.scratch = scratch.data();
  context.scratch_bytes = scratch_bytes;
  launch(context);
}

std::vector<std::string> cpu_variants(OpKind op) {
  std::vector<std::string> names;
  for (const Variant& variant : registry().variants_of(op, BackendKind::kCpu)) names.emplace_back(variant.name);
  EXPECT_NE(std::find(names.begin(), names.end(), "reference"), names.end()) << op_name(op);
  return names;
}

std::vector<std::string> fast_variants(OpKind op) {
  std::vector<std::string> names = cpu_variants(op);
  std::erase(names, "reference");
  return names;
}

double relative_l2(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) {
      if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) return INFINITY;
      continue;
    }
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  if (difference == 0.0) return 0.0;
  return norm == 0.0 ? INFINITY : std::sqrt(difference / norm);
}

::testing::AssertionResult within(std::span<const float> a, std::span<const float> b, double bound) {
  const double found = relative_l2(a, b);
  if (found <= bound) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "relative L2 " << found << " is over " << bound << " (" << a.size()
                                       << " elements)";
}

::testing::AssertionResult within_rounding(std::span<const float> a, std::span<const float> b,
                                           const RoundingAllowance& allowance) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " elements against " << b.size();
  double largest = 0.0;
  for (float value : b) largest = std::max(largest, std::fabs(static_cast<double>(value)));
  std::size_t num_flips = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    // Also the poison of an output that neither writes.
    if (std::bit_cast<std::uint32_t>(a[i]) == std::bit_cast<std::uint32_t>(b[i])) continue;
    const auto x = static_cast<double>(a[i]);
    const auto y = static_cast<double>(b[i]);
    const auto partner = static_cast<double>(allowance.pairs && (i ^ 1) < b.size() ? b[i ^ 1] : y);
    const double magnitude = std::max({std::fabs(x), std::fabs(y), std::fabs(partner), allowance.floor * largest});
    const double d = std::fabs(x - y);
    if (!(d <= allowance.step * magnitude)) {
      return ::testing::AssertionFailure()
             << "element " << i << ": " << a[i] << " against " << b[i] << " is more than one rounding step";
    }
    num_flips += d > 1e-5 * magnitude ? 1 : 0;
  }
  const double mean = allowance.max_share * static_cast<double>(a.size());
  const auto allowed = std::max<std::size_t>(2, static_cast<std::size_t>(mean + 6.0 * std::sqrt(mean)));
  if (num_flips <= allowed) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << num_flips << " of " << a.size() << " elements rounded differently, "
                                       << allowed << " are allowed";
}

::testing::AssertionResult same_bits(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " elements against " << b.size();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) {
      return ::testing::AssertionFailure()
             << "element " << i << " of " << a.size() << ": " << a[i] << " against " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

void expect_row_invariance(OpKind op, std::int32_t num_rows, const RowRunner& run) {
  for (const std::string& variant : cpu_variants(op)) {
    SCOPED_TRACE(std::string(op_name(op)) + "/" + variant);
    const std::vector<std::int32_t> all = iota_rows(0, num_rows);
    const std::vector<float> whole = run(variant, 1, all);
    const std::size_t width = whole.size() / all.size();
    ASSERT_EQ(width * all.size(), whole.size());
    const auto expect_same = [&](int threads, const std::vector<std::int32_t>& rows, const char* what) {
      SCOPED_TRACE(what);
      const std::vector<float> part = run(variant, threads, rows);
      std::vector<float> expected;
      for (std::int32_t row : rows) {
        const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(row) * width);
        expected.insert(expected.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
      }
      EXPECT_TRUE(same_bits(part, expected));
    };
    expect_same(0, all, "no pool");
    expect_same(2, all, "two threads");
    expect_same(3, all, "three threads");
    for (std::int32_t row : {0, num_rows / 2, num_rows - 1}) expect_same(2, {row}, "a row alone");
    expect_same(1, iota_rows(0, num_rows / 2), "first half");
    expect_same(3, iota_rows(num_rows / 2, num_rows), "second half");
    std::vector<std::int32_t> mixed;
    for (std::int32_t i = 0; i < num_rows; ++i) mixed.push_back((i * 5 + 3) % num_rows);
    mixed.push_back(0);
    mixed.push_back(0);
    expect_same(2, mixed, "other neighbours");
  }
}

void expect_matches_reference(OpKind op, std::int32_t num_rows, const RowRunner& run, const Comparison& compare) {
  const std::vector<std::string> variants = fast_variants(op);
  if (variants.empty()) return;
  // The reference is row-invariant (expect_row_invariance): fewer rows are a prefix.
  const std::vector<float> reference = run("reference", 2, iota_rows(0, num_rows));
  const std::size_t width = reference.size() / static_cast<std::size_t>(num_rows);
  for (const std::string& variant : variants) {
    for (std::int32_t rows : kRowCounts) {
      if (rows > num_rows) break;
      SCOPED_TRACE(std::string(op_name(op)) + "/" + variant + ", " + std::to_string(rows) + " rows");
      const std::vector<float> found = run(variant, 2, iota_rows(0, rows));
      EXPECT_TRUE(compare(found, std::span(reference).first(static_cast<std::size_t>(rows) * width)));
    }
  }
}

Comparison sum_order(const Numerics& numerics, double bound) {
  if (numerics.rounds_to_bf16()) {
    return [](std::span<const float> a, std::span<const float> b) { return within_rounding(a, b); };
  }
  return [bound](std::span<const float> a, std::span<const float> b) { return within(a, b, bound); };
}

std::vector<std::int32_t> iota_rows(std::int32_t begin, std::int32_t end) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(end - begin));
  std::iota(rows.begin(), rows.end(), begin);
  return rows;
}

}  // namespace fathom::testing
