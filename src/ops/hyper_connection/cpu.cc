#include <algorithm>
#include <cstring>

#include "ops/hyper_connection/hyper_connection.h"
#include "ops/hyper_connection/stream_weights.h"
#include "ops/simd/products.h"
#include "ops/simd/rows.h"

namespace fathom {
namespace {

constexpr std::int32_t kMostStreams = 8;

float element(const View& view, std::int64_t i) {
  float value;
  std::memcpy(&value, view.data + 4 * i, sizeof value);
  return value;
}

// Weights of one token from its statistics m, then the collapsed and normed row.
void begin_sublayer(const HyperConnectionDesc& desc, const HyperConnectionArgs& args, const float* streams,
                    const float* m, std::int64_t t) {
  const std::int64_t hc = desc.hc_mult;
  const bool round = desc.numerics.rounds_to_bf16();
  const auto mixed = [&](std::int64_t i, std::int64_t part) {
    return m[i] * element(args.next.scale, part) + element(args.next.base, i);
  };
  float pre[kMostStreams];
  float* post = args.next_post.as<float>() + t * hc;
  float* comb = args.next_comb.as<float>() + t * hc * hc;
  for (std::int64_t j = 0; j < hc; ++j) {
    pre[j] = mix_sigmoid(mixed(j, 0)) + desc.hc_eps;
    post[j] = 2.0f * mix_sigmoid(mixed(hc + j, 1));
  }
  for (std::int64_t i = 0; i < hc * hc; ++i) comb[i] = mixed(2 * hc + i, 2);
  sinkhorn_cpu(comb, desc.hc_mult, desc.sinkhorn_iters, desc.hc_eps);
  float* normed = args.normed.as<float>() + t * desc.hidden;
  simd::collapse_streams_row(streams, pre, hc, desc.hidden, round, normed);
  simd::rms_norm_row(normed, args.norm_weight.data, desc.hidden, desc.rms_norm_eps, round, normed);
}

}  // namespace

std::int64_t hyper_connection_cpu_workspace(const HyperConnectionDesc& desc, const DeviceInfo& device) {
  const std::int64_t width = simd::prepared_columns(desc.hc_mult * desc.hidden);
  const std::int64_t padded = width == desc.hc_mult * desc.hidden ? 0 : simd::kRowChunk * width;
  return simd::Scratch::aligned_bytes<float>(padded) +
         simd::Scratch::aligned_bytes<float>(simd::kRowChunk * desc.hc_mult * (desc.hc_mult + 2)) +
         simd::tiles_bytes(device, width);
}

void hyper_connection_cpu(ExecutionContext& context, const HyperConnectionPlan& plan, const HyperConnectionArgs& args) {
  const HyperConnectionDesc& desc = plan.desc;
  const std::int64_t hc = desc.hc_mult;
  const std::int64_t hidden = desc.hidden;
  const std::int64_t width = hc * hidden;
  const std::int64_t outputs = hc * (hc + 2);
  const std::int64_t tokens = args.streams.shape[0];
  const bool has_post = !args.sublayer_out.empty();
  FATHOM_CHECK(hc <= kMostStreams, "a handful of residual streams");

  const float* streams = args.streams.as<float>();
  if (has_post) {
    float* next = args.next_streams.as<float>();
    const float* h = streams;
    simd::for_rows(context, tokens, 2 * width, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        simd::mix_streams_row(h + t * width, args.sublayer_out.as<float>() + t * hidden, args.post.as<float>() + t * hc,
                              args.comb.as<float>() + t * hc * hc, hc, hidden, desc.numerics.rounds_to_bf16(),
                              next + t * width);
      }
    });
    streams = next;
  }
  if (args.next.fn.empty()) return;

  simd::Scratch scratch(context);
  const std::int64_t padded_width = simd::prepared_columns(width);
  const std::int64_t most_rows = std::min(tokens, simd::kRowChunk);
  float* padded = padded_width == width ? nullptr : scratch.take<float>(most_rows * padded_width);
  float* m = scratch.take<float>(most_rows * outputs);
  const simd::Tiles tiles = simd::take_tiles(context, scratch, width);
  for (std::int64_t begin = 0; begin < tokens; begin += simd::kRowChunk) {
    const std::int64_t rows = std::min(tokens - begin, simd::kRowChunk);
    const float* v = streams + begin * width;
    mix_statistics_cpu(context, v, nullptr, rows, width, args.next.fn, desc.rms_norm_eps, padded, m, tiles);
    // Sinkhorn takes as long as about two thousand elements.
    simd::for_rows(context, rows, width + 2048, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r) {
        begin_sublayer(desc, args, v + r * width, m + r * outputs, begin + r);
      }
    });
  }
}

}  // namespace fathom
