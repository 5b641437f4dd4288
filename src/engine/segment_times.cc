#include "engine/segment_times.h"

namespace fathom {

SegmentClock::SegmentClock(std::int32_t num_trunk_layers) : num_trunk_layers_(num_trunk_layers) {
  times_.layers.resize(static_cast<std::size_t>(num_trunk_layers));
}

SegmentTiming SegmentClock::next(const CaptureKey& key) {
  is_timed_ = false;
  if (!is_on_) return SegmentTiming::kNone;
  const std::int64_t replays = ++num_replays_[key];
  is_timed_ = replays >= kFirst && (replays - kFirst) % kEvery == 0;
  return is_timed_ ? SegmentTiming::kLayers : SegmentTiming::kNone;
}

void SegmentClock::read(Backend& backend) {
  if (!is_timed_) return;
  is_timed_ = false;
  const auto step = backend.last_captured();
  if (step == nullptr || step->segments.empty()) return;
  const Result<std::vector<double>> times = backend.segment_times_us(*step);
  if (times.ok()) add(*step, *times);
}

void SegmentClock::add(const CapturedStep& step, const std::vector<double>& segment_us) {
  // A draft pass is one segment, whatever lies in it.
  double draft_us = 0;
  bool has_draft = false, seen_layer = false;
  for (std::size_t i = 0; i < segment_us.size() && i < step.segments.size(); ++i) {
    const std::int32_t layer = step.segments[i].layer;
    if (layer >= num_trunk_layers_) {
      has_draft = true;
      draft_us += segment_us[i];
      continue;
    }
    SegmentTimes::Segment* segment = nullptr;
    if (layer >= 0) {
      segment = &times_.layers[static_cast<std::size_t>(layer)];
      seen_layer = true;
    } else {
      segment = seen_layer ? &times_.head : &times_.embedding;
    }
    segment->time_us += segment_us[i];
    ++segment->num_samples;
  }
  if (!has_draft) return;
  times_.draft.time_us += draft_us;
  ++times_.draft.num_samples;
}

}  // namespace fathom
