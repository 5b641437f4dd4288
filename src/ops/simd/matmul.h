// out = x W^T with W in the checkpoint's bits: the one matrix product of the `cpu` variants.
//
// A sum over K runs over vector lanes (see vectors-inl.h) in ascending steps of two vectors, one accumulator a
// lane, one fused multiply-add a column. One row decodes weights in registers; more rows decode a tile of weight
// rows to fp32 once and use it for all. Both do the same operations in the same order for each output: a row's
// bits do not depend on the rows around it, on tiles, or on threads.
//
// FP4 codes come out of a byte in pairs, so x has to stand in the same order: prepare_rows writes it.
#pragma once

#include <cstdint>

#include "tensor/weights.h"

namespace fathom::simd {

// Order and width of a prepared row: columns padded with zeros to a multiple of 32.
enum class ColumnOrder : std::uint8_t {
  kNatural,
  kPairs,  // within each 2 L columns the even ones, then the odd ones: kMxfp4 and kNvfp4
};
ColumnOrder column_order(WeightFormat format);
constexpr std::int64_t prepared_columns(std::int64_t in_features) { return (in_features + 31) / 32 * 32; }

// Rows at base + index[i] * stride, or base + i * stride without an index. Strides in elements.
struct InputRows {
  const float* base = nullptr;
  std::int64_t stride = 0;
  const std::int32_t* index = nullptr;
  const float* row(std::int64_t i) const { return base + (index != nullptr ? index[i] : i) * stride; }
};
struct OutputRows {
  float* base = nullptr;
  std::int64_t stride = 0;
  const std::int32_t* index = nullptr;
  float* row(std::int64_t i) const { return base + (index != nullptr ? index[i] : i) * stride; }
};

// One row as the products read it: AQ in blocks of 128 if `quantise`, `order`, zero padding.
// `out` [prepared_columns(in_features)] f32, never an alias of x.
void prepare_row(const float* x, std::int64_t in_features, bool quantise, ColumnOrder order, float* out);

struct MatmulStore {
  bool round = false;       // to bf16
  bool accumulate = false;  // add the (rounded) product to what stands there
};

// Weight rows a tile holds and the fp32 scratch one thread needs for it.
std::int64_t tile_floats(std::int64_t in_features);

// out[i][n] for i < num_rows and n in [n_begin, n_end): out rows point at column 0 of the weight.
// x rows are prepared in column_order(weight.format). `tile` holds tile_floats(in_features) floats, 64-byte
// aligned; unused for one row.
void matmul(const LinearWeight& weight, std::int64_t n_begin, std::int64_t n_end, const InputRows& x,
            const OutputRows& out, std::int64_t num_rows, MatmulStore store, float* tile);

// Row n as fp32 in the weight's column order, padded with zeros: what a tile holds. For tests.
void decode_weight_row(const LinearWeight& weight, std::int64_t n, float* out);

}  // namespace fathom::simd
