// Matrix products of one operation, split over the pool, and the scratch they need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/execution_context.h"
#include "ops/registry.h"
#include "ops/simd/matmul.h"

namespace fathom::simd {

// Rows an operation prepares and multiplies at a time: bounds its scratch, and keeps them in the second-level cache.
inline constexpr std::int64_t kRowChunk = 256;

// Hands out the context's scratch in 64-byte aligned pieces.
class Scratch {
 public:
  explicit Scratch(const ExecutionContext& context) : next_(context.scratch), left_(context.scratch_bytes) {}
  template <typename T>
  T* take(std::int64_t count) {
    const std::int64_t bytes = aligned_bytes<T>(count);
    FATHOM_CHECK(bytes <= left_, "scratch covers the operation");
    auto* piece = reinterpret_cast<T*>(next_);
    next_ += bytes;
    left_ -= bytes;
    return piece;
  }
  std::int64_t left_bytes() const { return left_; }

  template <typename T>
  static constexpr std::int64_t aligned_bytes(std::int64_t count) {
    return (count * static_cast<std::int64_t>(sizeof(T)) + 63) / 64 * 64;
  }

 private:
  std::byte* next_;
  std::int64_t left_;
};

// Decoded weight tiles, one for each thread that works. Takes what is left of the scratch, so it comes last.
struct Tiles {
  float* base = nullptr;
  std::int64_t stride = 0;
  std::int32_t count = 0;
};
Tiles take_tiles(const ExecutionContext& context, Scratch& scratch, std::int64_t max_in_features);
std::int64_t tiles_bytes(const DeviceInfo& device, std::int64_t max_in_features);

// body(part) for part in [0, parts), on the pool if there is one; parts <= its threads.
template <typename Body>
void run_parts(const ExecutionContext& context, std::int64_t parts, Body&& body) {
  if (context.threads == nullptr) {
    for (std::int64_t part = 0; part < parts; ++part) body(part);
  } else {
    context.threads->run(parts, body);
  }
}

inline std::int32_t num_threads(const ExecutionContext& context) {
  return context.threads == nullptr ? 1 : context.threads->num_threads();
}

// body(begin, end) over [0, rows), in one piece while a thread would get less than `row_work` * rows < kWorthAThread.
// Work is counted in elements touched, or about a quarter of a nanosecond each.
inline constexpr std::int64_t kWorthAThread = 8192;
template <typename Body>
void for_rows(const ExecutionContext& context, std::int64_t rows, std::int64_t row_work, Body&& body) {
  const std::int64_t most = rows * row_work / kWorthAThread;
  std::int64_t parts = num_threads(context);
  if (parts > most) parts = most;
  if (parts > rows) parts = rows;
  if (parts <= 1) {
    if (rows > 0) body(std::int64_t{0}, rows);
    return;
  }
  run_parts(context, parts, [&](std::int64_t part) { body(rows * part / parts, rows * (part + 1) / parts); });
}

// out rows n in [n_begin, n_end) of x W^T.
struct Product {
  const LinearWeight* weight = nullptr;
  std::int64_t n_begin = 0, n_end = 0;
  InputRows x;  // prepared
  OutputRows out;
  std::int64_t num_rows = 0;
  MatmulStore how;
};

// All products, in pieces of equal work. Products must not share outputs.
void run_products(const ExecutionContext& context, std::span<const Product> products, const Tiles& tiles);

// Prepares rows of x (stride in_features) for weights that want them so.
void prepare_rows(const ExecutionContext& context, const float* x, std::int64_t rows, std::int64_t in_features,
                  bool quantise, ColumnOrder order, float* out);

// Whether rows of `in_features` can be read where they stand: nothing to quantise, reorder or pad.
inline bool reads_in_place(std::int64_t in_features, bool quantise, ColumnOrder order) {
  return !quantise && order == ColumnOrder::kNatural && prepared_columns(in_features) == in_features;
}

}  // namespace fathom::simd
