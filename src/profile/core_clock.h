// How fast a core ticks, by what it does: no counter to read, so it works in containers and virtual machines too.
#pragma once

namespace fathom {

// Megahertz, from the fastest of many short runs of multiplications that wait for each other (3 cycles each on x86-64
// since 2008 and on most 64-bit Arm; elsewhere the figure is off by a constant factor, which comparisons do not mind).
// Takes about 10 ms.
double measure_core_clock_mhz();

}  // namespace fathom
