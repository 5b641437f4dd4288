#include "engine/mtp_passes.h"

#include <algorithm>

namespace fathom {
namespace {

// How many drafts the step asks for and the window blocks have room for.
std::int32_t num_wanted(const DraftedSequence& sequence) {
  if (sequence.result == nullptr || sequence.next_token() < 0) return 0;
  const std::int64_t end =
      (sequence.window_first + static_cast<std::int64_t>(sequence.window_table.size())) * kBlockTokens;
  const std::int64_t room = end - sequence.committed_length();
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(room, 0, sequence.step->num_proposals));
}

}  // namespace

void MtpPasses::create(StateSlot slot) {
  slot_of(slot) = {};
  streams_.clear(slot);
}

Status MtpPasses::save(const ResumeCopy& copy) {
  const Slot& slot = slot_of(copy.state_slot);
  Resume& resume = resume_of(copy.resume_slot);
  resume.begin = std::min(slot.begin, copy.boundary_tokens);
  // Rows of the block before the boundary that were never made are not to be read.
  if (slot.end < copy.boundary_tokens) resume.begin = copy.boundary_tokens;
  FATHOM_ASSIGN_OR_RETURN(resume.has_streams, streams_.save(copy));
  return {};
}

Status MtpPasses::restore(const ResumeCopy& copy) {
  const Resume& resume = resume_of(copy.resume_slot);
  Slot& slot = slot_of(copy.state_slot);
  slot.begin = resume.begin;
  slot.end = slot.length = copy.boundary_tokens;
  return streams_.restore(copy, resume.has_streams);
}

std::int64_t MtpPasses::floor_of(const DraftedSequence& sequence) const {
  const Slot& slot = slots_[static_cast<std::size_t>(sequence.state_slot.value)];
  return std::max(slot.begin, std::int64_t{sequence.window_first} * kBlockTokens);
}

std::int64_t MtpPasses::boundary_position(const DraftedSequence& sequence) {
  const std::int64_t position = sequence.committed_length() / kBlockTokens * kBlockTokens - 1;
  return position >= sequence.step->start ? position : -1;
}

void MtpPasses::plan(std::span<const DraftedSequence> sequences, std::vector<MtpPass>& passes) {
  passes.clear();
  std::int64_t rows_left = max_rows_;
  for (const DraftedSequence& sequence : sequences) rows_left -= sequence.committed_length() - sequence.step->start;
  FATHOM_CHECK(rows_left >= 0, "the trunk's rows fit a step");
  // Besides one row more than the trunk had: as many for each.
  const std::int64_t most_back =
      sequences.empty() ? 0 : std::max<std::int64_t>(0, rows_left / std::ssize(sequences) - 1);
  for (const DraftedSequence& sequence : sequences) {
    const std::int64_t start = sequence.step->start, length = sequence.committed_length();
    Slot& slot = slot_of(sequence.state_slot);
    MtpPass pass;
    pass.sequence = &sequence;
    pass.num_wanted = num_wanted(sequence);
    if (!is_of_prompt(sequence) && pass.num_wanted == 0) continue;
    // A sequence rolled back further than its step said has lost its last rows.
    if (slot.length != start) slot.end = std::min(slot.end, start);
    pass.first = slot.end;
    const bool has_kept = streams_.end(sequence.state_slot) == start;
    const std::int64_t reach =
        has_kept ? std::max(streams_.begin(sequence.state_slot) + 1, start - most_back) : start + 1;
    if (pass.first < reach) slot.begin = pass.first = std::max<std::int64_t>(1, reach);
    pass.num_from_kept = static_cast<std::int32_t>(std::max<std::int64_t>(0, start + 1 - pass.first));
    // The row at `length`.
    std::int64_t end = length + (pass.num_wanted > 0 ? 1 : 0);
    if (end - pass.first > length - start + rows_left) pass.num_wanted = 0, end = length;
    rows_left -= std::max<std::int64_t>(0, end - pass.first - (length - start));
    pass.num_rows = static_cast<std::int32_t>(std::max<std::int64_t>(0, end - pass.first));
    slot.end = std::max(pass.first, end);
    slot.length = length;
    if (pass.num_rows > 0) passes.push_back(pass);
  }
}

}  // namespace fathom
