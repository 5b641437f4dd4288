#include "ops/moe_experts/device_experts.h"

#include <cstring>
#include <string>

#include "base/units.h"
#include "ops/moe_experts/code_layout.h"

namespace fathom {
namespace {

// The kernels multiply codes by 2^-30 times the block's scale in bf16 and undo the 2^-30 at the end.
constexpr int kLargestE8m0 = 158;

std::int64_t scale_bytes_of(const LinearWeight& weight) { return weight.scale.num_bytes(); }

Status check_scales(const LinearWeight& weight) {
  if (weight.format != WeightFormat::kMxfp4) return {};
  const auto* codes = reinterpret_cast<const std::uint8_t*>(weight.scale.data);
  for (std::int64_t i = 0; i < weight.scale.num_bytes(); ++i) {
    if (codes[i] > kLargestE8m0) {
      return invalid_argument("an expert's block scale is 2^" + std::to_string(codes[i] - 127) +
                              "; expected at most 2^31: the checkpoint is damaged or of another kind");
    }
  }
  return {};
}

}  // namespace

Result<DeviceExperts> plan_device_experts(std::span<const ExpertWeights> experts) {
  FATHOM_CHECK(!experts.empty(), "a layer has experts");
  DeviceExperts layout;
  layout.format = experts.front().w1.format;
  layout.num_experts = static_cast<std::int32_t>(experts.size());
  if (layout.format != WeightFormat::kMxfp4 && layout.format != WeightFormat::kNvfp4) {
    return invalid_argument("experts are neither MXFP4 nor NVFP4: the CUDA backend has no kernels for them");
  }
  std::int64_t offset = 0;
  const auto place = [&](DeviceExperts::Matrix& matrix, const LinearWeight& weight) {
    matrix.n = static_cast<std::int32_t>(weight.out_features);
    matrix.k = static_cast<std::int32_t>(weight.in_features);
    matrix.values_offset = offset;
    offset = round_up(offset + weight.values.num_bytes(), 128);
    matrix.scale_offset = offset;
    offset = round_up(offset + scale_bytes_of(weight), 128);
  };
  place(layout.w1, experts.front().w1);
  place(layout.w3, experts.front().w3);
  place(layout.w2, experts.front().w2);
  layout.scale_2_offset = offset;
  layout.stride_bytes = round_up(offset + 12, 256);
  return layout;
}

Status pack_device_experts(const DeviceExperts& layout, std::span<const ExpertWeights> experts,
                           std::span<std::byte> slab) {
  for (std::size_t e = 0; e < experts.size(); ++e) {
    std::byte* expert = slab.data() + static_cast<std::int64_t>(e) * layout.stride_bytes;
    float scale_2[3];
    int i = 0;
    for (const auto& [matrix, weight] : {std::pair{&layout.w1, &experts[e].w1}, std::pair{&layout.w3, &experts[e].w3},
                                         std::pair{&layout.w2, &experts[e].w2}}) {
      if (weight->format != layout.format || weight->out_features != matrix->n || weight->in_features != matrix->k) {
        return invalid_argument("expert " + std::to_string(e) + " differs in format or shape from expert 0");
      }
      FATHOM_RETURN_IF_ERROR(check_scales(*weight));
      const auto* codes = reinterpret_cast<const std::uint32_t*>(weight->values.data);
      auto* words = reinterpret_cast<std::uint32_t*>(expert + matrix->values_offset);
      for (std::int64_t w = 0; w < weight->values.num_bytes() / 4; ++w) words[w] = device_codes(codes[w]);
      std::memcpy(expert + matrix->scale_offset, weight->scale.data, static_cast<std::size_t>(scale_bytes_of(*weight)));
      scale_2[i++] = weight->format == WeightFormat::kNvfp4 ? weight->scale_2 : 1.0f;
    }
    std::memcpy(expert + layout.scale_2_offset, scale_2, sizeof(scale_2));
  }
  return {};
}

}  // namespace fathom
