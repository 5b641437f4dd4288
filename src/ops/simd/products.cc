#include "ops/simd/products.h"

#include <algorithm>

namespace fathom::simd {
namespace {

constexpr std::int64_t kColumnGrain = 16;  // a thread's piece starts at a multiple of this

std::int64_t columns_of(const Product& product) { return product.n_end - product.n_begin; }

// Decoding a weight costs about as much as multiplying it by three rows.
std::int64_t work_of(const Product& product) {
  return columns_of(product) * product.weight->in_features * (product.num_rows + (product.num_rows > 1 ? 3 : 0));
}

// The column of a product where `work` of it is done.
std::int64_t column_at(const Product& product, std::int64_t work) {
  const std::int64_t total = work_of(product);
  if (work <= 0) return product.n_begin;
  if (work >= total) return product.n_end;
  const double share = static_cast<double>(work) / static_cast<double>(total);
  const auto columns = static_cast<std::int64_t>(share * static_cast<double>(columns_of(product)));
  return std::min(product.n_end, product.n_begin + columns / kColumnGrain * kColumnGrain);
}

}  // namespace

std::int64_t tiles_bytes(const DeviceInfo& device, std::int64_t max_in_features) {
  return std::max(device.num_threads, 1) * Scratch::aligned_bytes<float>(tile_floats(max_in_features));
}

Tiles take_tiles(const ExecutionContext& context, Scratch& scratch, std::int64_t max_in_features) {
  Tiles tiles;
  tiles.stride = Scratch::aligned_bytes<float>(tile_floats(max_in_features)) / static_cast<std::int64_t>(sizeof(float));
  const std::int64_t fits = scratch.left_bytes() / (tiles.stride * static_cast<std::int64_t>(sizeof(float)));
  tiles.count = static_cast<std::int32_t>(std::min<std::int64_t>(fits, num_threads(context)));
  FATHOM_CHECK(tiles.count >= 1, "scratch holds at least one thread's tile");
  tiles.base = scratch.take<float>(tiles.count * tiles.stride);
  return tiles;
}

void run_products(const ExecutionContext& context, std::span<const Product> products, const Tiles& tiles) {
  std::int64_t total = 0;
  for (const Product& product : products) total += work_of(product);
  const std::int64_t parts = std::clamp<std::int64_t>(total / (4 * kWorthAThread), 1, tiles.count);
  const auto run = [&](std::int64_t part) {
    const std::int64_t begin = total * part / parts;
    const std::int64_t end = total * (part + 1) / parts;
    std::int64_t before = 0;
    for (const Product& product : products) {
      const std::int64_t n_begin = column_at(product, begin - before);
      const std::int64_t n_end = column_at(product, end - before);
      matmul(*product.weight, n_begin, n_end, product.x, product.out, product.num_rows, product.how,
             tiles.base + part * tiles.stride);
      before += work_of(product);
    }
  };
  if (parts == 1) return run(0);
  run_parts(context, parts, run);
}

void prepare_rows(const ExecutionContext& context, const float* x, std::int64_t rows, std::int64_t in_features,
                  bool quantise, ColumnOrder order, float* out) {
  const std::int64_t stride = prepared_columns(in_features);
  for_rows(context, rows, in_features, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      prepare_row(x + i * in_features, in_features, quantise, order, out + i * stride);
    }
  });
}

}  // namespace fathom::simd
