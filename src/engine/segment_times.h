// Where the card's time goes, always on: in one of many replays of a captured step, events between its layers note the
// time. The timed replay is another graph of the same launches, so the others cost nothing.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "backend/backend.h"

namespace fathom {

// Sums over the timed replays. Segments: what stands before the first layer (embedding), each layer of the trunk, what
// stands behind the last (head and drawing), and the draft pass.
struct SegmentTimes {
  struct Segment {
    double time_us = 0;
    std::int64_t num_samples = 0;
  };
  Segment embedding, head, draft;
  std::vector<Segment> layers;
};

class SegmentClock {
 public:
  // A key's first timed replay is its kFirst-th: the second graph costs a capture. Then every kEvery-th.
  static constexpr std::int64_t kFirst = 128, kEvery = 32;

  explicit SegmentClock(std::int32_t num_trunk_layers);

  // Before Backend::launch_captured with this key: what the replay shall note.
  SegmentTiming next(const CaptureKey& key);
  // After the launched work was waited for: reads what the last replay noted, if it did.
  void read(Backend& backend);

  const SegmentTimes& times() const { return times_; }
  // On at first. Off: counts nothing.
  void turn(bool on) { is_on_ = on; }

 private:
  void add(const CapturedStep& step, const std::vector<double>& segment_us);

  std::int32_t num_trunk_layers_;
  bool is_on_ = true;
  bool is_timed_ = false;
  std::map<CaptureKey, std::int64_t> num_replays_;
  SegmentTimes times_;
};

}  // namespace fathom
