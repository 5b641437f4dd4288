// Random weights of a known shape, in a folder that goes with the object.
#pragma once

#include <string>

#include "base/status.h"

namespace fathom::app {

class SyntheticModel {
 public:
  SyntheticModel() = default;
  SyntheticModel(const SyntheticModel&) = delete;
  SyntheticModel& operator=(const SyntheticModel&) = delete;
  ~SyntheticModel();
  // `config`: flash, flash-0731, pro, mini or a config.json; `experts` 0: the config's. Returns the model's directory.
  Result<std::string> make(const std::string& config, int layers, int experts);

 private:
  std::string folder_;
};

}  // namespace fathom::app
