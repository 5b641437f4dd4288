// --draft and --drafts: how deep to speculate.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "model/model.h"

namespace fathom::app {

struct DraftChoice {
  std::int32_t num_drafts = 0;  // of a step, at most
  bool adaptive = false;        // each step's number follows from measured times and acceptance
};

// "off", a number from 0 to kMaxDraft, or "adaptive". `flag` names it in refusals.
Result<DraftChoice> parse_drafts(const std::string& flag, const std::string& text);
// Refuses drafts that the model cannot make.
Status check_drafts(const std::string& flag, const DraftChoice& choice, const Model& model);

}  // namespace fathom::app
