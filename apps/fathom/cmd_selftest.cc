// `fathom selftest`: every variant of every operation on this machine, in one table; the choice is remembered.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "backend/open_cuda.h"
#include "base/units.h"
#include "checkpoint/synthesise.h"
#include "commands.h"
#include "engine/selftest.h"
#include "opened_model.h"
#include "ops/simd/instruction_set.h"
#include "standard_streams.h"

namespace fathom::app {
namespace {

// Flash's width and its first layers, every kind of attention among them; few experts and a small vocabulary.
constexpr int kWideLayers = 4, kWideExperts = 16, kWideVocab = 16'384;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = std::filesystem::temp_directory_path() / ("fathom-selftest-" + std::to_string(getpid()));
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

Status synthesise_wide(const std::string& directory) {
  SynthesiseOptions synth;
  FATHOM_ASSIGN_OR_RETURN(synth.config, shrink_config(flash_config(), kWideLayers, kWideExperts));
  synth.config.vocab_size = kWideVocab;
  synth.tensors.draft = DraftKind::kNone;
  synth.directory = directory;
  return synthesise_checkpoint(synth).status();
}

const char* verdict_text(Verdict verdict) {
  switch (verdict) {
    case Verdict::kTwin: return "twin";
    case Verdict::kRight: return "right";
    case Verdict::kWrong: return "WRONG: disabled";
    case Verdict::kNotReached: return "not reached by this model";
  }
  return "";
}

void print_table(const SelftestResult& result) {
  std::printf("%-18s %-14s %-9s %-9s %10s %10s %8s\n", "operation", "variant", "median", "p99", "us, 1 row",
              ("us, " + std::to_string(kSelftestBatch)).c_str(), "ceiling");
  for (const VariantReport& report : result.variants) {
    std::printf("%-18s %-14s ", std::string(op_name(report.op)).c_str(), report.variant.c_str());
    if (report.verdict == Verdict::kRight || report.verdict == Verdict::kWrong) {
      std::printf("%-9.1e %-9.1e ", report.median_error, report.worst_error);
    } else {
      std::printf("%-9s %-9s ", "-", "-");
    }
    const auto time = [](double us) { return us > 0 ? std::printf("%10.1f ", us) : std::printf("%10s ", "-"); };
    time(report.us_one);
    time(report.us_many);
    if (report.us_one > 0) {
      std::printf("%6.1f %% ", 100 * report.share_of_ceiling);
    } else {
      std::printf("%8s ", "-");
    }
    std::printf(" %s%s%s\n", verdict_text(report.verdict), report.is_default ? ", default" : "",
                report.is_chosen ? ", chosen" : "");
  }
}

}  // namespace

int run_selftest_command(const SelftestCommandOptions& options) {
  SelftestOptions test;
  test.num_threads = options.threads;
  std::string device = options.device;
  std::string why;
  if (device == "auto") {
    const auto opened = open_cuda_backend({});
    device = opened.ok() ? "cuda" : "cpu";
    why = opened.ok() ? "" : opened.status().message();
  }
  test.device = parse_device(device).value_or(DeviceChoice::kCpu);
  const Result<std::string> model = find_model(options.model);
  if (!model.ok()) return report_failure("selftest", model.status());
  test.model = *model;
  const TemporaryFolder folder;
  std::string width = "this model's width";
  if (test.device == DeviceChoice::kCuda && options.wide) {
    const Status made = synthesise_wide(folder.path());
    if (made.ok()) {
      test.timed_model = folder.path();
      width = "Flash's width (" + std::to_string(kWideLayers) + " random layers, " + std::to_string(kWideExperts) +
              " experts, " + std::to_string(kWideVocab) + " tokens)";
    } else {
      std::fprintf(stderr, "times are of the small model: %s\n", made.message().c_str());
    }
  }
  if (isatty(STDERR_FILENO) != 0) {
    test.progress = [](const std::string& what) { std::fprintf(stderr, "\r\x1b[K%s", what.c_str()); };
  }
  const Result<SelftestResult> result = run_selftest(test);
  if (test.progress) std::fprintf(stderr, "\r\x1b[K");
  if (!result.ok()) return report_failure("selftest", result.status());

  if (test.device == DeviceChoice::kCuda) {
    std::printf("%s, %s\n", result->device_name.c_str(), result->key.c_str());
  } else {
    std::printf("the CPU, %s%s%s\n", simd::instruction_set(), why.empty() ? "" : "; no GPU is tested: ", why.c_str());
  }
  std::printf(
      "layers of %s, prompt and decode rows, against each operation's slow twin; times per call in decode steps at %s\n"
      "%s %.0f GB/s is the ceiling\n\n",
      test.model.c_str(), width.c_str(), test.device == DeviceChoice::kCuda ? "copying at" : "reading at",
      result->ceiling_bytes_per_s / 1e9);
  print_table(*result);
  if (result->compute_capability >= 100) {
    std::printf("\ncode for compute capability 12.0: never run by us; please report this table\n");
  }
  std::printf("\n%zu variants in %.1f s: %s\n", result->variants.size(), result->seconds,
              result->all_right() ? "all right" : "some are WRONG and disabled");
  const std::string path = variant_choices_path();
  const Status written = path.empty() ? io_error("neither XDG_CACHE_HOME nor HOME is set: nothing is remembered")
                                      : write_variant_choices(path, result->key, result->choices());
  if (written.ok()) {
    std::printf("remembered for this card and driver in %s; --variant goes before it\n", path.c_str());
  } else {
    std::fprintf(stderr, "fathom selftest: %s\n", written.message().c_str());
  }
  return result->all_right() ? 0 : 1;
}

}  // namespace fathom::app
