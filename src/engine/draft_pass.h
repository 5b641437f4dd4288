// All drafts of a step in one go of launches, on a device: what both drafters' passes have in common.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/device_drafts.h"
#include "engine/drafter.h"

namespace fathom {

// Of each step: clear(), a seat for each sequence that drafts are drawn for, begin(); then what the launches read is
// sent, launch(), take().
class DraftPass {
 public:
  // At most `max_seats`, empty ones included, and lists of `num_places` together. The model must outlive it.
  static Result<DraftPass> make(Model& model, const DrafterLimits& limits, std::int64_t max_seats,
                                std::int64_t num_places);

  void clear() { seats_.clear(); }
  void add_seat(const DraftedSequence& sequence, std::int32_t num_wanted) { seats_.push_back({&sequence, num_wanted}); }
  std::int64_t num_seats() const { return std::ssize(seats_); }  // without the empty ones

  // Steps of decodes alone, in which all sequences draft or none does, have few shapes and can be replayed: how many
  // more of nobody stand behind their sequences, so that few batches serve them all. None for other steps, and where
  // what runs is profiled: those are launched.
  std::optional<std::int32_t> num_empty(const ExecutionContext& context,
                                        std::span<const DraftedSequence> sequences) const;
  // False: the drafts have to be drawn on the host.
  Result<bool> begin(std::int32_t num_empty) { return drafts_.begin(seats_, num_empty); }
  DeviceDrafts& drafts() { return drafts_; }

  // Lists of rows and tokens, one behind the other.
  std::int32_t& place(std::int64_t index) { return lists_[static_cast<std::size_t>(index)]; }
  Status send_places(std::int64_t count);
  std::int32_t* places(std::int64_t begin) const {  // on the device
    return reinterpret_cast<std::int32_t*>(device_lists_.data) + begin;
  }

  // Launches only; with a key replayed, the second time captured.
  Status launch(const std::optional<CaptureKey>& key, ExecutionContext& context,
                const std::function<void(ExecutionContext&)>& launches);
  // Waits, and appends each seat's drafts to its proposals.
  Status take();

 private:
  DraftPass(Model& model, const DrafterLimits& limits, DeviceDrafts drafts)
      : model_(&model), limits_(limits), drafts_(std::move(drafts)) {}

  Model* model_;
  DrafterLimits limits_;
  DeviceDrafts drafts_;
  std::int64_t max_seats_ = 0;
  std::vector<DeviceDrafts::Seat> seats_;
  std::vector<std::int32_t> lists_;
  DeviceMemory device_lists_;
  bool is_captured_ = false;  // what was launched last
};

}  // namespace fathom
