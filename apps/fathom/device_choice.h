// Where a model runs when --device says auto.
#pragma once

#include <string>

#include "commands.h"

namespace fathom::app {

// cpu, cuda or emulated. auto is cuda where this program has it, numerics are the device's (serve) and a GPU can be
// opened; else cpu, and a program with CUDA says on stderr why.
std::string chosen_device(const ModelFlags& flags);

}  // namespace fathom::app
