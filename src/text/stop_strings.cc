#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace fathom {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) { std::erase(stops_, ""); }

bool StopStrings::push(std::string_view text, std::string& out) {
  if (stopped_) return true;
  held_ += text;
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    out.append(held_, 0, first);
    held_.clear();
    stopped_ = true;
    return true;
  }
  // The longest end of the text that starts a stop stays.
  std::size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t length = std::min(stop.size() - 1, held_.size()); length > keep; --length) {
      if (held_.compare(held_.size() - length, length, stop, 0, length) == 0) {
        keep = length;
        break;
      }
    }
  }
  out.append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return false;
}

void StopStrings::flush(std::string& out) {
  if (!stopped_) out += held_;
  held_.clear();
}

}  // namespace fathom
