#include "device_choice.h"

#include <cstdio>

#include "backend/open_cuda.h"

namespace fathom::app {

std::string chosen_device(const ModelFlags& flags) {
  if (flags.device != "auto") return flags.device;
  if (!built_with_cuda() || flags.numerics != "serve") return "cpu";
  const auto opened = open_cuda_backend({});
  if (opened.ok()) return "cuda";
  std::fprintf(stderr, "on the CPU, no GPU is used: %s\n", opened.status().message().c_str());
  return "cpu";
}

}  // namespace fathom::app
