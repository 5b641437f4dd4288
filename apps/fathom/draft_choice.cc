#include "draft_choice.h"

#include <charconv>

namespace fathom::app {
namespace {

constexpr std::int32_t kAdaptiveDrafts = 5;

}  // namespace

Result<DraftChoice> parse_drafts(const std::string& flag, const std::string& text) {
  if (text == "off") return DraftChoice{};
  if (text == "adaptive") return DraftChoice{kAdaptiveDrafts, true};
  std::int32_t count = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 0 || count > kMaxDraft) {
    return invalid_argument(flag + ": found \"" + text + "\", expected off, 1 to " + std::to_string(kMaxDraft) +
                            ", or adaptive");
  }
  return DraftChoice{count, false};
}

Status check_drafts(const std::string& flag, const DraftChoice& choice, const Model& model) {
  if (choice.num_drafts == 0) return {};
  if (model.draft_kind() == DraftKind::kNone) {
    return invalid_argument(
        flag +
        ": found a checkpoint without usable draft tensors (mtp.*), expected an MTP block or a DSpark "
        "drafter; give " +
        flag + " off");
  }
  const std::int32_t most = model.config().dspark_block_size;
  if (model.draft_kind() == DraftKind::kDspark && !choice.adaptive && choice.num_drafts > most) {
    return invalid_argument(flag + ": found " + std::to_string(choice.num_drafts) +
                            ", this checkpoint's drafter makes blocks of " + std::to_string(most));
  }
  return {};
}

}  // namespace fathom::app
