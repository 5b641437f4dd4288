#include "engine/stop_strings.h"

#include <algorithm>

#include "base/check.h"

namespace fathom {

StopStrings::StopStrings(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    FATHOM_CHECK(!stop.empty(), "a stop string has a first byte");
    Automaton automaton;
    automaton.text = stop;
    automaton.fallback.assign(stop.size(), 0);
    std::uint32_t border = 0;
    for (std::size_t i = 1; i < stop.size(); ++i) {
      while (border > 0 && stop[i] != stop[border]) border = automaton.fallback[border - 1];
      if (stop[i] == stop[border]) ++border;
      automaton.fallback[i] = border;
    }
    automata_.push_back(std::move(automaton));
  }
}

std::optional<std::int32_t> StopStrings::push(std::string_view piece, std::string& out) {
  if (automata_.empty()) {
    out += piece;
    return std::nullopt;
  }
  for (char byte : piece) {
    held_ += byte;
    std::size_t open = 0;  // bytes that some stop string may begin with
    std::optional<std::int32_t> match;
    for (std::size_t i = 0; i < automata_.size(); ++i) {
      Automaton& a = automata_[i];
      while (a.state > 0 && a.text[a.state] != byte) a.state = a.fallback[a.state - 1];
      if (a.text[a.state] == byte) ++a.state;
      if (a.state == a.text.size() &&
          (!match || a.text.size() > automata_[static_cast<std::size_t>(*match)].text.size())) {
        match = static_cast<std::int32_t>(i);
      }
      open = std::max<std::size_t>(open, a.state);
    }
    if (match) {
      out.append(held_, 0, held_.size() - automata_[static_cast<std::size_t>(*match)].text.size());
      held_.clear();
      return match;
    }
    if (held_.size() > open) {
      out.append(held_, 0, held_.size() - open);
      held_.erase(0, held_.size() - open);
    }
  }
  return std::nullopt;
}

void StopStrings::flush(std::string& out) {
  out += held_;
  held_.clear();
}

}  // namespace fathom
