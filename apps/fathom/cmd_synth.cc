#include <unistd.h>

#include <cstdio>

#include "base/mapped_file.h"
#include "base/units.h"
#include "checkpoint/nvfp4.h"
#include "checkpoint/synthesise.h"
#include "commands.h"
#include "standard_streams.h"

namespace fathom::app {
namespace {

// A line on stderr that counts percent, on a terminal only.
class Progress {
 public:
  explicit Progress(const char* action) : action_(action), on_terminal_(isatty(STDERR_FILENO) != 0) {}
  void operator()(std::int64_t done, std::int64_t total) {
    const int percent =
        total == 0 ? 100 : static_cast<int>(static_cast<double>(done) * 100.0 / static_cast<double>(total));
    if (!on_terminal_ || percent == shown_) return;
    shown_ = percent;
    std::fprintf(stderr, "\r%s %3d%% of %s%s", action_, percent, format_bytes(total).c_str(),
                 done == total ? "\n" : "");
  }

 private:
  const char* action_;
  bool on_terminal_;
  int shown_ = -1;
};

Result<ModelConfig> named_config(const std::string& name) {
  if (name == "flash") return flash_config();
  if (name == "flash-0731") return flash_dspark_config();
  if (name == "pro") return pro_config();
  if (name == "mini") return mini_config();
  const Result<std::string> text = read_text_file(name);
  if (!text.ok()) {
    return Status(text.status()).with_context("--config: expected flash, flash-0731, pro, mini or a config.json");
  }
  return parse_config(*text, name);
}

Result<ExpectedOptions> choose_tensors(const SynthOptions& options, const ModelConfig& config) {
  ExpectedOptions tensors;
  if (options.experts_format == "mxfp4") {
    tensors.expert_format = ExpertFormat::kMxfp4;
  } else if (options.experts_format == "nvfp4") {
    tensors.expert_format = ExpertFormat::kNvfp4;
  } else if (options.experts_format == "fp8") {
    tensors.expert_format = ExpertFormat::kFp8;
    tensors.draft_expert_format = ExpertFormat::kFp8;
    tensors.block_scale_dtype = DType::kF32;
  } else {
    return invalid_argument("--format: found \"" + options.experts_format + "\", expected mxfp4, nvfp4 or fp8");
  }
  const std::string draft = !options.draft.empty()                ? options.draft
                            : config.has_dspark_keys()            ? "dspark"
                            : config.num_nextn_predict_layers > 0 ? "mtp"
                                                                  : "none";
  if (draft == "mtp") {
    tensors.draft = DraftKind::kMtp;
    tensors.num_draft_stages = 1;
  } else if (draft == "dspark") {
    if (!config.has_dspark_keys()) {
      return invalid_argument(
          "--draft dspark: found a config without dspark_block_size, expected one with DSpark keys "
          "(--config flash-0731)");
    }
    tensors.draft = DraftKind::kDspark;
    tensors.num_draft_stages = 3;
  } else if (draft != "none") {
    return invalid_argument("--draft: found \"" + draft + "\", expected none, mtp or dspark");
  }
  return tensors;
}

}  // namespace

int run_synth(const SynthOptions& options) {
  Result<ModelConfig> full = named_config(options.config);
  if (!full.ok()) return report_failure("synth", full.status());
  Result<ModelConfig> config = shrink_config(*full, options.layers, options.experts);
  if (!config.ok()) return report_failure("synth", config.status());
  Result<ExpectedOptions> tensors = choose_tensors(options, *config);
  if (!tensors.ok()) return report_failure("synth", tensors.status());
  SynthesiseOptions synthesise;
  synthesise.config = *config;
  if (tensors->expert_format == ExpertFormat::kFp8) synthesise.config.expert_dtype = ExpertDType::kFp8;
  synthesise.tensors = *tensors;
  synthesise.seed = options.seed;
  synthesise.headers_only = options.headers_only;
  synthesise.directory = options.out;
  synthesise.progress = Progress("writing");
  const Result<SynthesiseResult> result = synthesise_checkpoint(synthesise);
  if (!result.ok()) return report_failure("synth", result.status());
  std::printf("%s: %lld shards, %lld tensors, %lld bytes of tensors%s\n", options.out.c_str(),
              static_cast<long long>(result->num_shards), static_cast<long long>(result->num_tensors),
              static_cast<long long>(result->tensor_bytes), options.headers_only ? " (sparse: all zero)" : "");
  return 0;
}

int run_convert(const ConvertOptions& options) {
  if (options.to != "nvfp4") {
    return report_failure("convert", invalid_argument("--to: found \"" + options.to + "\", expected nvfp4"));
  }
  const Result<ConvertResult> result = convert_to_nvfp4(options.model, options.out, Progress("converting"));
  if (!result.ok()) return report_failure("convert", result.status());
  std::printf("%s: %lld expert matrices as NVFP4 with the same values; %lld tensors, %lld bytes\n", options.out.c_str(),
              static_cast<long long>(result->num_matrices), static_cast<long long>(result->num_tensors),
              static_cast<long long>(result->tensor_bytes));
  return 0;
}

}  // namespace fathom::app
