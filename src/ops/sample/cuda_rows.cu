#include <cfloat>

#include "ops/cuda/device_rows.cuh"
#include "ops/sample/device_sample.h"

namespace fathom {
namespace {

constexpr int kThreads = 1024;

// Words of Philox4x32-10: ops/sample/philox.h has the host's form.
__device__ __forceinline__ std::uint32_t noise_word(std::uint64_t seed, std::uint32_t choice, std::int64_t position,
                                                    std::uint32_t token) {
  std::uint32_t c0 = token, c1 = static_cast<std::uint32_t>(position),
                c2 = static_cast<std::uint32_t>(static_cast<std::uint64_t>(position) >> 32), c3 = choice;
  std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const std::uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0;
}

// A first guess in fp32; near 1 the logarithm is taken of what is missing to 1.
__device__ __forceinline__ float gumbel_f32(std::uint32_t word) {
  const float e = word >= 0x80000000u ? -log1pf(-(static_cast<float>(~word) + 0.5f) * 0x1p-32f)
                                      : -logf((static_cast<float>(word) + 0.5f) * 0x1p-32f);
  return -logf(e);
}
__device__ __forceinline__ double gumbel_f64(std::uint32_t word) {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return -log(-log(u));
}
// The guess is within this of the fp64 score; only those this near the best guess are scored exactly.
constexpr float kGuessMargin = 1e-3f;

__device__ __forceinline__ float readable(float logit) { return isnan(logit) ? -INFINITY : fminf(logit, FLT_MAX); }

struct Best {
  double score;
  int id;
};
__device__ __forceinline__ Best better(Best a, Best b) {
  if (b.id < 0) return a;
  if (a.id < 0) return b;
  return b.score > a.score || (b.score == a.score && b.id < a.id) ? b : a;
}
__device__ Best block_best(Best value, Best* shared) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    value = better(value,
                   {__shfl_xor_sync(0xffffffffu, value.score, offset), __shfl_xor_sync(0xffffffffu, value.id, offset)});
  }
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = value;
  __syncthreads();
  Best best = shared[0];
  for (int w = 1; w < kThreads / 32; ++w) best = better(best, shared[w]);
  return best;
}

__global__ void __launch_bounds__(kThreads)
    sample_rows(const float* logits, const float* temperature, const std::uint64_t* seed, const std::uint32_t* choice,
                const std::int64_t* position, std::int32_t* tokens, float* logprobs, int vocab) {
  __shared__ Best shared[kThreads / 32];
  __shared__ double sums[kThreads / 32];
  const int row = static_cast<int>(blockIdx.x), tid = static_cast<int>(threadIdx.x);
  const float* v = logits + static_cast<std::int64_t>(row) * vocab;
  Best highest{-INFINITY, -1};
  for (int id = tid; id < vocab; id += kThreads) {
    const float value = readable(v[id]);
    if (value > -INFINITY) highest = better(highest, {static_cast<double>(value), id});
  }
  highest = block_best(highest, shared);
  if (highest.id < 0) {
    if (tid == 0) tokens[row] = -1, logprobs[row] = 0.0f;
    return;
  }
  const auto maximum = static_cast<float>(highest.score);
  Best winner = highest;
  const float t = temperature[row];
  if (t > 0.0f) {
    Best guess{-INFINITY, -1};
    for (int id = tid; id < vocab; id += kThreads) {
      const float value = readable(v[id]);
      if (value == -INFINITY) continue;
      const float s = __fdiv_rn(value - maximum, t);
      guess = better(guess, {static_cast<double>(s + gumbel_f32(noise_word(seed[row], choice[row], position[row],
                                                                           static_cast<std::uint32_t>(id)))),
                             id});
    }
    const auto threshold = static_cast<float>(block_best(guess, shared).score) - kGuessMargin;
    Best exact{-INFINITY, -1};
    for (int id = tid; id < vocab; id += kThreads) {
      const float value = readable(v[id]);
      if (value == -INFINITY) continue;
      const float s = __fdiv_rn(value - maximum, t);
      const std::uint32_t word = noise_word(seed[row], choice[row], position[row], static_cast<std::uint32_t>(id));
      if (s + gumbel_f32(word) < threshold) continue;
      exact = better(exact, {static_cast<double>(s) + gumbel_f64(word), id});
    }
    winner = block_best(exact, shared);
  }
  double sum = 0.0;
  for (int id = tid; id < vocab; id += kThreads) sum += static_cast<double>(expf(readable(v[id]) - maximum));
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if ((tid & 31) == 0) sums[tid >> 5] = sum;
  __syncthreads();
  if (tid != 0) return;
  double total = 0.0;
  for (int w = 0; w < kThreads / 32; ++w) total += sums[w];
  tokens[row] = winner.id;
  logprobs[row] =
      static_cast<float>(static_cast<double>(readable(v[winner.id])) - (static_cast<double>(maximum) + log(total)));
}

}  // namespace

void sample_rows_cuda(ExecutionContext& context, const DeviceSampleArgs& args) {
  const std::int64_t rows = args.logits.shape[0];
  if (rows == 0) return;
  sample_rows<<<static_cast<unsigned>(rows), kThreads, 0, cuda::stream_of(context)>>>(
      args.logits.as<float>(), args.temperature.as<float>(), args.seed.as<std::uint64_t>(),
      args.choice.as<std::uint32_t>(), args.position.as<std::int64_t>(), args.tokens.as<std::int32_t>(),
      args.logprobs.as<float>(), static_cast<int>(args.logits.shape[1]));
}

}  // namespace fathom
