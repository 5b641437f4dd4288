// The DSpark drafter (spec 2.10): a block of drafts in one pass, drawn one after the other through the Markov head.
#include <algorithm>
#include <optional>
#include <vector>

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
    FATHOM_ASSIGN_OR_RETURN(DraftPass pass,
                            DraftPass::make(model_, limits_, most_blocks_, most_blocks_ * (1 + block_size_)));
    device_ = std::move(pass);
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
      if (std::cmp_less(blocks_.size(), most_blocks_)) {
        blocks_.push_back({&sequence, std::min(sequence.step->num_proposals, max_proposals()), 0});
      }
    }
    if (device_) {
      device_->clear();
      for (const Block& block : blocks_) device_->add_seat(*block.sequence, block.num_wanted);
      const std::optional<std::int32_t> num_empty = device_->num_empty(context, sequences);
      FATHOM_ASSIGN_OR_RETURN(const bool on_device, device_->begin(num_empty.value_or(0)));
      if (on_device) return run_on_device(context, trunk, pools, num_empty);
    }
    if (!blocks_.empty()) FATHOM_RETURN_IF_ERROR(fill_input(0));
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

  // The blocks, and `num_empty` of nobody behind them, which see themselves alone in a window block of their own.
  Status fill_input(std::int32_t num_empty) {
    input_.clear();
    for (Block& block : blocks_) {
      const DraftedSequence& sequence = *block.sequence;
      block.first_row = input_.num_tokens();
      ids_[0] = sequence.next_token();
      add_block(sequence.committed_length(), 0, sequence.window_table, sequence.window_first);
    }
    for (std::int32_t e = 0; e < num_empty; ++e) {
      ids_[0] = 0;
      add_block(1, 1, {&limits_.spare_window_block, 1}, 0);
    }
    return input_.upload();
  }

  // A row of each of ids_, from position `start` on; none sees a position before `floor`.
  void add_block(std::int64_t start, std::int64_t floor, std::span<const std::int32_t> window_table,
                 std::int32_t window_first) {
    SequenceRows rows;
    rows.tokens = ids_;
    rows.start = start;
    rows.window_floor = floor;
    rows.window_table = window_table;
    rows.window_first = window_first;
    rows.block_visible = rows.window_only = true;
    const std::int32_t first_row = input_.num_tokens();
    input_.add(rows);
    for (std::int32_t i = 0; i < block_size_; ++i) input_.add_logit_row(first_row + i);
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

  // All drafts of a step in one go of launches; `num_empty` where it is replayed.
  Status run_on_device(ExecutionContext& context, const StepInput& trunk, const CachePools& pools,
                       const std::optional<std::int32_t>& num_empty) {
    const auto launches = [&](ExecutionContext& launching) { launch_blocks(launching, trunk, pools); };
    const std::int32_t num_drafts = device_->drafts().num_drafts();
    const auto num_seats = static_cast<std::int32_t>(device_->drafts().num_seats());
    // Without drafts the context keys alone: another shape. The seats are as many for all of the trunk's batches that
    // are filled up to one.
    std::optional<CaptureKey> key;
    if (num_empty) {
      key = {limits_.capture_owner + (blocks_.empty() ? 1 : 0), trunk.num_tokens(), trunk.rows().num_sequences,
             num_seats * num_drafts, true};
    }
    if (blocks_.empty()) {
      FATHOM_RETURN_IF_ERROR(device_->launch(key, context, launches));
      return key ? Status() : model_.backend().finish();
    }
    FATHOM_RETURN_IF_ERROR(fill_input(num_empty.value_or(0)));
    // The tokens behind the committed ones, then the rows of each draft.
    for (std::int32_t seat = 0; seat < num_seats; ++seat) {
      device_->place(seat) = std::cmp_less(seat, blocks_.size()) ? blocks_[at(seat)].sequence->next_token() : 0;
      for (std::int32_t d = 0; d < num_drafts; ++d) device_->place((1 + d) * num_seats + seat) = seat * block_size_ + d;
    }
    FATHOM_RETURN_IF_ERROR(device_->send_places(std::int64_t{num_seats} * (1 + num_drafts)));
    FATHOM_RETURN_IF_ERROR(device_->launch(key, context, launches));
    ++num_forwards_;
    num_rows_ += std::ssize(blocks_) * block_size_;
    return device_->take();
  }

  void launch_blocks(ExecutionContext& context, const StepInput& trunk, const CachePools& pools) {
    model_.draft_context(context, trunk, pools);
    if (blocks_.empty()) return;
    model_.draft_block(context, input_, pools);
    DeviceDrafts& drafts = device_->drafts();
    const auto list = [&](std::int64_t index) {
      return make_view(device_->places(index * drafts.num_seats()), {drafts.num_seats()});
    };
    for (std::int32_t d = 0; d < drafts.num_drafts(); ++d) {
      const View previous = d == 0 ? list(0) : drafts.ids(d - 1);
      drafts.draw(context, model_.draft_markov(context, previous, list(1 + d)).logits, d);
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
  std::optional<DraftPass> device_;
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
