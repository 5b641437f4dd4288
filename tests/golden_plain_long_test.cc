// The longest golden prompts with the scalar reference: minutes.
#include "golden_plain_checks.h"

namespace fathom::testing {
namespace {

TEST(GoldenPlainLong, MiniReference) {
  const Goldens goldens(source_path("tests/data/golden/mini-plain/goldens.safetensors"));
  Runner runner(source_path("models/mini-v4"), Numerics::plain(), kReference);
  for (const char* prompt : {"len1000", "len2049", "len4100"}) {
    check_plain_prompt(goldens, prompt, runner, kReferenceTolerance);
  }
}

}  // namespace
}  // namespace fathom::testing
