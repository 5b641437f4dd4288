// The operations, by the names users see in reports and in --variant operation=name.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace fathom {

enum class OpKind : std::uint8_t {
  kEmbed,
  kHyperConnection,
  kHcHead,
  kLinear,
  kRmsNorm,
  kRopeRows,
  kQNormRope,
  kKvWrite,
  kCompressKv,
  kIndexQuery,
  kAttentionRows,
  kIndexScores,
  kSelectTopk,
  kSparseAttention,
  kAttentionOutput,
  kMoeRoute,
  kMoeExperts,
  kLmHead,
  kDraftInput,
  kStreamMean,
  kMarkovHead,
  kSample,
  kAllReduce,
};
inline constexpr int kNumOpKinds = 23;

// "sparse_attention": also the name of its folder.
std::string_view op_name(OpKind kind);
std::optional<OpKind> parse_op_name(std::string_view name);

}  // namespace fathom
