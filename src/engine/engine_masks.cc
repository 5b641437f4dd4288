// What a step's rows may draw: masks of constraints, made on the engine's thread where they cost little, else beside
// it.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/thread_time.h"
#include "base/units.h"
#include "engine/engine_thread.h"

namespace fathom::engine_detail {
namespace {

// Masks that took long make the next ones expected to, less and less so.
constexpr double kKeptOfLongest = 0.95;

void clear_bit(std::span<std::uint32_t> mask, TokenId id) {
  const auto word = static_cast<std::size_t>(id) / 32;
  if (id >= 0 && word < mask.size()) mask[word] &= ~(1u << (id % 32));
}

}  // namespace

// Whether the constraint has a say in the next step of a choice with these drafts.
bool EngineThread::is_constrained(const Choice& choice, std::span<const TokenId> drafts) {
  if (!choice.is_constrained) return false;
  if (!choice.output.in_reasoning()) return true;
  const std::optional<TokenId>& end = choice.request->request.reasoning_end;
  return end && std::find(drafts.begin(), drafts.end(), *end) != drafts.end();
}

// The choice's known tokens and drafts are those of its next step. Its masks are made beside this thread unless they
// are expected to take, together with others' of the step, less than the budget. Until they are there the choice sits
// out the steps that would draw from it.
void EngineThread::begin_masks(Choice& choice) {
  if (!choice.is_constrained || options_.mask_budget_us < 0) return;
  const SequenceState& state = *scheduler_.find(choice.sequence);
  const auto drafts = std::span<const TokenId>(state.tokens).subspan(static_cast<std::size_t>(state.num_known));
  if (!is_constrained(choice, drafts)) return;
  const auto budget_us = static_cast<double>(options_.mask_budget_us);
  if (choice.mask_us >= 0 && step_masks_us_ + choice.mask_us <= budget_us) {
    step_masks_us_ += choice.mask_us;
    return;
  }
  if (mask_workers_ == nullptr) {
    mask_workers_ = std::make_unique<MaskWorkers>(
        [mailbox = mailbox_] { mailbox->post({Command::Kind::kMasksDone, {}, nullptr, nullptr, 0}); });
  }
  if (choice.mask_job == nullptr) choice.mask_job = std::make_shared<MaskJob>();
  MaskJob& job = *choice.mask_job;
  job.constraint = std::move(choice.constraint);
  job.drafts.assign(drafts.begin(), drafts.end());
  job.in_reasoning = choice.output.in_reasoning();
  job.reasoning_end = choice.request->request.reasoning_end;
  job.is_long = choice.mask_us > budget_us;
  job.masks.assign(static_cast<std::size_t>(ceil_div(limits_.vocab_size, 32)) * (drafts.size() + 1), ~0u);
  mask_workers_->post(choice.mask_job);
  masking_.push_back(&choice);
  scheduler_.set_held(choice.sequence, true);
  ++counts_.masks_beside;
}

// Before a plan. Masks that are not known to take long are worth a moment.
void EngineThread::take_masks() {
  if (masking_.empty()) return;
  mask_workers_->wait_for_short(std::chrono::microseconds(options_.mask_budget_us));
  std::erase_if(masking_, [this](Choice* choice) {
    if (!mask_workers_->is_done(*choice->mask_job)) return false;
    choice->constraint = std::move(choice->mask_job->constraint);
    choice->mask_us = std::max(choice->mask_job->us, choice->mask_us * kKeptOfLongest);
    choice->masks_made = true;
    scheduler_.set_held(choice->sequence, false);
    return true;
  });
}

// The choice ends, maybe while its masks are being made.
void EngineThread::drop_masks(Choice& choice) {
  if (std::erase(masking_, &choice) > 0) mask_workers_->drop(*choice.mask_job);
}

// The masks of a choice's logits rows, of which the last draw: row i of those stands behind the first i drafts. Rows
// before them are of the prompt: nothing is drawn there.
void EngineThread::fill_masks(Choice& choice, const SequenceState& state, std::int32_t num_rows,
                              std::int32_t num_drafts) {
  const Request& request = choice.request->request;
  const bool bars_end = !choice.output.may_end(0);
  if (!bars_end && !choice.is_constrained) return;
  const auto words = static_cast<std::size_t>(ceil_div(limits_.vocab_size, 32));
  choice.mask.assign(words * static_cast<std::size_t>(num_rows), ~0u);
  const std::span<std::uint32_t> masks = std::span(choice.mask).last(words * static_cast<std::size_t>(num_drafts + 1));
  const auto drafts = std::span<const TokenId>(state.tokens)
                          .subspan(static_cast<std::size_t>(state.num_known), static_cast<std::size_t>(num_drafts));
  if (std::exchange(choice.masks_made, false)) {
    // Made for all drafts; those a plan has no room for are the last ones.
    const std::vector<std::uint32_t>& made = choice.mask_job->masks;
    FATHOM_CHECK(made.size() >= masks.size(), "masks of the step's drafts");
    std::copy(made.begin(), made.begin() + static_cast<std::ptrdiff_t>(masks.size()), masks.begin());
  } else if (is_constrained(choice, drafts)) {
    const double begin_us = thread_time_us();
    fill_constraint_masks(*choice.constraint, drafts, choice.output.in_reasoning(), request.reasoning_end, masks);
    choice.mask_us = std::max(thread_time_us() - begin_us, choice.mask_us * kKeptOfLongest);
  }
  for (std::int32_t i = 0; i <= num_drafts; ++i) {
    if (choice.output.may_end(i)) continue;
    const std::span<std::uint32_t> mask = masks.subspan(words * static_cast<std::size_t>(i), words);
    if (!request.ignore_eos) clear_bit(mask, eos_id_);
    for (TokenId id : request.stop_token_ids) clear_bit(mask, id);
  }
  choice.spec.allowed = choice.mask;
}

}  // namespace fathom::engine_detail
