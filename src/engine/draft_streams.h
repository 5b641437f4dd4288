// The trunk's streams that an MTP block has yet to read (spec 2.9): a row of the block at position p is made of those
// of p - 1. Of each sequence the last positions are kept, and with each resume point the one before its boundary.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "engine/step.h"

namespace fathom {

class DraftStreams {
 public:
  // Positions kept of a sequence. Behind a hole a block that sees none of the positions before is right far less often:
  // it takes about ten to be as good as ever.
  static constexpr std::int64_t kKept = 16;

  static Result<DraftStreams> make(Backend& backend, std::int64_t row_bytes, std::int32_t num_slots,
                                   std::int32_t num_resumes);

  void clear(StateSlot slot) { slots_[index(slot)] = {}; }
  // The streams of positions [begin(slot), end(slot)) are here.
  std::int64_t begin(StateSlot slot) const { return slots_[index(slot)].begin; }
  std::int64_t end(StateSlot slot) const { return slots_[index(slot)].end; }
  // Where a position's row lies, in rows of data().
  std::int64_t row_of(StateSlot slot, std::int64_t position) const {
    return slot.value * kRowsOfSlot + position % kKept;
  }
  // The same for the last position before a block's end, which is kept for resume points besides.
  std::int64_t boundary_row(StateSlot slot) const { return slot.value * kRowsOfSlot + kKept; }
  std::byte* data() const { return streams_.data; }
  std::byte* row(std::int64_t row) const { return streams_.data + row * row_bytes_; }
  std::int64_t row_bytes() const { return row_bytes_; }
  std::int64_t bytes_of_sequence() const { return kRowsOfSlot * row_bytes_; }

  TokenId token_of(StateSlot slot, std::int64_t position) const {
    return slots_[index(slot)].tokens[static_cast<std::size_t>(position % kKept)];
  }

  // The rows of position `first` and those behind it get these tokens' streams; at most kKept.
  void note(StateSlot slot, std::int64_t first, std::span<const TokenId> tokens);
  void note_boundary(StateSlot slot, std::int64_t position) { slots_[index(slot)].boundary = position; }

  // False: the streams before the boundary are not here.
  Result<bool> save(const ResumeCopy& copy);
  Status restore(const ResumeCopy& copy, bool has_streams);

 private:
  static constexpr std::int64_t kRowsOfSlot = kKept + 1;
  struct Slot {
    std::int64_t begin = 0, end = 0;
    std::int64_t boundary = -1;  // position of the boundary row
    std::array<TokenId, kKept> tokens{};
  };
  static std::size_t index(StateSlot slot) { return static_cast<std::size_t>(slot.value); }
  std::byte* resume_row(ResumeSlot slot) const { return resume_streams_.data + slot.value * row_bytes_; }

  Backend* backend_ = nullptr;
  std::int64_t row_bytes_ = 0;
  DeviceMemory streams_, resume_streams_;
  std::vector<Slot> slots_;
};

}  // namespace fathom
