#include "ops/stream_mean/stream_mean.h"

#include <gtest/gtest.h>

#include "ops/testing/run.h"
#include "ops/testing/tensors.h"

namespace fathom::testing {
namespace {

// Slot `slot` of three; the others' columns are left alone.
std::vector<float> run(const std::string& variant, int threads, const StreamMeanDesc& desc, const Tensor& streams,
                       std::int32_t slot) {
  const StreamMeanPlan plan = plan_stream_mean(desc, {});
  const std::int64_t rows = streams.view().shape[0];
  const Tensor out = make_f32({rows, desc.num_slots * desc.hidden},
                              std::vector<float>(static_cast<std::size_t>(rows * desc.num_slots * desc.hidden), 9.0f));
  const StreamMeanArgs args{streams.view(), slot, out.view()};
  run_with(OpKind::kStreamMean, variant, threads, plan.workspace_bytes,
           [&](ExecutionContext& context) { run_stream_mean(context, plan, args); });
  return out.to_vector();
}

TEST(StreamMean, ByHand) {
  // Two rows of four streams of two channels.
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7, 8, -1, 0.5, 0, 0.25, 2, 0, 1, -1};
  const Tensor streams = make_f32({2, 4, 2}, values);
  for (const std::string& variant : cpu_variants(OpKind::kStreamMean)) {
    SCOPED_TRACE(variant);
    const std::vector<float> out = run(variant, 2, {2, 4, 3, Numerics::plain()}, streams, 1);
    EXPECT_EQ(out, (std::vector<float>{9, 9, 4, 5, 9, 9, 9, 9, 0.5, -0.0625, 9, 9}));
  }
}

TEST(StreamMean, ServeRoundsOnce) {
  // 1 + 2^-8 is not a bf16 number: its neighbours are 1 and 1 + 2^-7, and the tie goes to the even one.
  const Tensor streams = make_f32({1, 2, 1}, std::vector<float>{1.0f, 1.0078125f});
  for (const std::string& variant : cpu_variants(OpKind::kStreamMean)) {
    EXPECT_EQ(run(variant, 0, {1, 2, 1, Numerics::plain()}, streams, 0)[0], 1.00390625f) << variant;
    EXPECT_EQ(run(variant, 0, {1, 2, 1, Numerics::serve()}, streams, 0)[0], 1.0f) << variant;
  }
}

TEST(StreamMean, VariantsAgreeAndAreRowInvariant) {
  Random random;
  for (const Numerics& numerics : kAllNumerics) {
    for (std::int64_t hidden : {1, 37, 256}) {
      const Tensor streams = random_bf16_valued(random, {31, 4, hidden}, 3.0f);
      const RowRunner rows = [&](const std::string& variant, int threads, std::span<const std::int32_t> chosen) {
        return run(variant, threads, {hidden, 4, 3, numerics}, gather_rows(streams, chosen), 2);
      };
      expect_matches_reference(OpKind::kStreamMean, 31, rows,
                               [](std::span<const float> a, std::span<const float> b) { return same_bits(a, b); });
      expect_row_invariance(OpKind::kStreamMean, 31, rows);
    }
  }
}

}  // namespace
}  // namespace fathom::testing
