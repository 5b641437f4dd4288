// The pictures of a report's page, as inline SVG.
#pragma once

#include <string>

#include "profile/report.h"
#include "profile/timeline.h"

namespace fathom {

// One bar: the step's critical path by category, host, idle and unaccounted time.
std::string step_bar_svg(const ProfileReport& report);
// Measured exposed time of each category and operation beside its critical path and its summed time.
std::string exposed_svg(const ProfileReport& report);
// Operations by layers.
std::string heat_map_svg(const ProfileReport& report);
// Operations under the measured ceilings, both axes logarithmic.
std::string roofline_svg(const ProfileReport& report);
// Every call of one step, the step cut into rows.
std::string timeline_svg(const TimelineStep& step);

}  // namespace fathom
