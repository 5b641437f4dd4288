#include <algorithm>
#include <array>

#include "ops/linear/linear.h"
#include "ops/simd/products.h"

namespace fathom {
namespace {

using simd::ColumnOrder;

// The forms in which weights of one group may want x: quantised or not, natural or in pairs.
struct PreparedInputs {
  std::array<float*, 4> rows{};  // null: not prepared in this chunk

  static std::size_t form(bool quantise, ColumnOrder order) {
    return (quantise ? 1u : 0u) + (order == ColumnOrder::kPairs ? 2u : 0u);
  }
};
constexpr std::int64_t kMostForms = 3;  // quantised in pairs, quantised natural, plain natural
constexpr std::size_t kMostOutputs = 16;

}  // namespace

std::int64_t linear_cpu_workspace(const LinearDesc& desc, const DeviceInfo& device) {
  const std::int64_t rows = std::min(desc.max_tokens, simd::kRowChunk);
  const std::int64_t width = simd::prepared_columns(desc.in_features);
  return kMostForms * simd::Scratch::aligned_bytes<float>(rows * width) + simd::tiles_bytes(device, desc.in_features);
}

void linear_cpu(ExecutionContext& context, const LinearPlan& plan, const LinearArgs& args) {
  const LinearDesc& desc = plan.desc;
  const std::int64_t in_features = desc.in_features;
  const std::int64_t width = simd::prepared_columns(in_features);
  const std::int64_t tokens = args.x.shape[0];
  FATHOM_CHECK(args.outputs.size() <= kMostOutputs, "a group of linears is a handful");
  simd::Scratch scratch(context);
  std::array<float*, kMostForms> buffers;
  for (float*& buffer : buffers) {
    buffer = scratch.take<float>(std::min(std::min(desc.max_tokens, simd::kRowChunk), tokens) * width);
  }
  const simd::Tiles tiles = simd::take_tiles(context, scratch, in_features);

  for (std::int64_t begin = 0; begin < tokens; begin += simd::kRowChunk) {
    const std::int64_t rows = std::min(tokens - begin, simd::kRowChunk);
    const float* x = args.x.as<float>() + begin * in_features;
    PreparedInputs prepared;
    std::size_t next_buffer = 0;
    std::array<simd::Product, kMostOutputs> products;
    for (std::size_t i = 0; i < args.outputs.size(); ++i) {
      const LinearOutput& output = args.outputs[i];
      const LinearWeight& weight = *output.weight;
      const bool quantise = desc.numerics.quantise_linear_input && weight.quantises_input();
      const ColumnOrder order = simd::column_order(weight.format);
      const float* from = x;
      if (!simd::reads_in_place(in_features, quantise, order)) {
        float*& rows_of_form = prepared.rows[PreparedInputs::form(quantise, order)];
        if (rows_of_form == nullptr) {
          rows_of_form = buffers[next_buffer++];
          simd::prepare_rows(context, x, rows, in_features, quantise, order, rows_of_form);
        }
        from = rows_of_form;
      }
      const std::int64_t n = weight.out_features;
      products[i] = {.weight = &weight,
                     .n_begin = 0,
                     .n_end = n,
                     .x = {from, from == x ? in_features : width, nullptr},
                     .out = {output.out.as<float>() + begin * n, n, nullptr},
                     .num_rows = rows,
                     .how = {.round = desc.numerics.rounds_to_bf16() && !output.keep_fp32}};
    }
    simd::run_products(context, std::span(products).first(args.outputs.size()), tiles);
  }
}

}  // namespace fathom
