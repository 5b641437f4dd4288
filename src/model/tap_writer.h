// Hands named intermediate values to the step's tap sink, as host memory (telemetry/taps.h has the names).
#pragma once

#include <string_view>

#include "backend/backend.h"

namespace fathom {

class TapWriter {
 public:
  TapWriter(Backend& backend, std::int32_t num_trunk_layers) : backend_(backend), num_trunk_layers_(num_trunk_layers) {}

  // Does nothing unless a sink is set and wants this value. `layer` -1: the name stands alone; draft stage k
  // is called mtp.K.
  void write(const ExecutionContext& context, std::string_view point, std::int32_t layer, const View& value) const {
    if (context.taps != nullptr) write_value(context, point, layer, value);
  }

 private:
  void write_value(const ExecutionContext& context, std::string_view point, std::int32_t layer,
                   const View& value) const;

  Backend& backend_;
  std::int32_t num_trunk_layers_;
};

}  // namespace fathom
