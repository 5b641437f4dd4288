// Counts the routed experts that a step's rows hit, from the routing of its trunk layers as they are computed.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "telemetry/taps.h"

namespace fathom {

class ExpertCounter final : public TapSink {
 public:
  // Layers of the trunk only: "route12", not a draft block's "routemtp.0".
  bool wants(std::string_view name) override;
  void write(std::string_view name, View value) override;

  // Mean over the layers seen since it was last asked: distinct experts of a layer. 0: no layer was seen.
  double take();

 private:
  std::vector<bool> hit_;
  std::int64_t num_layers_ = 0, num_hit_ = 0;
};

}  // namespace fathom
