// A report as text for terminals and readers, and as one self-contained page.
#pragma once

#include <span>
#include <string>

#include "profile/report.h"
#include "profile/timeline.h"

namespace fathom {

std::string report_text(const ProfileReport& report);

// `step`: the one whose timeline is drawn; null: none.
std::string report_html(const ProfileReport& report, const TimelineStep* step);

// The step of median time; null where there is none.
const TimelineStep* median_step(std::span<const std::vector<TimelineStep>> repeats);

}  // namespace fathom
