#include "model/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/units.h"

namespace fathom {
namespace {

constexpr std::int64_t kAlignment = 256;

bool overlap_in_time(const MemoryPlan::Entry& a, const MemoryPlan::Entry& b) {
  return a.first <= b.last && b.first <= a.last;
}

}  // namespace

int MemoryPlan::add(std::string name, std::int64_t num_bytes, Phase first, Phase last) {
  FATHOM_CHECK(num_bytes >= 0 && first <= last, "a buffer has a size and a life");
  entries_.push_back({std::move(name), round_up(num_bytes, kAlignment), first, last, -1});
  return static_cast<int>(entries_.size()) - 1;
}

void MemoryPlan::place() {
  std::vector<std::size_t> order(entries_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [this](std::size_t a, std::size_t b) { return entries_[a].num_bytes > entries_[b].num_bytes; });
  std::vector<const Entry*> placed;  // ascending offset
  total_bytes_ = 0;
  for (const std::size_t index : order) {
    Entry& entry = entries_[index];
    std::int64_t offset = 0;
    for (const Entry* other : placed) {
      if (!overlap_in_time(entry, *other)) continue;
      if (offset + entry.num_bytes <= other->offset_bytes) break;
      offset = std::max(offset, other->offset_bytes + other->num_bytes);
    }
    entry.offset_bytes = offset;
    total_bytes_ = std::max(total_bytes_, offset + entry.num_bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), offset,
                                   [](std::int64_t at, const Entry* other) { return at < other->offset_bytes; }),
                  &entry);
  }
}

std::string MemoryPlan::to_string() const {
  std::string text;
  for (const Entry& entry : entries_) {
    std::string name = entry.name;
    name.resize(std::max<std::size_t>(name.size(), 24), ' ');
    text += name + " " + format_bytes(entry.num_bytes) + " at " + std::to_string(entry.offset_bytes) + "\n";
  }
  text += "arena                    " + format_bytes(total_bytes_) + "\n";
  return text;
}

}  // namespace fathom
