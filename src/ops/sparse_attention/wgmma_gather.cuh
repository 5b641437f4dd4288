// How a group's 128 keys come from the pools to two tiles in shared memory: in four steps of 128 channels. A warp has
// 16 or 32 of the keys: its lanes look up one each, then it reads and widens them in passes of eight, four lanes a key.
#pragma once

#include "ops/sparse_attention/raw_key.cuh"
#include "ops/sparse_attention/wgmma_tiles.cuh"

#if FATHOM_HAS_WGMMA
namespace fathom::cuda {

inline constexpr int kGatherSteps = 4;  // of two blocks of each tile
inline constexpr int kGatherWarps = 8;  // that gather all the time

// Where a row's keys lie: its block tables, resolved once.
struct KeyTables {
  const std::int32_t *window, *context;
};
__device__ __forceinline__ KeyTables key_tables(const AttentionCall& call, int sequence) {
  return {call.rows.window_table + __ldg(call.rows.window_offset + sequence) - __ldg(call.rows.window_first + sequence),
          call.cache.ratio == 0 ? nullptr : call.rows.context_table + __ldg(call.rows.context_offset + sequence)};
}

// Key i of a group: an entry (in the window a position), -1 where the group has no such key. Which entry it is is
// read a group ahead of its block, that a group ahead of its record.
__device__ __forceinline__ std::int32_t find_entry(const RowKeys& keys, int group, int i, bool exists) {
  if (!exists || i >= keys.group_size(group)) return -1;
  if (group == 0) return keys.window_begin + i;
  const int j = (group - 1) * kAttentionGroup + i;
  return keys.selected != nullptr ? __ldg(keys.selected + j) : j;
}
struct KeyPlace {
  std::int32_t entry, block;
};
__device__ __forceinline__ KeyPlace find_block(const AttentionCall& call, const KeyTables& tables, std::int32_t entry,
                                               bool window) {
  if (entry < 0) return {-1, 0};
  return {entry, __ldg(window ? tables.window + entry / static_cast<int>(kBlockTokens)
                              : tables.context + (entry >> (call.cache.ratio == 4 ? 5 : 0)))};
}

// A key's record; `data` null: no such key, and zeros stand for it.
struct KeyRecord {
  const std::uint8_t* data = nullptr;
  uint2 scales = {0, 0};
};
__device__ __forceinline__ KeyRecord find_record(const AttentionCall& call, const KeyPlace& place, bool window) {
  if (place.entry < 0) return {};
  const std::byte* pool = window ? call.pools.window : call.pools.context;
  const std::int64_t stride = window ? call.pools.window_block_bytes : call.pools.context_block_bytes;
  const std::int64_t offset = window ? call.cache.window_offset_bytes : call.cache.entry_offset_bytes;
  const int per_block = window ? static_cast<int>(kBlockTokens) : call.cache.ratio == 4 ? 32 : 1;
  const int slot = place.entry & (per_block - 1);
  const auto* page = reinterpret_cast<const std::uint8_t*>(pool + place.block * stride + offset);
  return {page + slot * kRecordDataBytes,
          __ldg(reinterpret_cast<const uint2*>(page + per_block * kRecordDataBytes + slot * kRecordScaleBytes))};
}
// What a later step reads, to the L2.
__device__ __forceinline__ void prefetch_record(const KeyRecord& record, int step) {
  if (record.data == nullptr || (threadIdx.x & 31) >= 8 * 16 / kGatherWarps) return;
  asm volatile("prefetch.global.L2 [%0];" ::"l"(record.data + 128 * step));
  if (step == 3) asm volatile("prefetch.global.L2 [%0];" ::"l"(record.data + kRecordDataBytes - 1));
}

// A thread's pieces of one step of the warp's 8 kPasses keys, whose records its lanes have: in each pass 16 codes of
// both blocks; the last block's are two pieces of rotated channels.
template <int kPasses>
struct KeyPieces {
  uint4 pieces[kPasses][3];

  __device__ __forceinline__ void load(const KeyRecord& record, int step, int pass) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const auto at = __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(record.data), 8 * pass + lane / 4);
    const std::uint8_t* p = reinterpret_cast<const std::uint8_t*>(at) + 128 * step + 16 * (lane & 3);
    const bool exists = at != 0, aligned = (at & 15) == 0;
#pragma unroll
    for (int c = 0; c < (step == 3 ? 3 : 2); ++c) {
      uint4& piece = pieces[pass][c];
      piece = make_uint4(0, 0, 0, 0);
      asm volatile(
          "{\n.reg .pred p, q;\nsetp.ne.b32 p, %5, 0;\nsetp.ne.b32 q, %6, 0;\n"
          "@p ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];\n"
          "@q ld.global.nc.v2.u32 {%0,%1}, [%4];\n@q ld.global.nc.v2.u32 {%2,%3}, [%4+8];\n}\n"
          : "+r"(piece.x), "+r"(piece.y), "+r"(piece.z), "+r"(piece.w)
          : "l"(p + 64 * c), "r"(static_cast<int>(exists && aligned)), "r"(static_cast<int>(exists && !aligned)));
    }
  }
  // `tiles`: of the group; `first_key`: the warp's.
  __device__ __forceinline__ void store(const KeyRecord& record, unsigned char* tiles, int first_key, int step,
                                        int pass) const {
    const int lane = static_cast<int>(threadIdx.x) & 31, part = lane & 3;
    const int key = first_key % kTileKeys + 8 * pass + lane / 4;
    unsigned char* block = tiles + first_key / kTileKeys * kTileBytes + 2 * step * kBlockBytes;
    const std::uint32_t four =
        __shfl_sync(0xffffffffu, step < 2 ? record.scales.x : record.scales.y, 8 * pass + lane / 4);
#pragma unroll
    for (int c = 0; c < 2; ++c, block += kBlockBytes) {
      uint4 low = pieces[pass][1], high = pieces[pass][2];
      if (step == 3 && c == 1) {
        *reinterpret_cast<uint4*>(block + swizzle_128(key, part)) = low;
        *reinterpret_cast<uint4*>(block + swizzle_128(key, part + 4)) = high;
      } else {
        widen_codes(pieces[pass][c], four >> (8 * (2 * (step % 2) + c)) & 0xffu, low, high);
        *reinterpret_cast<uint4*>(block + swizzle_128(key, 2 * part)) = low;
        *reinterpret_cast<uint4*>(block + swizzle_128(key, 2 * part + 1)) = high;
      }
    }
    asm volatile("" ::: "memory");  // stays where it is
  }
};

}  // namespace fathom::cuda
#endif
