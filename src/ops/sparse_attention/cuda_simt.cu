// sparse_attention/simt: the CUDA-core kernel of the campaign's start (S1), done well: one block a (row, head),
// a warp a key, 16-byte loads, 16 channels a lane. Each key is read once per head.
#include "ops/cuda/ptx/mma.cuh"
#include "ops/sparse_attention/row_keys.cuh"

namespace fathom::cuda {
namespace {

constexpr int kWarps = 4;

// Channels 16 lane .. 16 lane + 15: lanes 0..27 e4m3, 28..31 bf16 (two pieces).
struct Piece {
  uint4 a, b;
  float scale;
};
// Records of ratio-128 entries are aligned to 8 bytes only.
__device__ __forceinline__ uint4 load_record(const std::uint8_t* p) {
  if ((reinterpret_cast<std::uintptr_t>(p) & 15) == 0) return __ldg(reinterpret_cast<const uint4*>(p));
  const uint2 low = __ldg(reinterpret_cast<const uint2*>(p)), high = __ldg(reinterpret_cast<const uint2*>(p + 8));
  return make_uint4(low.x, low.y, high.x, high.y);
}
__device__ __forceinline__ Piece load_piece(const RecordAddress& key, int lane) {
  if (lane < 28) return {load_record(key.data + 16 * lane), make_uint4(0, 0, 0, 0), e8m0_to_f32(key.scale[lane / 4])};
  const std::uint8_t* rope = key.data + kNopeDim + 32 * (lane - 28);
  return {load_record(rope), load_record(rope + 16), 1.0f};
}
__device__ __forceinline__ void widen(const Piece& piece, int lane, float (&v)[16]) {
  const std::uint32_t a[4] = {piece.a.x, piece.a.y, piece.a.z, piece.a.w},
                      b[4] = {piece.b.x, piece.b.y, piece.b.z, piece.b.w};
  if (lane < 28) {
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = e4m3_to_f32(static_cast<std::uint8_t>(a[i / 4] >> (8 * (i % 4)))) * piece.scale;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t pair = i < 4 ? a[i] : b[i - 4];
      v[2 * i] = bf16_low(pair);
      v[2 * i + 1] = bf16_high(pair);
    }
  }
}

__global__ void __launch_bounds__(kWarps * 32) attend(AttentionCall call) {
  __shared__ float fold_o[kWarps][kHeadDim], fold_m[kWarps], fold_l[kWarps];
  const int row = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int tid = static_cast<int>(threadIdx.x), warp = tid >> 5, lane = tid & 31;
  const std::int64_t base = (static_cast<std::int64_t>(row) * call.num_heads + head) * kHeadDim;
  float q[16];
  {
    const auto* in = reinterpret_cast<const std::uint32_t*>(call.q + base) + 8 * lane;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      q[2 * i] = bf16_low(in[i]) * kLogitScale;
      q[2 * i + 1] = bf16_high(in[i]) * kLogitScale;
    }
  }
  const RowKeys keys = row_keys(call, row);
  float m = -INFINITY, l = 0.0f, o[4] = {};  // channels 4 tid .. 4 tid + 3
  for (int group = 0; group < keys.num_groups(); ++group) {
    const int size = keys.group_size(group);
    float wm = -INFINITY, wl = 0.0f, wo[16] = {};
    Piece next = {};
    if (warp < size) next = load_piece(keys.key(call, group, warp), lane);
    for (int i = warp; i < size; i += kWarps) {
      const Piece piece = next;
      if (i + kWarps < size) next = load_piece(keys.key(call, group, i + kWarps), lane);
      float v[16], s = 0.0f;
      widen(piece, lane, v);
#pragma unroll
      for (int c = 0; c < 16; ++c) s += q[c] * v[c];
      s = warp_sum(s);
      const float m_new = fmaxf(wm, s), a = exp2f(wm - m_new), p = exp2f(s - m_new);
      wl = wl * a + p;
#pragma unroll
      for (int c = 0; c < 16; ++c) wo[c] = wo[c] * a + p * v[c];
      wm = m_new;
    }
    __syncthreads();
#pragma unroll
    for (int c = 0; c < 16; ++c) fold_o[warp][16 * lane + c] = wo[c];
    if (lane == 0) fold_m[warp] = wm, fold_l[warp] = wl;
    __syncthreads();
    float gm = -INFINITY, gl = 0.0f, go[4] = {};
    for (int w = 0; w < min(kWarps, size); ++w) {
      const float m_new = fmaxf(gm, fold_m[w]), a = exp2f(gm - m_new), b = exp2f(fold_m[w] - m_new);
      gl = gl * a + fold_l[w] * b;
#pragma unroll
      for (int c = 0; c < 4; ++c) go[c] = go[c] * a + fold_o[w][4 * tid + c] * b;
      gm = m_new;
    }
    const float m_new = fmaxf(m, gm), a = exp2f(m - m_new), b = exp2f(gm - m_new);
    l = l * a + gl * b;
#pragma unroll
    for (int c = 0; c < 4; ++c) o[c] = o[c] * a + go[c] * b;
    m = m_new;
  }
  const float inverse = inverse_denominator(m, l, call.sink[head]);
  auto* out = reinterpret_cast<std::uint32_t*>(call.out + base);
  const float2* rope = call.rope + static_cast<std::int64_t>(row) * (kRopeDim / 2);
  out[2 * tid] = finish_pair(o[0], o[1], inverse, 4 * tid, rope);
  out[2 * tid + 1] = finish_pair(o[2], o[3], inverse, 4 * tid + 2, rope);
}

}  // namespace

void sparse_attention_simt(ExecutionContext& context, const SparseAttentionPlan& plan,
                           const SparseAttentionArgs& args) {
  if (args.rows->num_tokens == 0) return;
  attend<<<dim3(static_cast<unsigned>(args.rows->num_tokens), static_cast<unsigned>(plan.desc.num_heads)), kWarps * 32,
           0, stream_of(context)>>>(attention_call(plan, args));
}

}  // namespace fathom::cuda
