// The drafts of a step's sequences, drawn one after the other where their logits lie. Nothing comes to the host between
// two drafts: the ids of one are the next one's token ids in device memory.
#pragma once

#include <span>
#include <vector>

#include "engine/device_sampler.h"
#include "engine/drafter.h"

namespace fathom {

class DeviceDrafts {
 public:
  // One sequence that drafts are drawn for: its row in every draft's logits.
  struct Seat {
    const DraftedSequence* sequence = nullptr;
    std::int32_t num_wanted = 0;  // at least 1
  };

  static Result<DeviceDrafts> make(Backend& backend, std::int64_t vocab, std::int32_t max_sequences);

  // Before the launches: sends what the seats ask for; `num_empty` more seats of nobody stand behind them, so that
  // steps of many batches have one shape. False: the drafts have to be drawn on the host (penalties).
  Result<bool> begin(std::span<const Seat> seats, std::int32_t num_empty = 0);
  std::int32_t num_drafts() const { return num_drafts_; }  // of the seat that wants most; the others' rest is void
  std::int64_t num_seats() const { return static_cast<std::int64_t>(rows_.size()); }  // with the empty ones
  // Launches only. Draft `index` of every seat from its logits, [seats, vocab] f32.
  void draw(ExecutionContext& context, const View& logits, std::int32_t index);
  // Behind draw(): [seats] i32 on the device, at the same place in every step of so many seats.
  View ids(std::int32_t index) const { return sampler_.ids(index * num_seats(), num_seats()); }
  // Waits, and appends each seat's drafts to its proposals.
  Status take();

 private:
  explicit DeviceDrafts(DeviceSampler sampler) : sampler_(std::move(sampler)) {}

  DeviceSampler sampler_;
  std::vector<Seat> seats_;
  std::vector<DeviceSampler::DraftedRows> rows_;
  std::int32_t num_drafts_ = 0;
};

}  // namespace fathom
