// What the blocks that share a row tell each other through device memory (cuda_cluster.cu, cuda_cooperative.cu).
#pragma once

#include <cstdint>

namespace fathom {

inline constexpr int kTeamBlocks = 8;         // blocks of a row, where there are many rows
inline constexpr int kTeamMost = 32;          // where there are few
inline constexpr int kTeamThreads = 512;      // of a block
inline constexpr int kTeamBins = 1024;        // of a round of a cut
inline constexpr int kTeamListed = 512;       // as many are ranked one by one
inline constexpr int kMaxTeams = 128;         // at work at once; they take rows in turn
inline constexpr int kMaxTeamVocab = 160000;  // a block's part stays in 80 KB of shared memory
inline constexpr int kTeamTop = 20;           // kMaxSampleTop

// One team's. `arrived` count on for ever from zero; the rest is written before it is read.
struct alignas(128) TeamArea {
  std::uint32_t arrived[3];  // by teams of 8, 16 and 32 blocks
  std::uint32_t num_listed[3];
  std::uint64_t words[2][kTeamMost][4];  // what each block says at a meeting, every other meeting
  std::uint64_t top[kTeamMost][kTeamTop];
  std::uint64_t bins[2][kTeamBins];
  std::uint64_t listed[kTeamListed];
};

}  // namespace fathom
