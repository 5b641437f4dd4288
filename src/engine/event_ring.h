// The last events of the engine, numbered from 0; written by the engine thread, read by anyone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "engine/events.h"

namespace fathom {

class EventRing {
 public:
  explicit EventRing(std::int32_t capacity) : events_(static_cast<std::size_t>(std::max(1, capacity))) {}

  void append(std::span<const EngineEvent> events) {
    const std::lock_guard lock(mutex_);
    for (const EngineEvent& event : events) events_[static_cast<std::size_t>(next_++) % events_.size()] = event;
  }

  // Those still there with number >= *next; *next becomes the number after the last.
  std::vector<EngineEvent> read(std::int64_t* next) const {
    const std::lock_guard lock(mutex_);
    const auto size = static_cast<std::int64_t>(events_.size());
    std::vector<EngineEvent> result;
    for (std::int64_t i = std::max(*next, next_ - size); i < next_; ++i) {
      result.push_back(events_[static_cast<std::size_t>(i) % events_.size()]);
    }
    *next = next_;
    return result;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<EngineEvent> events_;
  std::int64_t next_ = 0;
};

}  // namespace fathom
