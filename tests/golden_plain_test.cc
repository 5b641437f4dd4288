// `plain` numerics against goldens made by code that is not ours: short prompts of every model, all variants.
#include "golden_plain_checks.h"

namespace fathom::testing {
namespace {

TEST(GoldenPlain, MiniReference) {
  const Goldens goldens(source_path("tests/data/golden/mini-plain/goldens.safetensors"));
  Runner runner(source_path("models/mini-v4"), Numerics::plain(), kReference);
  for (const char* prompt : {"chat_mul", "chat_cap", "chat_hi", "len1", "len5"}) {
    check_plain_prompt(goldens, prompt, runner, kReferenceTolerance);
  }
}

TEST(GoldenPlain, MiniCpu) {
  const Goldens goldens(source_path("tests/data/golden/mini-plain/goldens.safetensors"));
  Runner runner(source_path("models/mini-v4"), Numerics::plain(), kCpu);
  for (const char* prompt : {"chat_mul", "chat_mul_think", "chat_cap", "chat_hi", "chat_memory", "len1", "len5",
                             "len127", "len128", "len130", "len300_hidden"}) {
    check_plain_prompt(goldens, prompt, runner, kCpuTolerance);
  }
}

TEST(GoldenPlain, TinyRandomReference) {
  const Goldens goldens(source_path("tests/data/golden/tiny-random/goldens.safetensors"));
  Runner runner(source_path("tests/data/models/tiny-random"), Numerics::plain(), kReference);
  for (const char* prompt : {"rand1", "rand7", "rand64"}) {
    check_plain_prompt(goldens, prompt, runner, kReferenceTolerance);
  }
}

TEST(GoldenPlain, TinyRandomCpu) {
  const Goldens goldens(source_path("tests/data/golden/tiny-random/goldens.safetensors"));
  Runner runner(source_path("tests/data/models/tiny-random"), Numerics::plain(), kCpu);
  for (const std::string& prompt : goldens.prompts()) check_plain_prompt(goldens, prompt, runner, kCpuTolerance);
}

TEST(GoldenPlain, TinyRandomNvfp4Cpu) {
  FATHOM_SHARED_OR_SKIP(model, "models/tiny-random-nvfp4");
  const Goldens goldens(source_path("tests/data/golden/tiny-random/goldens.safetensors"));
  Runner runner(model, Numerics::plain(), kCpu);
  for (const std::string& prompt : goldens.prompts()) check_plain_prompt(goldens, prompt, runner, kCpuTolerance);
}

TEST(GoldenPlain, TinyRandomNvfp4Reference) {
  FATHOM_SHARED_OR_SKIP(model, "models/tiny-random-nvfp4");
  const Goldens goldens(source_path("tests/data/golden/tiny-random/goldens.safetensors"));
  Runner runner(model, Numerics::plain(), kReference);
  for (const char* prompt : {"rand1", "rand7"}) check_plain_prompt(goldens, prompt, runner, kReferenceTolerance);
}

TEST(GoldenPlain, TinyRandomHfCpu) {
  FATHOM_SHARED_OR_SKIP(model, "models/tiny-random-hf");
  const Goldens goldens(source_path("tests/data/golden/tiny-random-hf/goldens.safetensors"));
  Runner runner(model, Numerics::plain(), kCpu);
  for (const std::string& prompt : goldens.prompts()) check_plain_prompt(goldens, prompt, runner, kCpuTolerance);
}

TEST(GoldenPlain, TinyRandomHfReference) {
  FATHOM_SHARED_OR_SKIP(model, "models/tiny-random-hf");
  const Goldens goldens(source_path("tests/data/golden/tiny-random-hf/goldens.safetensors"));
  Runner runner(model, Numerics::plain(), kReference);
  for (const char* prompt : {"rand1", "rand7"}) check_plain_prompt(goldens, prompt, runner, kReferenceTolerance);
}

// The check bites: other numerics do not pass it.
TEST(GoldenPlain, OtherNumericsDoNotPass) {
  const Goldens goldens(source_path("tests/data/golden/mini-plain/goldens.safetensors"));
  const std::vector<std::int32_t> ids = goldens.ints("len130.ids");
  const std::vector<float> golden = goldens.floats("len130.last_logits");
  for (const Numerics& numerics : {Numerics::vendor(), Numerics::serve()}) {
    Runner runner(source_path("models/mini-v4"), numerics, kCpu);
    EXPECT_GT(relative_l2(runner.last_logits(ids), golden), kCpuTolerance) << numerics_name(numerics.mode);
  }
}

}  // namespace
}  // namespace fathom::testing
