#include "opened_model.h"

#include <sys/resource.h>
#include <unistd.h>

#include <climits>
#include <filesystem>

#include "draft_choice.h"
#include "model/release_of_checkpoint.h"
#include "model/tokenizer_of_checkpoint.h"
#include "progress_bar.h"

namespace fathom::app {
namespace {

constexpr const char* kDefaultModel = "models/mini-v4";

std::filesystem::path program_directory() {
  char buffer[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", buffer, sizeof buffer);
  if (length <= 0) return {};
  return std::filesystem::path(std::string(buffer, static_cast<std::size_t>(length))).parent_path();
}

}  // namespace

Result<std::string> find_model(const std::string& given) {
  std::error_code ignored;
  if (!given.empty()) return given;
  if (std::filesystem::exists(kDefaultModel, ignored)) return std::string(kDefaultModel);
  std::filesystem::path directory = program_directory();
  for (int level = 0; level < 3 && !directory.empty(); ++level) {
    const std::filesystem::path candidate = directory / kDefaultModel;
    if (std::filesystem::exists(candidate, ignored)) return candidate.string();
    directory = directory.parent_path();
  }
  return not_found(std::string("no model given and none found: expected ") + kDefaultModel +
                   " in the current directory or beside the program; give --model DIR");
}

Result<std::vector<std::pair<std::string, std::string>>> parse_variants(const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, std::string>> variants;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
      return invalid_argument("--variant: found \"" + text +
                              "\", expected operation=name, for example linear=reference");
    }
    variants.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return variants;
}

// Rows of a prefill step: larger ones are no faster on the CPU and hold more activations.
constexpr std::int64_t kStepTokens = 384;

Result<OpenedModel> open_model(const ModelFlags& flags, bool with_tokenizer, std::int64_t max_logit_rows,
                               const std::string& draft) {
  FATHOM_ASSIGN_OR_RETURN(const DraftChoice drafts, parse_drafts("--draft", draft));
  FATHOM_ASSIGN_OR_RETURN(const std::string path, find_model(flags.model));
  LoadOptions options;
  const std::optional<Numerics> numerics = parse_numerics(flags.numerics);
  if (!numerics) {
    return invalid_argument("--numerics: found \"" + flags.numerics + "\", expected plain, vendor or serve");
  }
  options.numerics = *numerics;
  options.device = parse_device(flags.device).value_or(DeviceChoice::kCpu);
  options.num_threads = flags.threads;
  options.remembered_variants = true;
  options.max_logit_rows = max_logit_rows + (drafts.num_drafts > 0 ? 2 * kMaxDraft : 0);
  options.max_step_tokens = kStepTokens;
  options.max_context_tokens = flags.max_context;
  options.draft = drafts.num_drafts > 0;  // who drafts nothing needs no room for it
  FATHOM_ASSIGN_OR_RETURN(options.variants, parse_variants(flags.variants));
  ProgressBar bar("loading");
  options.progress = [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); };

  OpenedModel opened;
  FATHOM_ASSIGN_OR_RETURN(opened.loaded, load_model(path, options));
  const Model& model = *opened.loaded.model;
  if (flags.max_context > model.config().max_position_embeddings) {
    return invalid_argument("--max-context: found " + std::to_string(flags.max_context) + ", the model takes at most " +
                            std::to_string(model.config().max_position_embeddings) + " tokens");
  }
  FATHOM_RETURN_IF_ERROR(check_drafts("--draft", drafts, model));
  opened.release = release_of_catalog(opened.loaded.checkpoint->catalog);
  if (with_tokenizer) {
    FATHOM_ASSIGN_OR_RETURN(Tokenizer tokenizer, open_tokenizer_of_model(path, model.config()));
    opened.tokenizer = std::make_unique<const Tokenizer>(std::move(tokenizer));
  }
  SessionOptions session;
  session.num_drafts = drafts.num_drafts;
  session.adaptive_drafts = drafts.adaptive;
  session.max_context_tokens = flags.max_context;
  FATHOM_ASSIGN_OR_RETURN(opened.session, Session::make(*opened.loaded.model, session));
  return opened;
}

std::int64_t peak_rss_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace fathom::app
