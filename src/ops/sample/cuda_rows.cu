// One block draws one row: passes over the vocabulary, sums of integers only, every search by counting.
#include "ops/cuda/device_rows.cuh"
#include "ops/sample/noise.cuh"
#include "ops/sample/nucleus_weight.h"
#include "ops/sample/sample_rows.h"

namespace fathom::cuda {
namespace {

__device__ __forceinline__ std::uint32_t noise_word(const SampleRow& row, std::uint32_t token) {
  return RowNoise(row).word(token);
}

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 256;

// A first guess in fp32; near 1 the logarithm is taken of what is missing to 1.
__device__ __forceinline__ float gumbel_f32(std::uint32_t word) {
  const float e = word >= 0x80000000u ? -log1pf(-(static_cast<float>(~word) + 0.5f) * 0x1p-32f)
                                      : -logf((static_cast<float>(word) + 0.5f) * 0x1p-32f);
  return -logf(e);
}
struct Best {
  double score;
  int id;
};
__device__ __forceinline__ Best better(Best a, Best b) {
  if (b.id < 0) return a;
  if (a.id < 0) return b;
  return b.score > a.score || (b.score == a.score && b.id < a.id) ? b : a;
}

struct Shared {
  Best best[kWarps];
  double sums[kWarps];
  std::uint64_t counts[3][kWarps];
  std::uint32_t lows[kWarps], highs[kWarps];
  unsigned long long bins[kBins];
};

__device__ Best block_best(Best value, Shared& shared) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    value = better(value,
                   {__shfl_xor_sync(0xffffffffu, value.score, offset), __shfl_xor_sync(0xffffffffu, value.id, offset)});
  }
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared.best[threadIdx.x >> 5] = value;
  __syncthreads();
  Best best = shared.best[0];
  for (int w = 1; w < kWarps; ++w) best = better(best, shared.best[w]);
  return best;
}

struct Three {
  std::uint64_t v[3];
};
__device__ Three block_sums(Three value, Shared& shared) {
#pragma unroll
  for (int i = 0; i < 3; ++i) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) value.v[i] += __shfl_xor_sync(0xffffffffu, value.v[i], offset);
  }
  __syncthreads();
  if ((threadIdx.x & 31) == 0) {
    for (int i = 0; i < 3; ++i) shared.counts[i][threadIdx.x >> 5] = value.v[i];
  }
  __syncthreads();
  Three total{};
  for (int w = 0; w < kWarps; ++w) {
    for (int i = 0; i < 3; ++i) total.v[i] += shared.counts[i][w];
  }
  return total;
}

__device__ double block_sum(double value, Shared& shared) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(0xffffffffu, value, offset);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared.sums[threadIdx.x >> 5] = value;
  __syncthreads();
  double total = 0.0;
  for (int w = 0; w < kWarps; ++w) total += shared.sums[w];
  return total;
}

// The shortest run of what `before` leaves, highest first, ties to the lowest id, whose weights reach the goal:
// top_k counts to `goal`, top_p adds nucleus weights up to `share` of all.
template <bool kCount>
__device__ Cut find_cut(const float* scaled, int vocab, const Cut& before, std::uint64_t goal, float share,
                        Shared& shared) {
  const int tid = static_cast<int>(threadIdx.x);
  const auto weight = [](float s) { return kCount ? std::uint64_t{1} : nucleus_weight(s); };
  // Linear bins: they spread what a softmax weighs at all.
  const auto bin_of = [](float s) { return s > -31.5f ? static_cast<int>(-s * 8.0f) : kBins - 1; };
  __syncthreads();  // a cut before this one may have ended with reading the bins
  for (int b = tid; b < kBins; b += kThreads) shared.bins[b] = 0;
  __syncthreads();
  for (int id = tid; id < vocab; id += kThreads) {
    const float s = scaled[id];
    if (before.keeps(s, id)) atomicAdd(&shared.bins[bin_of(s)], static_cast<unsigned long long>(weight(s)));
  }
  __syncthreads();
  std::uint64_t total = 0;
  for (int b = 0; b < kBins; ++b) total += shared.bins[b];
  if (kCount && total <= goal) return before;
  const auto reached = [&](std::uint64_t run) { return kCount ? run >= goal : nucleus_reached(run, total, share); };
  std::uint64_t above = 0;
  int bin = 0;
  while (bin < kBins - 1 && !reached(above + shared.bins[bin])) above += shared.bins[bin++];

  std::uint32_t low = 0xffffffffu, high = 0;
  for (int id = tid; id < vocab; id += kThreads) {
    const float s = scaled[id];
    if (s == -INFINITY || bin_of(s) != bin || !before.keeps(s, id)) continue;
    low = min(low, key_of(s));
    high = max(high, key_of(s));
  }
  low = __reduce_min_sync(0xffffffffu, low);
  high = __reduce_max_sync(0xffffffffu, high);
  __syncthreads();
  if ((tid & 31) == 0) shared.lows[tid >> 5] = low, shared.highs[tid >> 5] = high;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) low = min(low, shared.lows[w]), high = max(high, shared.highs[w]);
  // The highest key in [low, high] from which upwards the goal is reached; four ranges a pass.
  while (low < high) {
    const std::uint64_t span = high - low;
    std::uint32_t at[3];
    for (int i = 0; i < 3; ++i) {
      const std::uint64_t step = span * static_cast<std::uint64_t>(i + 1) / 4;
      at[i] = low + static_cast<std::uint32_t>(step > 0 ? step : 1);
    }
    Three sums{};
    for (int id = tid; id < vocab; id += kThreads) {
      const float s = scaled[id];
      if (s == -INFINITY || bin_of(s) != bin || key_of(s) < at[0] || !before.keeps(s, id)) continue;
      const std::uint64_t w = weight(s);
      for (int i = 0; i < 3; ++i) sums.v[i] += key_of(s) >= at[i] ? w : 0;
    }
    sums = block_sums(sums, shared);
    if (reached(above + sums.v[2])) {
      low = at[2];
    } else if (reached(above + sums.v[1])) {
      low = at[1], high = at[2] - 1;
    } else if (reached(above + sums.v[0])) {
      low = at[0], high = at[1] - 1;
    } else {
      high = at[0] - 1;
    }
  }
  Three sums{};  // weight above the key, number at the key, weight at the key
  for (int id = tid; id < vocab; id += kThreads) {
    const float s = scaled[id];
    if (s == -INFINITY || bin_of(s) != bin || key_of(s) < low || !before.keeps(s, id)) continue;
    const bool tie = key_of(s) == low;
    sums.v[tie ? 2 : 0] += weight(s);
    sums.v[1] += tie ? 1 : 0;
  }
  sums = block_sums(sums, shared);
  above += sums.v[0];
  const std::uint64_t num_ties = sums.v[1], each = sums.v[2] / num_ties;
  std::uint64_t few = 1, many = num_ties;  // how many of the ties are needed
  while (few < many) {
    const std::uint64_t middle = (few + many) / 2;
    if (reached(above + middle * each)) {
      many = middle;
    } else {
      few = middle + 1;
    }
  }
  Cut cut;
  cut.key = low;
  cut.last_id = low == before.key ? before.last_id : vocab;
  if (few == num_ties) return cut;
  int first = 0, last = vocab - 1;  // the lowest id up to which that many ties lie
  while (first < last) {
    const int middle = (first + last) / 2;
    Three below{};
    for (int id = tid; id <= middle; id += kThreads) {
      const float s = scaled[id];
      below.v[0] += s != -INFINITY && key_of(s) == low && before.keeps(s, id) ? 1 : 0;
    }
    if (block_sums(below, shared).v[0] >= few) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  cut.last_id = first;
  return cut;
}

// values := readable logits after mask, biases and penalties.
__device__ void process(const float* logits, const SampleRow& row, const SampleRowsArgs& args, float* values,
                        int vocab) {
  const int tid = static_cast<int>(threadIdx.x);
  const std::uint32_t* mask = row.mask_begin >= 0 ? args.masks + row.mask_begin : nullptr;
  for (int id = tid; id < vocab; id += kThreads) {
    const bool allowed = mask == nullptr || (mask[id >> 5] >> (id & 31) & 1u) != 0;
    values[id] = allowed ? readable(logits[id]) : -INFINITY;
  }
  __syncthreads();
  // An id may be named twice: the first place adds all of them, in their order.
  const SampleBias* biases = args.biases + row.bias_begin;
  for (int i = tid; i < row.bias_count; i += kThreads) {
    const int id = biases[i].id;
    bool first = id >= 0 && id < vocab;
    for (int j = 0; j < i && first; ++j) first = biases[j].id != id;
    if (!first) continue;
    float value = values[id];
    for (int j = i; j < row.bias_count; ++j) {
      if (biases[j].id == id) value = __fadd_rn(value, biases[j].bias);
    }
    values[id] = value;
  }
  __syncthreads();
  const SampleHistory* histories = args.histories + row.history_begin;
  const float repetition = row.repetition_penalty;
  for (int i = tid; i < row.history_count; i += kThreads) {
    const int id = histories[i].id, count = histories[i].count;
    float value = values[id];
    if (repetition != 1.0f) value = value > 0 ? __fdiv_rn(value, repetition) : __fmul_rn(value, repetition);
    if (count > 0) {
      value = __fsub_rn(value,
                        __fadd_rn(__fmul_rn(row.frequency_penalty, static_cast<float>(count)), row.presence_penalty));
    }
    values[id] = readable(value);
  }
  __syncthreads();
}

// The token of `source` [vocab], processed logits: sample.cc's draw().
__device__ int draw(const float* source, float* values, const SampleRow& row, int vocab, Shared& shared) {
  const int tid = static_cast<int>(threadIdx.x);
  Best highest{-INFINITY, -1};
  for (int id = tid; id < vocab; id += kThreads) {
    const float value = readable(source[id]);
    if (value > -INFINITY) highest = better(highest, {static_cast<double>(value), id});
  }
  highest = block_best(highest, shared);
  const float t = row.temperature;
  if (highest.id < 0 || t == 0.0f) return highest.id;
  const auto maximum = static_cast<float>(highest.score);
  const auto scale = [&](float value) {
    return value == -INFINITY ? -INFINITY : __fdiv_rn(__fsub_rn(value, maximum), t);
  };
  Cut cut;
  const bool cuts = row.cuts();
  if (cuts) {
    for (int id = tid; id < vocab; id += kThreads) values[id] = scale(readable(source[id]));
    __syncthreads();
    if (row.top_k > 0) cut = find_cut<true>(values, vocab, cut, static_cast<std::uint64_t>(row.top_k), 0.0f, shared);
    if (row.top_p < 1.0f) cut = find_cut<false>(values, vocab, cut, 0, row.top_p, shared);
  }
  const float min_p = row.min_p, min_scaled = min_p > 0.0f ? logf(min_p) : -INFINITY;
  // The scaled logit, or -inf where the cuts leave it out.
  const auto scaled_of = [&](int id) {
    if (!cuts) return scale(readable(source[id]));
    const float s = values[id];
    if (!cut.keeps(s, id)) return -INFINITY;
    return below_min_p(s, min_p, min_scaled) ? -INFINITY : s;
  };
  Best guess{-INFINITY, -1};
  for (int id = tid; id < vocab; id += kThreads) {
    const float s = scaled_of(id);
    if (s == -INFINITY) continue;
    guess = better(guess, {static_cast<double>(s + gumbel_f32(noise_word(row, static_cast<std::uint32_t>(id)))), id});
  }
  const float threshold = static_cast<float>(block_best(guess, shared).score) - kGuessMargin;
  Best exact{-INFINITY, -1};
  for (int id = tid; id < vocab; id += kThreads) {
    const float s = scaled_of(id);
    if (s == -INFINITY) continue;
    const std::uint32_t word = noise_word(row, static_cast<std::uint32_t>(id));
    if (s + gumbel_f32(word) < threshold) continue;
    exact = better(exact, {static_cast<double>(s) + gumbel_f64(word), id});
  }
  exact = block_best(exact, shared);
  return exact.id >= 0 ? exact.id : highest.id;
}

// log softmax of the raw logits: the token's and the best ones'.
__device__ void describe(const float* logits, int vocab, int token, int num_top, SampledRow& out, Shared& shared) {
  const int tid = static_cast<int>(threadIdx.x);
  Best highest{-INFINITY, -1};
  for (int id = tid; id < vocab; id += kThreads) {
    highest = better(highest, {static_cast<double>(readable(logits[id])), id});
  }
  highest = block_best(highest, shared);
  double sum = 0.0;
  for (int id = tid; id < vocab; id += kThreads) {
    sum += exp(static_cast<double>(readable(logits[id])) - highest.score);
  }
  const double log_total = highest.score + log(block_sum(sum, shared));
  const auto logprob = [&](float value) {
    return value == -INFINITY ? -INFINITY : static_cast<float>(static_cast<double>(value) - log_total);
  };
  if (tid == 0 && token >= 0) out.logprob = logprob(readable(logits[token]));
  const int num = min(min(num_top, kMaxSampleTop), vocab);
  if (tid == 0) out.num_top = num;
  Best last = highest;
  for (int i = 0; i < num; ++i) {
    if (i > 0) {
      Best next{-INFINITY, -1};
      for (int id = tid; id < vocab; id += kThreads) {
        const auto value = static_cast<double>(readable(logits[id]));
        if (value < last.score || (value == last.score && id > last.id)) next = better(next, {value, id});
      }
      last = block_best(next, shared);
    }
    if (tid == 0) {
      out.top_token[i] = last.id;
      out.top_logprob[i] = logprob(static_cast<float>(last.score));
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    sample_rows(const float* logits, SampleRowsArgs args, float* values, int vocab) {
  __shared__ Shared shared;
  const SampleRow row = args.rows[blockIdx.x];
  SampledRow& out = args.sampled[blockIdx.x];
  const float* raw = logits + static_cast<std::int64_t>(blockIdx.x) * vocab;
  float* own = row.value_row >= 0 ? values + static_cast<std::int64_t>(row.value_row) * vocab : nullptr;
  int token = row.forced;
  if (token < 0) {
    const float* source = raw;
    if (own != nullptr && row.changes_logits()) {
      process(raw, row, args, own, vocab);
      source = own;
    }
    token = draw(source, own, row, vocab, shared);
  }
  if (threadIdx.x == 0) {
    out.token = token, out.logprob = 0.0f, out.num_top = 0;
    if (args.ids != nullptr) args.ids[blockIdx.x] = max(token, 0);
  }
  if (row.num_logprobs >= 0) describe(raw, vocab, token, row.num_logprobs, out, shared);
}

}  // namespace

void sample_rows_block(ExecutionContext& context, const SampleRowsPlan& plan, const SampleRowsArgs& args) {
  sample_rows<<<static_cast<unsigned>(args.logits.shape[0]), kThreads, 0, stream_of(context)>>>(
      args.logits.as<float>(), args, args.values.as<float>(), static_cast<int>(plan.vocab));
}

}  // namespace fathom::cuda
