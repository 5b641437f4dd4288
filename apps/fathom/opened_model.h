// A model ready to talk: checkpoint, tokenizer, one session. What generate, chat, logits and selfcheck start with.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "engine/load_model.h"
#include "engine/session.h"
#include "text/chat_encoding.h"
#include "text/tokenizer.h"

namespace fathom::app {

struct OpenedModel {
  LoadedModel loaded;
  std::unique_ptr<const Tokenizer> tokenizer;  // null unless asked for
  std::unique_ptr<Session> session;
  Release release = Release::kPreview;
};

// The --model given, or models/mini-v4 under the current directory or beside (or above) this program.
Result<std::string> find_model(const std::string& given);

// "operation=name" pairs.
Result<std::vector<std::pair<std::string, std::string>>> parse_variants(const std::vector<std::string>& texts);

// Loading shows a progress bar on a terminal. `max_logit_rows`: rows of a step that may yield logits; drafts add
// theirs. `draft`: off, a number or adaptive.
Result<OpenedModel> open_model(const ModelFlags& flags, bool with_tokenizer, std::int64_t max_logit_rows,
                               const std::string& draft = "off");

// Largest resident set of this process so far.
std::int64_t peak_rss_bytes();

}  // namespace fathom::app
