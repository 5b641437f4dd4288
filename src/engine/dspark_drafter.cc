// The DSpark drafter (spec 2.10): a block of drafts in one pass, drawn one after the other through the Markov head.
#include <algorithm>
#include <optional>
#include <vector>

#include "engine/device_drafts.h"
#include "engine/draft_pass.h"
#include "engine/draft_sampler.h"

namespace fathom {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// Context keys are functions of the trunk's rows at the same positions: they are written in every step, so nothing
// lags, and prefix hits and rollbacks need nothing of their own.
class DsparkDrafter final : public Drafter {
 public:
  DsparkDrafter(Model& model, const DrafterLimits& limits)
      : model_(model), limits_(limits), block_size_(model.config().dspark_block_size) {}

  Status allocate() {
    Backend& backend = model_.backend();
    most_blocks_ = std::min<std::int64_t>(
        limits_.max_sequences, std::min(model_.options().max_tokens, model_.options().max_logit_rows) / block_size_);
    if (most_blocks_ == 0) {
      return invalid_argument("drafting needs " + std::to_string(block_size_) +
                              " rows with logits in a step, found room for " +
                              std::to_string(model_.options().max_logit_rows));
    }
    StepInputLimits input;
    input.max_tokens = input.max_logit_rows = most_blocks_ * block_size_;
    input.max_sequences = most_blocks_;
    input.max_window_entries = most_blocks_ * num_window_blocks(model_.options().max_tokens + 2 * kMaxDraft);
    FATHOM_ASSIGN_OR_RETURN(input_, StepInput::make(backend, input));
    row_bytes_ = round_up(most_blocks_ * 4, 256);
    FATHOM_ASSIGN_OR_RETURN(rows_, backend.allocate(2 * row_bytes_, "rows of a draft block"));
    ids_.assign(at(block_size_), model_.config().dspark_noise_token_id);
    blocks_.reserve(at(most_blocks_));
    previous_.resize(at(most_blocks_));
    indices_.resize(at(most_blocks_));
    if (backend.is_host_memory()) return {};
    const std::int64_t vocab = model_.config().vocab_size;
    FATHOM_ASSIGN_OR_RETURN(DeviceDrafts drafts,
                            DeviceDrafts::make(backend, vocab, static_cast<std::int32_t>(most_blocks_)));
    drafts_ = std::move(drafts);
    seats_.reserve(at(most_blocks_));
    lists_.resize(at(most_blocks_ * (1 + block_size_)));
    FATHOM_ASSIGN_OR_RETURN(device_lists_, backend.allocate(4 * std::ssize(lists_), "rows of draft blocks"));
    return {};
  }

  std::int32_t max_proposals() const override { return std::min(block_size_, kMaxDraft); }
  std::int64_t state_bytes() const override { return 0; }
  bool may_rest() const override { return false; }

  void create(StateSlot) override {}
  Status save(const ResumeCopy&) override { return {}; }
  Status restore(const ResumeCopy&) override { return {}; }

  Status run(ExecutionContext& context, const StepInput& trunk, const CachePools& pools,
             std::span<const DraftedSequence> sequences) override {
    blocks_.clear();
    for (const DraftedSequence& sequence : sequences) {
      if (sequence.result == nullptr) continue;
      sequence.result->proposals.clear();
      const std::int64_t end =
          (sequence.window_first + static_cast<std::int64_t>(sequence.window_table.size())) * kBlockTokens;
      const bool fits = sequence.committed_length() + block_size_ <= end;
      if (sequence.step->num_proposals == 0 || sequence.next_token() < 0 || !fits) continue;
      if (std::cmp_less(blocks_.size(), most_blocks_)) blocks_.push_back({&sequence, sequence.step->num_proposals, 0});
    }
    if (!blocks_.empty()) FATHOM_RETURN_IF_ERROR(fill_input());
    if (drafts_) {
      seats_.clear();
      for (const Block& block : blocks_) seats_.push_back({block.sequence, block.num_wanted});
      FATHOM_ASSIGN_OR_RETURN(const bool on_device, drafts_->begin(seats_));
      if (on_device) return run_on_device(context, trunk, pools, sequences);
    }
    model_.draft_context(context, trunk, pools);
    if (blocks_.empty()) return model_.backend().finish();
    return draft_blocks(context, pools);
  }

 private:
  struct Block {
    const DraftedSequence* sequence = nullptr;
    std::int32_t num_wanted = 0;
    std::int32_t first_row = 0;
  };

  Status fill_input() {
    input_.clear();
    for (Block& block : blocks_) {
      const DraftedSequence& sequence = *block.sequence;
      block.num_wanted = std::min(block.num_wanted, max_proposals());
      block.first_row = input_.num_tokens();
      ids_[0] = sequence.next_token();
      SequenceRows rows;
      rows.tokens = ids_;
      rows.start = sequence.committed_length();
      rows.window_table = sequence.window_table;
      rows.window_first = sequence.window_first;
      rows.state_slot = sequence.state_slot.value;
      rows.block_visible = rows.window_only = true;
      input_.add(rows);
      for (std::int32_t i = 0; i < block_size_; ++i) input_.add_logit_row(block.first_row + i);
    }
    return input_.upload();
  }

  Status draft_blocks(ExecutionContext& context, const CachePools& pools) {
    model_.draft_block(context, input_, pools);
    ++num_forwards_;
    num_rows_ += input_.num_tokens();
    for (std::int32_t i = 0; !blocks_.empty(); ++i) {
      FATHOM_RETURN_IF_ERROR(draw(context, i));
      std::erase_if(blocks_, [&](const Block& block) { return block.num_wanted <= i + 1; });
    }
    return {};
  }

  // Draft `index` of every block.
  Status draw(ExecutionContext& context, std::int32_t index) {
    Backend& backend = model_.backend();
    const auto count = static_cast<std::int64_t>(blocks_.size());
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const DraftedSequence& sequence = *blocks_[b].sequence;
      previous_[b] = index == 0 ? sequence.next_token() : sequence.result->proposals.back();
      indices_[b] = blocks_[b].first_row + index;
    }
    const auto send = [&](const std::vector<std::int32_t>& values, std::int64_t offset_bytes) {
      return backend.upload(rows_.data + offset_bytes, reinterpret_cast<const std::byte*>(values.data()), count * 4);
    };
    FATHOM_RETURN_IF_ERROR(send(previous_, 0));
    FATHOM_RETURN_IF_ERROR(send(indices_, row_bytes_));
    const Model::MarkovDrafts drafts = model_.draft_markov(context, make_view(rows_.data, DType::kI32, {count}),
                                                           make_view(rows_.data + row_bytes_, DType::kI32, {count}));
    const float* logits = drafts.logits.as<float>();
    if (!backend.is_host_memory()) {
      host_logits_.resize(at(drafts.logits.shape.num_elements()));
      FATHOM_RETURN_IF_ERROR(backend.download(reinterpret_cast<std::byte*>(host_logits_.data()), drafts.logits.data,
                                              drafts.logits.num_bytes()));
      logits = host_logits_.data();
    }
    FATHOM_RETURN_IF_ERROR(backend.finish());
    const std::size_t vocab = at(model_.config().vocab_size);
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const TokenId draft = sampler_.draw(*blocks_[b].sequence, {logits + b * vocab, vocab});
      if (draft < 0) {
        blocks_[b].num_wanted = 0;
      } else {
        blocks_[b].sequence->result->proposals.push_back(draft);
      }
    }
    return {};
  }

  // All drafts of a step in one go of launches. In steps of decodes alone they have the same shape again and again.
  Status run_on_device(ExecutionContext& context, const StepInput& trunk, const CachePools& pools,
                       std::span<const DraftedSequence> sequences) {
    const auto count = static_cast<std::int64_t>(blocks_.size());
    // The tokens behind the committed ones, then the rows of each draft.
    for (std::int64_t b = 0; b < count; ++b) {
      lists_[at(b)] = blocks_[at(b)].sequence->next_token();
      for (std::int64_t d = 0; d < drafts_->num_drafts(); ++d) {
        lists_[at((1 + d) * count + b)] = static_cast<std::int32_t>(blocks_[at(b)].first_row + d);
      }
    }
    FATHOM_RETURN_IF_ERROR(model_.backend().upload(device_lists_.data,
                                                   reinterpret_cast<const std::byte*>(lists_.data()),
                                                   4 * count * (1 + drafts_->num_drafts())));
    const auto launches = [&](ExecutionContext& launching) { launch_blocks(launching, trunk, pools); };
    const bool steady =
        (count == 0 || blocks_.size() == sequences.size()) && is_replayable(limits_, context, sequences);
    if (steady) {
      // Without drafts the context keys alone: another shape.
      const CaptureKey key{limits_.capture_owner + (count == 0 ? 1 : 0), trunk.num_tokens(),
                           static_cast<std::int32_t>(sequences.size()),
                           static_cast<std::int32_t>(count) * drafts_->num_drafts(), true};
      FATHOM_RETURN_IF_ERROR(launch_draft_pass(model_, limits_, key, context, launches));
    } else {
      launches(context);
    }
    if (count == 0) return steady ? Status() : model_.backend().finish();
    ++num_forwards_;
    num_rows_ += input_.num_tokens();
    FATHOM_RETURN_IF_ERROR(drafts_->take());
    if (steady) limits_.segments->read(model_.backend());
    return {};
  }

  void launch_blocks(ExecutionContext& context, const StepInput& trunk, const CachePools& pools) {
    model_.draft_context(context, trunk, pools);
    if (blocks_.empty()) return;
    model_.draft_block(context, input_, pools);
    const auto count = static_cast<std::int64_t>(blocks_.size());
    const auto list = [&](std::int64_t index) {
      return make_view(device_lists_.data + 4 * index * count, DType::kI32, {count});
    };
    for (std::int32_t d = 0; d < drafts_->num_drafts(); ++d) {
      const View previous = d == 0 ? list(0) : drafts_->ids(d - 1);
      drafts_->draw(context, model_.draft_markov(context, previous, list(1 + d)).logits, d);
    }
  }

  Model& model_;
  DrafterLimits limits_;
  std::int32_t block_size_ = 0;
  std::int64_t most_blocks_ = 0;
  std::int64_t row_bytes_ = 0;
  StepInput input_;
  DeviceMemory rows_;  // [2, most_blocks] i32, each padded to 256 bytes: tokens before, rows
  std::vector<TokenId> ids_;
  std::vector<Block> blocks_;
  std::vector<std::int32_t> previous_, indices_;
  std::vector<float> host_logits_;
  DraftSampler sampler_;
  // On a device.
  std::optional<DeviceDrafts> drafts_;
  std::vector<DeviceDrafts::Seat> seats_;
  std::vector<std::int32_t> lists_;
  DeviceMemory device_lists_;
};

}  // namespace

Result<std::unique_ptr<Drafter>> make_dspark_drafter(Model& model, const DrafterLimits& limits) {
  auto drafter = std::make_unique<DsparkDrafter>(model, limits);
  FATHOM_RETURN_IF_ERROR(drafter->allocate());
  return std::unique_ptr<Drafter>(std::move(drafter));
}

Result<std::unique_ptr<Drafter>> make_drafter(Model& model, const DrafterLimits& limits) {
  switch (model.draft_kind()) {
    case DraftKind::kMtp: return make_mtp_drafter(model, limits);
    case DraftKind::kDspark: return make_dspark_drafter(model, limits);
    case DraftKind::kNone: break;
  }
  return std::unique_ptr<Drafter>();
}

}  // namespace fathom
