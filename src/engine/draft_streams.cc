#include "engine/draft_streams.h"

namespace fathom {

Result<DraftStreams> DraftStreams::make(Backend& backend, std::int64_t row_bytes, std::int32_t num_slots,
                                        std::int32_t num_resumes) {
  DraftStreams made;
  made.backend_ = &backend;
  made.row_bytes_ = row_bytes;
  made.slots_.resize(static_cast<std::size_t>(num_slots));
  FATHOM_ASSIGN_OR_RETURN(made.streams_, backend.allocate(num_slots * kRowsOfSlot * row_bytes, "draft streams"));
  FATHOM_ASSIGN_OR_RETURN(made.resume_streams_,
                          backend.allocate(num_resumes * row_bytes, "draft streams of resume points"));
  return made;
}

void DraftStreams::note(StateSlot slot, std::int64_t first, std::span<const TokenId> tokens) {
  Slot& kept = slots_[index(slot)];
  const std::int64_t end = first + std::ssize(tokens);
  for (std::int64_t p = first; p < end; ++p) {
    kept.tokens[static_cast<std::size_t>(p % kKept)] = tokens[static_cast<std::size_t>(p - first)];
  }
  // What lies between is missing, or the sequence was rolled back further than to there.
  if (first > kept.end || first <= kept.begin) kept.begin = first;
  kept.end = end;
  kept.begin = std::max(kept.begin, end - kKept);
}

Result<bool> DraftStreams::save(const ResumeCopy& copy) {
  const Slot& kept = slots_[index(copy.state_slot)];
  const std::int64_t position = copy.boundary_tokens - 1;
  const bool in_ring = position >= kept.begin && position < kept.end;
  if (kept.boundary != position && !in_ring) return false;
  const std::int64_t from = in_ring ? row_of(copy.state_slot, position) : boundary_row(copy.state_slot);
  FATHOM_RETURN_IF_ERROR(backend_->copy(resume_row(copy.resume_slot), row(from), row_bytes_));
  return true;
}

Status DraftStreams::restore(const ResumeCopy& copy, bool has_streams) {
  clear(copy.state_slot);
  if (!has_streams) return {};
  const std::int64_t position = copy.boundary_tokens - 1;
  constexpr TokenId kUnread = 0;  // a row is made of the token behind the streams
  note(copy.state_slot, position, {&kUnread, 1});
  return backend_->copy(row(row_of(copy.state_slot, position)), resume_row(copy.resume_slot), row_bytes_);
}

}  // namespace fathom
