// sparse_attention/naive: one block a (row, head), one byte at a time, the group formula written out.
#include "ops/sparse_attention/row_keys.cuh"

namespace fathom::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxGroup = 256;  // a DSpark block's window holds more than 128 keys

__device__ __forceinline__ float key_channel(const RecordAddress& key, int c) {
  if (c >= kNopeDim) return bf16_to_f32(reinterpret_cast<const Bf16Bits*>(key.data + kNopeDim)[c - kNopeDim]);
  return e4m3_to_f32(key.data[c]) * e8m0_to_f32(key.scale[c / 64]);
}

__global__ void __launch_bounds__(kThreads) attend(AttentionCall call) {
  __shared__ float q[kHeadDim], p[kMaxGroup], shared[kThreads / 32];
  const int row = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y),
            tid = static_cast<int>(threadIdx.x);
  const std::int64_t base = (static_cast<std::int64_t>(row) * call.num_heads + head) * kHeadDim;
  for (int c = tid; c < kHeadDim; c += kThreads) q[c] = bf16_to_f32(call.q[base + c]);
  const RowKeys keys = row_keys(call, row);
  float m = -INFINITY, l = 0.0f, o[4] = {};
  for (int group = 0; group < keys.num_groups(); ++group) {
    const int size = keys.group_size(group);
    __syncthreads();
    float peak = -INFINITY;
    for (int i = tid; i < size; i += kThreads) {
      const RecordAddress key = keys.key(call, group, i);
      float sum = 0.0f;
      for (int c = 0; c < kHeadDim; ++c) sum += q[c] * key_channel(key, c);
      p[i] = sum * kLogitScale;
      peak = fmaxf(peak, p[i]);
    }
    const float m_group = block_max<kThreads>(peak, shared);
    float sum = 0.0f;
    for (int i = tid; i < size; i += kThreads) {
      p[i] = exp2f(p[i] - m_group);
      sum += p[i];
    }
    const float l_group = block_sum<kThreads>(sum, shared);
    const float m_new = fmaxf(m, m_group), a = exp2f(m - m_new), b = exp2f(m_group - m_new);
    l = l * a + l_group * b;
    for (int k = 0; k < 4; ++k) {
      float value = 0.0f;
      for (int i = 0; i < size; ++i) value += p[i] * key_channel(keys.key(call, group, i), 4 * tid + k);
      o[k] = o[k] * a + value * b;
    }
    m = m_new;
  }
  const float inverse = inverse_denominator(m, l, call.sink[head]);
  auto* out = reinterpret_cast<std::uint32_t*>(call.out + base);
  const float2* rope = call.rope + static_cast<std::int64_t>(row) * (kRopeDim / 2);
  out[2 * tid] = finish_pair(o[0], o[1], inverse, 4 * tid, rope);
  out[2 * tid + 1] = finish_pair(o[2], o[3], inverse, 4 * tid + 2, rope);
}

}  // namespace

void sparse_attention_naive(ExecutionContext& context, const SparseAttentionPlan& plan,
                            const SparseAttentionArgs& args) {
  if (args.rows->num_tokens == 0) return;
  attend<<<dim3(static_cast<unsigned>(args.rows->num_tokens), static_cast<unsigned>(plan.desc.num_heads)), kThreads, 0,
           stream_of(context)>>>(attention_call(plan, args));
}

}  // namespace fathom::cuda
