#include "ops/embed/embed.h"

#include <gtest/gtest.h>

#include "ops/testing/run.h"
#include "ops/testing/tensors.h"
#include "tensor/scalar_formats.h"

namespace fathom::testing {
namespace {

std::vector<float> run(const std::string& variant, int threads, const EmbedDesc& desc, const Tensor& ids,
                       const View& table) {
  const EmbedPlan plan = plan_embed(desc, {});
  const Tensor out = poisoned(DType::kF32, {ids.view().shape[0], desc.hc_mult, desc.hidden});
  const EmbedArgs args{ids.view(), table, out.view()};
  run_with(OpKind::kEmbed, variant, threads, plan.workspace_bytes,
           [&](ExecutionContext& context) { run_embed(context, plan, args); });
  return out.to_vector();
}

TEST(Embed, EveryStreamIsTheTokensRow) {
  Random random;
  constexpr std::int64_t kVocab = 11;
  for (std::int64_t hidden : {1, 7, 64, 131}) {
    for (std::int32_t hc : {1, 4}) {
      const Tensor table = random_bf16(random, {kVocab, hidden}, 1.0f, 0.0f, 1);
      const std::vector<std::int32_t> tokens = {10, 0, 3, 3, 10, 7, 1};
      const Tensor ids = make_i32({7}, tokens);
      for (const std::string& variant : cpu_variants(OpKind::kEmbed)) {
        SCOPED_TRACE(variant);
        const std::vector<float> out = run(variant, 2, {hidden, hc}, ids, table.view());
        std::vector<float> expected;
        for (std::int32_t token : tokens) {
          for (std::int32_t j = 0; j < hc; ++j) {
            for (std::int64_t i = 0; i < hidden; ++i) {
              Bf16 bits;
              std::memcpy(&bits, table.view().data + 2 * (token * hidden + i), 2);
              expected.push_back(bf16_to_float(bits));
            }
          }
        }
        EXPECT_TRUE(same_bits(out, expected)) << hidden;
      }
    }
  }
}

TEST(Embed, RowInvariant) {
  Random random;
  const Tensor table = random_bf16(random, {50, 37});
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 65; ++i) tokens.push_back(static_cast<std::int32_t>(random.integer(0, 50)));
  const Tensor ids = make_i32({65}, tokens);
  expect_row_invariance(OpKind::kEmbed, 65,
                        [&](const std::string& variant, int threads, std::span<const std::int32_t> rows) {
                          return run(variant, threads, {37, 4}, gather_rows(ids, rows), table.view());
                        });
}

}  // namespace
}  // namespace fathom::testing
