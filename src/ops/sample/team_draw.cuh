// sample by teams: each block keeps its part of a row's logits in shared memory, so a row is read once. Two meetings
// draw a token: the highest logit, then the best score; each cut adds two. cuda_cluster.cu and cuda_cooperative.cu
// are its two kinds of meeting.
#pragma once

#include "ops/cuda/device_rows.cuh"
#include "ops/sample/team_cut.cuh"

namespace fathom::cuda {

constexpr float kLog2E = 1.44269504f;

// e = -log(u) of the middle of the word's cell; near 1 by its series.
__device__ __forceinline__ float gumbel_guess(std::uint32_t word) {
  const float x = (static_cast<float>(~word) + 0.5f) * 0x1p-32f;  // 1 - u
  const float e = x < 0.03125f ? x * (1.0f + x * (0.5f + x * (1.0f / 3.0f + 0.25f * x)))
                               : -__logf((static_cast<float>(word) + 0.5f) * 0x1p-32f);
  return -__logf(e);
}

// Readable logits of the part, after the mask unless `raw`. Returns key and ~id of the highest, and its raw highest's
// key in `other`.
__device__ inline Said load_part(const float* logits, const std::uint32_t* mask, const TeamPart& part, int vocab) {
  const int tid = static_cast<int>(threadIdx.x);
  float best = -INFINITY, raw_best = -INFINITY;
  int best_id = -1;
  const auto take = [&](float v, int i, bool allowed) {
    v = readable(v);
    raw_best = fmaxf(raw_best, v);
    if (!allowed) v = -INFINITY;
    if (v > best) best = v, best_id = part.begin + i;
    return v;
  };
  const float* from = logits + part.begin;
  if ((vocab & 3) == 0) {  // rows are aligned, and so is every part
#pragma unroll 4
    for (int i = 4 * tid; i < part.padded; i += 4 * kTeamThreads) {
      float4 v = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
      std::uint32_t allowed = 0;
      if (i < part.count) {
        v = *reinterpret_cast<const float4*>(from + i);
        allowed = mask == nullptr ? 15u : mask[(part.begin + i) >> 5] >> ((part.begin + i) & 31);
      }
      v.x = take(v.x, i, allowed & 1), v.y = take(v.y, i + 1, allowed & 2);
      v.z = take(v.z, i + 2, allowed & 4), v.w = take(v.w, i + 3, allowed & 8);
      *reinterpret_cast<float4*>(part.values + i) = v;
    }
  } else {
    for (int i = tid; i < part.padded; i += kTeamThreads) {
      float v = -INFINITY;
      bool allowed = false;
      if (i < part.count) {
        const int id = part.begin + i;
        v = from[i];
        allowed = mask == nullptr || (mask[id >> 5] >> (id & 31) & 1u) != 0;
      }
      part.values[i] = take(v, i, allowed);
    }
  }
  const std::uint64_t key = static_cast<std::uint64_t>(key_of(best)) << 32 | ~static_cast<std::uint32_t>(best_id);
  return {best_id >= 0 ? key : 0, key_of(raw_best), 0};
}

// Biases and penalties on this part; then the highest again.
__device__ inline Said change_part(const SampleRow& row, const SampleRowsArgs& args, const TeamPart& part, Said said) {
  const int tid = static_cast<int>(threadIdx.x);
  const auto mine = [&](int id) { return id >= part.begin && id < part.begin + part.count; };
  __syncthreads();
  // An id may be named twice: the first place adds all of them, in their order.
  const SampleBias* biases = args.biases + row.bias_begin;
  for (int i = tid; i < row.bias_count; i += kTeamThreads) {
    const int id = biases[i].id;
    bool first = mine(id);
    for (int j = 0; j < i && first; ++j) first = biases[j].id != id;
    if (!first) continue;
    float value = part.values[id - part.begin];
    for (int j = i; j < row.bias_count; ++j) {
      if (biases[j].id == id) value = __fadd_rn(value, biases[j].bias);
    }
    part.values[id - part.begin] = value;
  }
  __syncthreads();
  const SampleHistory* histories = args.histories + row.history_begin;
  const float repetition = row.repetition_penalty;
  for (int i = tid; i < row.history_count; i += kTeamThreads) {
    const int id = histories[i].id, count = histories[i].count;
    if (!mine(id)) continue;
    float value = part.values[id - part.begin];
    if (repetition != 1.0f) value = value > 0 ? __fdiv_rn(value, repetition) : __fmul_rn(value, repetition);
    if (count > 0) {
      value = __fsub_rn(value,
                        __fadd_rn(__fmul_rn(row.frequency_penalty, static_cast<float>(count)), row.presence_penalty));
    }
    part.values[id - part.begin] = readable(value);
  }
  __syncthreads();
  float best = -INFINITY;
  int best_id = -1;
  for (int i = tid; i < part.padded; i += kTeamThreads) {
    const float v = readable(part.values[i]);
    part.values[i] = v;
    if (v > best) best = v, best_id = part.begin + i;
  }
  said.largest =
      best_id >= 0 ? static_cast<std::uint64_t>(key_of(best)) << 32 | ~static_cast<std::uint32_t>(best_id) : 0;
  return said;
}

// Orders doubles as words.
__device__ __forceinline__ std::uint64_t key_of(double value) {
  const auto bits = static_cast<std::uint64_t>(__double_as_longlong(value + 0.0));
  return (bits >> 63) != 0 ? ~bits : bits | std::uint64_t{1} << 63;
}

// The best of this part by exact score: key and id, -1 where none, in s.score and s.score_id. Values are logits under
// `maximum` at temperature t (`scaled` false), or scaled already (maximum 0). `best_id` is the row's highest.
__device__ inline void draw_part(const SampleRow& row, const TeamPart& part, bool scaled, float maximum, int best_id,
                                 const Cut& cut, TeamShared& s) {
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5);
  const float inverse = scaled ? 1.0f : __fdiv_rn(1.0f, row.temperature);
  const float min_p = row.min_p, log_min_p = min_p > 0.0f ? logf(min_p) : -INFINITY;
  const float cut_value = cut.key == 0 ? -INFINITY : value_of(cut.key);
  const RowNoise noise(row);
  const auto word_of = [&](int i) { return noise.word(static_cast<std::uint32_t>(part.begin + i)); };
  const int last = cut.last_id - part.begin;
  const auto kept = [&](float v, int i) { return (v > cut_value) | ((v == cut_value) & (i <= last)); };
  // The row's highest is always kept: no score below its own counts.
  float floor = gumbel_guess(noise.word(static_cast<std::uint32_t>(best_id))) - kGuessMargin;
  float best = -INFINITY, second = -INFINITY;
  int best_at = -1;
  const float slope = kLog2E * inverse;
  for (int base = 32 * warp; base < part.padded; base += kTeamThreads) {
    const int i = base + lane;
    const float v = part.values[i];
    const float below = maximum - v;
    // Noise of a word with n leading ones is under (n + 1) ln 2, so it takes at least `ones` - 1 of them.
    const float q = fminf(fmaf(below, slope, fmaf(floor, kLog2E, -0.51f)), 64.0f);
    const int ones = __float_as_int(q + 12582912.0f) - 0x4b400000;
    bool pass = false;
    std::uint32_t word = 0;
    if ((ones <= 33) & kept(v, i)) {
      word = word_of(i);
      pass = __funnelshift_rc(~word, 0u, static_cast<unsigned>(33 - ones)) == 0;
    }
    if (!__any_sync(0xffffffffu, pass)) continue;
    if (pass && !below_min_p(-below * inverse, min_p, log_min_p)) {
      const float guess = gumbel_guess(word) - below * inverse;
      second = fmaxf(second, fminf(best, guess));
      if (guess > best) best = guess, best_at = i;
    }
    const float warp_best = value_of(__reduce_max_sync(0xffffffffu, key_of(best)));
    floor = fmaxf(floor, warp_best - kGuessMargin);
  }
  // Of the block.
  const std::uint32_t best_key = __reduce_max_sync(0xffffffffu, key_of(best));
  __syncthreads();
  if (lane == 0) s.words[0][warp] = best_key;
  if (threadIdx.x == 0) s.score = 0, s.score_id = 0x7fffffff;
  __syncthreads();
  const std::uint32_t block_key =
      __reduce_max_sync(0xffffffffu, lane < kTeamWarps ? static_cast<std::uint32_t>(s.words[0][lane]) : 0u);
  const float threshold = value_of(block_key) - kGuessMargin;
  std::uint64_t key = 0;
  int id = -1;
  const auto score = [&](int i, std::uint32_t word) {
    const float v = part.values[i];
    const float exact = scaled ? v : __fdiv_rn(__fsub_rn(v, maximum), row.temperature);
    const std::uint64_t k = key_of(static_cast<double>(exact) + gumbel_f64(word));
    if (k > key) key = k, id = part.begin + i;  // ids ascend
  };
  if (best_at >= 0 && best >= threshold) {
    if (second < threshold) {
      score(best_at, word_of(best_at));
    } else {
      for (int i = 32 * warp + lane; i < part.padded; i += kTeamThreads) {
        const float v = part.values[i], below = maximum - v;
        if (v == -INFINITY || !kept(v, i) || below_min_p(-below * inverse, min_p, log_min_p)) continue;
        const std::uint32_t word = word_of(i);
        if (gumbel_guess(word) - below * inverse >= threshold) score(i, word);
      }
    }
  }
  if (key != 0) atomicMax(reinterpret_cast<unsigned long long*>(&s.score), static_cast<unsigned long long>(key));
  __syncthreads();
  if (key != 0 && key == s.score) atomicMin(&s.score_id, id);
  __syncthreads();
}

// round(2^46 exp(x)), x <= 0: an integer, so that sums know no order; a vocabulary's stays under 2^64.
__device__ __forceinline__ std::uint64_t probability_weight(double x) {
  const double y = x * 1.4426950408889634;
  const double shifted = y + 0x1.8p52;  // the nearest integer in the low bits
  const double f = y - (shifted - 0x1.8p52);
  double power = 4.4455382718708115e-10;
  power = fma(power, f, 7.054911620801121e-09);
  power = fma(power, f, 1.0178086009239699e-07);
  power = fma(power, f, 1.3215486790144307e-06);
  power = fma(power, f, 1.5252733804059841e-05);
  power = fma(power, f, 1.5403530393381608e-04);
  power = fma(power, f, 1.3333558146428443e-03);
  power = fma(power, f, 9.6181291076284772e-03);
  power = fma(power, f, 5.5504108664821580e-02);
  power = fma(power, f, 2.4022650695910072e-01);
  power = fma(power, f, 6.9314718055994531e-01);
  power = fma(power, f, 1.0);
  const int exponent = 46 + static_cast<int>(__double_as_longlong(shifted));
  const auto scaled = power * __longlong_as_double(static_cast<long long>(1023 + exponent) << 52);
  return static_cast<std::uint64_t>(__double_as_longlong(scaled + 0x1p52)) & ((std::uint64_t{1} << 52) - 1);
}

// This part of a log softmax of raw logits, whose highest is `maximum`: the sum of its weights, and its `num` best as
// keys and ~ids in s.top, 0 where there are fewer.
__device__ inline std::uint64_t describe_part(const TeamPart& part, float maximum, int num, TeamCutShared& shared,
                                              TeamShared& s) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
  std::uint64_t sum = 0;
#pragma unroll 2
  for (int i = tid; i < part.padded; i += kTeamThreads) {
    const float v = part.values[i];
    if (v - maximum > -36.0f) sum += probability_weight(static_cast<double>(v) - static_cast<double>(maximum));
  }
  if (num == 0) return sum;
  // Each warp takes its best one after the other; only the lane that had it looks again, and the warp looks for it. A
  // warp has a run of rows of 32; which lane owns which of a row turns from row to row, so that both ways of reading
  // meet all banks.
  const int num_rows = (part.padded / 32 + kTeamWarps - 1) / kTeamWarps, first_row = warp * num_rows;
  const auto word = [&](int row, int owner) {
    const int i = 32 * (first_row + row) + ((owner - row) & 31);
    return row < num_rows && i < part.count
               ? static_cast<std::uint64_t>(key_of(part.values[i])) << 32 | ~static_cast<std::uint32_t>(part.begin + i)
               : std::uint64_t{0};
  };
  std::uint64_t mine = 0;
  for (int row = 0; row < num_rows; ++row) mine = max(mine, word(row, lane));
  for (int n = 0; n < num; ++n) {
    const std::uint64_t best = warp_max(mine);
    if (lane == 0) shared.top[warp][n] = best;
    if (best == 0 || n + 1 == num) continue;
    const int owner = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, mine == best))) - 1;
    std::uint64_t next = 0;
    for (int row = lane; row < num_rows; row += 32) {
      const std::uint64_t w = word(row, owner);
      if (w < best && w > next) next = w;
    }
    next = warp_max(next);
    if (lane == owner) mine = next;
  }
  if (tid < kTeamTop) s.top[tid] = 0;
  __syncthreads();
  // A warp's last is a bound for the block's.
  std::uint64_t bound = 0;
  for (int w = 0; w < kTeamWarps; ++w) bound = max(bound, shared.top[w][num - 1]);
  if (tid < kTeamWarps * num) {
    const std::uint64_t own = shared.top[tid / num][tid % num];
    if (own != 0 && own >= bound) {
      int rank = 0;
      for (int w = 0; w < kTeamWarps; ++w) {
        for (int n = 0; n < num && shared.top[w][n] > own; ++n) ++rank;
      }
      if (rank < num) s.top[rank] = own;
    }
  }
  __syncthreads();
  return sum;
}

// What block 0 writes of a described row.
template <bool kCluster>
__device__ void write_logprobs(const Team<kCluster>& team, const float* logits, int token, float maximum, int num,
                               std::uint64_t sum, SampledRow& out, TeamCutShared& shared) {
  const int tid = static_cast<int>(threadIdx.x);
  const double log_total = static_cast<double>(maximum) + log(static_cast<double>(sum) * 0x1p-46);
  const auto logprob = [&](float value) {
    return value == -INFINITY ? -INFINITY : static_cast<float>(static_cast<double>(value) - log_total);
  };
  if (tid == 0) {
    out.num_top = num;
    if (token >= 0) out.logprob = logprob(readable(logits[token]));
  }
  std::uint64_t* all = &shared.top[0][0];
  const int total = team.size * num;
  for (int i = tid; i < total; i += kTeamThreads) all[i] = load_shared_word(&team.area->top[i / num][i % num]);
  __syncthreads();
  std::uint64_t bound = 0;  // a block's last is one for all
  for (int last = num - 1; last >= 0 && last < total; last += num) bound = max(bound, all[last]);
  for (int i = tid; i < total; i += kTeamThreads) {
    const std::uint64_t own = all[i];
    if (own == 0 || own < bound) continue;
    int rank = 0;
    // Each block's are in descending order.
    for (int block = 0; block < team.size; ++block) {
      for (int n = 0; n < num && all[block * num + n] > own; ++n) ++rank;
    }
    if (rank < num) {
      out.top_token[rank] = static_cast<std::int32_t>(~static_cast<std::uint32_t>(own));
      out.top_logprob[rank] = logprob(value_of(static_cast<std::uint32_t>(own >> 32)));
    }
  }
}

// The team's row: every block does its part, block 0 writes.
template <bool kCluster>
__device__ void sample_row(Team<kCluster>& team, const TeamPart& part, const float* raw, const SampleRow& row,
                           const SampleRowsArgs& args, SampledRow& out, std::int32_t* out_id, int vocab,
                           TeamCutShared& shared) {
  TeamShared& s = *team.s;
  const int tid = static_cast<int>(threadIdx.x);
  const bool drawn = row.forced < 0, described = row.num_logprobs >= 0;
  const auto write = [&](int token) {
    if (team.rank != 0 || tid != 0) return;
    out.token = token, out.logprob = 0.0f, out.num_top = 0;
    if (out_id != nullptr) *out_id = max(token, 0);
  };
  if (!drawn && !described) return write(row.forced);
  if (drawn && row.cuts()) team.empty_round(team.round);
  __syncthreads();  // the row before is done with the values
  const bool changes = drawn && row.changes_logits();
  Said said = load_part(raw, changes && row.mask_begin >= 0 ? args.masks + row.mask_begin : nullptr, part, vocab);
  if (changes && row.bias_count + row.history_count > 0) said = change_part(row, args, part, said);
  const Said highest = team.meet(said);
  int token = drawn ? -1 : row.forced;
  const int best_id = static_cast<int>(~static_cast<std::uint32_t>(highest.largest));
  const float t = row.temperature;
  bool scaled = false, scored = false;
  if (drawn && highest.largest != 0) {
    token = best_id;
    scored = t != 0.0f;
  }
  if (scored) {
    float maximum = value_of(static_cast<std::uint32_t>(highest.largest >> 32));
    const bool cuts = row.cuts();
    scaled = cuts || t < 1e-6f || t > 1e6f;
    Cut cut;
    if (scaled) {
      for (int i = tid; i < part.padded; i += kTeamThreads) {
        const float v = part.values[i];
        part.values[i] = v == -INFINITY ? -INFINITY : __fdiv_rn(__fsub_rn(v, maximum), t);
      }
      maximum = 0.0f;
      if (row.top_k > 0) {
        cut = find_cut(team, part, cut, CutRule<true>{static_cast<std::uint64_t>(row.top_k), 0.0f}, shared);
      }
      if (row.top_p < 1.0f) cut = find_cut(team, part, cut, CutRule<false>{0, row.top_p}, shared);
    }
    draw_part(row, part, scaled, maximum, best_id, cut, s);
  }
  if (!scored && !described) return write(token);
  Said best{0, 0, 0};
  int num = 0;
  const float raw_maximum = value_of(static_cast<std::uint32_t>(highest.other));
  if (described) {
    num = min(min(row.num_logprobs, kMaxSampleTop), vocab);
    __syncthreads();
    if (changes || scaled) {
      load_part(raw, nullptr, part, vocab);
      __syncthreads();
    }
    best.sum = raw_maximum > -INFINITY ? describe_part(part, raw_maximum, num, shared, s) : 0;
    if (raw_maximum == -INFINITY && num > 0) describe_part(part, 0.0f, num, shared, s);
    best.sum = team.of_block(best).sum;
    if (tid < num) team.area->top[team.rank][tid] = s.top[tid];
  }
  if (scored) best.largest = s.score, best.other = static_cast<std::uint64_t>(s.score_id);
  team.tell(best);
  if (team.rank != 0) return;
  if (scored) {
    // Of equal scores the lowest id.
    const int lane = tid & 31;
    const std::uint64_t score = lane < team.size ? team.heard(lane, 0) : 0;
    const auto id = static_cast<std::uint32_t>(lane < team.size ? team.heard(lane, 1) : 0);
    const std::uint64_t highest_score = warp_max(score);
    if (highest_score != 0) {
      token = static_cast<int>(__reduce_min_sync(0xffffffffu, score == highest_score ? id : 0xffffffffu));
    }
  }
  write(token);
  if (described) write_logprobs(team, raw, token, raw_maximum, num, team.heard_of_all().sum, out, shared);
}

template <bool kCluster>
__global__ void __launch_bounds__(kTeamThreads, 2)
    sample_by_teams(const float* logits, SampleRowsArgs args, TeamArea* areas, int num_rows, int vocab, int share) {
  extern __shared__ __align__(16) float values[];
  __shared__ TeamShared s;
  __shared__ TeamCutShared shared;
  Team<kCluster> team{areas + blockIdx.y, &s, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)};
  TeamPart part{values, min(team.rank * share, vocab), 0, 0};
  part.count = min(share, vocab - part.begin);
  part.padded = (part.count + 31) / 32 * 32;
  for (int r = static_cast<int>(blockIdx.y); r < num_rows; r += static_cast<int>(gridDim.y)) {
    const SampleRow row = args.rows[r];  // in registers: stores to shared memory could change what lies in memory
    // The team's next row is on its way while this one is drawn.
    if (const int next = r + static_cast<int>(gridDim.y); next < num_rows) {
      const float* from = logits + static_cast<std::int64_t>(next) * vocab + part.begin;
      for (int i = 32 * static_cast<int>(threadIdx.x); i < part.count; i += 32 * kTeamThreads) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
      }
    }
    sample_row(team, part, logits + static_cast<std::int64_t>(r) * vocab, row, args, args.sampled[r],
               args.ids != nullptr ? args.ids + r : nullptr, vocab, shared);
  }
}

// Ids of each of `num_blocks` blocks: whole mask words.
inline int team_share(std::int64_t vocab, int num_blocks) {
  return static_cast<int>((vocab + 32 * num_blocks - 1) / (32 * num_blocks) * 32);
}

}  // namespace fathom::cuda
