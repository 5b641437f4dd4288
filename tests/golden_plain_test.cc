// `plain` numerics against goldens made by code that is not ours: short prompts, all variants.
#include "golden_plain_checks.h"

namespace fathom::testing {
namespace {

constexpr double kReferenceTolerance = 2e-5;
constexpr double kCpuTolerance = 2e-3;

TEST(GoldenPlain, MiniReference) {
  const Goldens goldens(source_path("tests/data/golden/mini-plain/goldens.safetensors"));
  Runner runner(source_path("models/mini-v4"), Numerics::plain(), kReference);
  for (const char* prompt : {"chat_mul", "chat_cap", "chat_hi", "len1", "len5", "len130"}) {
    check_plain_prompt(goldens, prompt, runner, kReferenceTolerance);
  }
}

TEST(GoldenPlain, MiniCpu) {
  const Goldens goldens(source_path("tests/data/golden/mini-plain/goldens.safetensors"));
  Runner runner(source_path("models/mini-v4"), Numerics::plain(), kCpu);
  for (const char* prompt : {"chat_mul", "chat_mul_think", "chat_cap", "chat_hi", "chat_story", "chat_memory", "len1",
                             "len5", "len127", "len128", "len130"}) {
    check_plain_prompt(goldens, prompt, runner, kCpuTolerance);
  }
}

}  // namespace
}  // namespace fathom::testing
