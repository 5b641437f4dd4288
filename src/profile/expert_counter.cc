#include "profile/expert_counter.h"

#include <utility>

namespace fathom {

bool ExpertCounter::wants(std::string_view name) {
  constexpr std::string_view kPoint = "route";
  return name.starts_with(kPoint) && name.size() > kPoint.size() && name[kPoint.size()] >= '0' &&
         name[kPoint.size()] <= '9';
}

void ExpertCounter::write(std::string_view, View value) {
  const std::int32_t* ids = value.as<std::int32_t>();
  hit_.assign(hit_.size(), false);
  for (std::int64_t i = 0; i < value.shape.num_elements(); ++i) {
    const auto expert = static_cast<std::size_t>(ids[i]);
    if (expert >= hit_.size()) hit_.resize(expert + 1);
    if (hit_[expert]) continue;
    hit_[expert] = true;
    ++num_hit_;
  }
  ++num_layers_;
}

double ExpertCounter::take() {
  const std::int64_t layers = std::exchange(num_layers_, 0), hit = std::exchange(num_hit_, 0);
  return layers > 0 ? static_cast<double>(hit) / static_cast<double>(layers) : 0;
}

}  // namespace fathom
