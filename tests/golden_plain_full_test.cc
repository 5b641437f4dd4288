// `plain` numerics against every golden prompt, the long ones included.
#include "golden_plain_checks.h"

namespace fathom::testing {
namespace {

TEST(GoldenPlainFull, MiniCpu) {
  const Goldens goldens(source_path("tests/data/golden/mini-plain/goldens.safetensors"));
  Runner runner(source_path("models/mini-v4"), Numerics::plain(), kCpu);
  for (const std::string& prompt : goldens.prompts()) check_plain_prompt(goldens, prompt, runner, kCpuTolerance);
}

// All but the three longest, whose states a scalar program needs minutes for: `cpu` has those.
TEST(GoldenPlainFull, MiniReference) {
  const Goldens goldens(source_path("tests/data/golden/mini-plain/goldens.safetensors"));
  Runner runner(source_path("models/mini-v4"), Numerics::plain(), kReference);
  for (const std::string& prompt : goldens.prompts()) {
    if (prompt == "len1000" || prompt == "len2049" || prompt == "len4100") continue;
    check_plain_prompt(goldens, prompt, runner, kReferenceTolerance);
  }
}

void check_tiny_reference(const std::string& model, const std::string& golden_set) {
  const Goldens goldens(source_path("tests/data/golden/" + golden_set + "/goldens.safetensors"));
  Runner runner(model, Numerics::plain(), kReference);
  for (const std::string& prompt : goldens.prompts()) check_plain_prompt(goldens, prompt, runner, kReferenceTolerance);
}

TEST(GoldenPlainFull, TinyRandomReference) {
  check_tiny_reference(source_path("tests/data/models/tiny-random"), "tiny-random");
}

TEST(GoldenPlainFull, TinyRandomNvfp4Reference) {
  FATHOM_SHARED_OR_SKIP(model, "models/tiny-random-nvfp4");
  check_tiny_reference(model, "tiny-random");
}

TEST(GoldenPlainFull, TinyRandomHfReference) {
  FATHOM_SHARED_OR_SKIP(model, "models/tiny-random-hf");
  check_tiny_reference(model, "tiny-random-hf");
}

}  // namespace
}  // namespace fathom::testing
