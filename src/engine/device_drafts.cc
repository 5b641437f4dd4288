#include "engine/device_drafts.h"

#include <algorithm>
#include <utility>

namespace fathom {

Result<DeviceDrafts> DeviceDrafts::make(Backend& backend, std::int64_t vocab, std::int32_t max_sequences) {
  FATHOM_ASSIGN_OR_RETURN(DeviceSampler sampler,
                          DeviceSampler::make_for_drafts(backend, vocab, kMaxDraft, max_sequences));
  DeviceDrafts drafts(std::move(sampler));
  drafts.seats_.reserve(static_cast<std::size_t>(max_sequences));
  drafts.rows_.reserve(static_cast<std::size_t>(max_sequences));
  return drafts;
}

Result<bool> DeviceDrafts::begin(std::span<const Seat> seats, std::int32_t num_empty) {
  seats_.assign(seats.begin(), seats.end());
  rows_.clear();
  num_drafts_ = 0;
  for (const Seat& seat : seats_) {
    rows_.push_back({seat.sequence->spec, seat.sequence->committed_length() + 1});
    num_drafts_ = std::max(num_drafts_, seat.num_wanted);
  }
  if (seats_.empty()) return true;
  rows_.insert(rows_.end(), static_cast<std::size_t>(num_empty), {&DeviceSampler::nobody(), 0});
  return sampler_.fill_drafts(rows_, num_drafts_);
}

void DeviceDrafts::draw(ExecutionContext& context, const View& logits, std::int32_t index) {
  sampler_.launch(context, logits, index * num_seats());
}

Status DeviceDrafts::take() {
  FATHOM_ASSIGN_OR_RETURN(const std::span<const std::int32_t> ids, sampler_.take_ids());
  for (std::size_t s = 0; s < seats_.size(); ++s) {
    std::vector<TokenId>& proposals = seats_[s].sequence->result->proposals;
    for (std::int32_t d = 0; d < seats_[s].num_wanted; ++d) {
      proposals.push_back(ids[static_cast<std::size_t>(d) * rows_.size() + s]);
    }
  }
  return {};
}

}  // namespace fathom
