#include "synthetic_model.h"

#include <cstdlib>
#include <filesystem>

#include "commands.h"

namespace fathom::app {

SyntheticModel::~SyntheticModel() {
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

Result<std::string> SyntheticModel::make(const std::string& config, int layers, int experts) {
  std::string pattern = (std::filesystem::temp_directory_path() / "fathom-synthetic-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) return io_error("cannot make a folder for the synthetic model: " + pattern);
  folder_ = pattern;
  SynthOptions synth;
  synth.config = config;
  synth.layers = layers;
  synth.experts = experts;
  synth.draft = "none";
  synth.out = folder_ + "/model";
  if (run_synth(synth) != 0) return failed_precondition("the synthetic model could not be made (see above)");
  return synth.out;
}

}  // namespace fathom::app
