#include <algorithm>
#include <array>

#include "ops/attention_output/attention_output.h"
#include "ops/simd/products.h"

namespace fathom {
namespace {

constexpr std::size_t kMostGroups = 64;

struct Widths {
  explicit Widths(const AttentionOutputDesc& desc)
      : o(desc.num_groups * desc.group_in),
        z(desc.num_groups * desc.o_lora_rank),
        group_prepared(simd::prepared_columns(desc.group_in)),
        z_prepared(simd::prepared_columns(z)) {}
  std::int64_t o, z, group_prepared, z_prepared;
};

}  // namespace

std::int64_t attention_output_cpu_workspace(const AttentionOutputDesc& desc, const DeviceInfo& device) {
  const std::int64_t rows = std::min(desc.max_tokens, simd::kRowChunk);
  const Widths widths(desc);
  return simd::Scratch::aligned_bytes<float>(rows * desc.num_groups * widths.group_prepared) +
         simd::Scratch::aligned_bytes<float>(rows * widths.z) +
         simd::Scratch::aligned_bytes<float>(rows * widths.z_prepared) +
         simd::tiles_bytes(device, std::max(desc.group_in, widths.z));
}

void attention_output_cpu(ExecutionContext& context, const AttentionOutputPlan& plan, const AttentionOutputArgs& args) {
  const AttentionOutputDesc& desc = plan.desc;
  const Widths widths(desc);
  const std::int64_t tokens = args.o.shape[0];
  const bool round = desc.numerics.rounds_to_bf16();
  FATHOM_CHECK(static_cast<std::size_t>(desc.num_groups) <= kMostGroups, "o_groups is small");
  const simd::ColumnOrder order_a = simd::column_order(args.wo_a->format);
  const simd::ColumnOrder order_b = simd::column_order(args.wo_b->format);
  const bool quantise_b = desc.numerics.quantise_linear_input && args.wo_b->quantises_input();
  const bool in_place = simd::reads_in_place(desc.group_in, false, order_a);

  simd::Scratch scratch(context);
  const std::int64_t most_rows = std::min(tokens, simd::kRowChunk);
  float* grouped = scratch.take<float>(most_rows * desc.num_groups * widths.group_prepared);
  float* z = scratch.take<float>(most_rows * widths.z);
  float* z_prepared = scratch.take<float>(most_rows * widths.z_prepared);
  const simd::Tiles tiles = simd::take_tiles(context, scratch, std::max(desc.group_in, widths.z));

  for (std::int64_t begin = 0; begin < tokens; begin += simd::kRowChunk) {
    const std::int64_t rows = std::min(tokens - begin, simd::kRowChunk);
    const float* o = args.o.as<float>() + begin * widths.o;
    if (!in_place) {  // each (row, group) is one prepared row
      simd::prepare_rows(context, o, rows * desc.num_groups, desc.group_in, false, order_a, grouped);
      o = grouped;
    }
    const std::int64_t group_stride = in_place ? desc.group_in : widths.group_prepared;
    std::array<simd::Product, kMostGroups> groups;
    for (std::int64_t g = 0; g < desc.num_groups; ++g) {
      // The product writes columns [g * rank, (g + 1) * rank) of the whole weight: z's own columns.
      groups[static_cast<std::size_t>(g)] = {.weight = args.wo_a,
                                             .n_begin = g * desc.o_lora_rank,
                                             .n_end = (g + 1) * desc.o_lora_rank,
                                             .x = {o + g * group_stride, desc.num_groups * group_stride, nullptr},
                                             .out = {z, widths.z, nullptr},
                                             .num_rows = rows,
                                             .how = {.round = round}};
    }
    simd::run_products(context, std::span(groups).first(static_cast<std::size_t>(desc.num_groups)), tiles);
    const float* x = z;
    if (!simd::reads_in_place(widths.z, quantise_b, order_b)) {
      simd::prepare_rows(context, z, rows, widths.z, quantise_b, order_b, z_prepared);
      x = z_prepared;
    }
    const std::array products = {
        simd::Product{.weight = args.wo_b,
                      .n_begin = 0,
                      .n_end = desc.hidden,
                      .x = {x, widths.z_prepared, nullptr},
                      .out = {args.out.as<float>() + begin * desc.hidden, desc.hidden, nullptr},
                      .num_rows = rows,
                      .how = {.round = round}}};
    simd::run_products(context, products, tiles);
  }
}

}  // namespace fathom
