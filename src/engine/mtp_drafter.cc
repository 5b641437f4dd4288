// The classic MTP block as a drafter (spec 2.9): one token, and more by feeding its own streams back.
#include <algorithm>
#include <array>
#include <vector>

#include "engine/draft_sampler.h"
#include "engine/drafter.h"

namespace fathom {
namespace {

constexpr std::int64_t kNowhere = -2;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// Two stream rows a sequence: that of the last position of the last full block, for resume points, and that of the
// last position, wherever it is.
int stream_row_of(std::int64_t position) { return position % kBlockTokens == kBlockTokens - 1 ? 1 : 0; }

class MtpDrafter final : public Drafter {
 public:
  MtpDrafter(Model& model, const DrafterLimits& limits)
      : model_(model), limits_(limits), slots_(at(limits.num_state_slots)), resumes_(at(limits.num_resume_slots)) {}

  Status allocate() {
    Backend& backend = model_.backend();
    const ModelConfig& config = model_.config();
    row_bytes_ = std::int64_t{config.hc_mult} * config.hidden_size * dtype_bytes(backend.activation_dtype());
    FATHOM_ASSIGN_OR_RETURN(streams_, backend.allocate(limits_.num_state_slots * 2 * row_bytes_, "draft streams"));
    FATHOM_ASSIGN_OR_RETURN(resume_streams_,
                            backend.allocate(limits_.num_resume_slots * row_bytes_, "draft streams of resume points"));
    StepInputLimits input;
    input.max_tokens = model_.options().max_tokens;
    input.max_sequences = limits_.max_sequences;
    input.max_logit_rows = limits_.max_sequences;
    input.max_window_entries = limits_.max_sequences * num_window_blocks(input.max_tokens + 2 * kMaxDraft);
    FATHOM_ASSIGN_OR_RETURN(input_, StepInput::make(backend, input));
    passes_.reserve(at(limits_.max_sequences));
    ids_.reserve(at(input.max_tokens));
    if (!backend.is_host_memory()) {
      host_logits_.resize(at(std::int64_t{limits_.max_sequences} * config.vocab_size));
    }
    return {};
  }

  std::int32_t max_proposals() const override { return kMaxDraft; }
  std::int64_t state_bytes() const override { return 2 * row_bytes_; }

  void create(StateSlot slot) override { slots_[at(slot.value)] = {}; }

  Status save(const ResumeCopy& copy) override {
    Slot& slot = slots_[at(copy.state_slot.value)];
    Resume& resume = resumes_[at(copy.resume_slot.value)];
    resume.begin = std::min(slot.begin, copy.boundary_tokens);
    // Rows of the block before the boundary that were never made are not to be read.
    if (slot.end < copy.boundary_tokens) resume.begin = copy.boundary_tokens;
    resume.has_streams = slot.saved[1] == copy.boundary_tokens - 1;
    if (!resume.has_streams) return {};
    return model_.backend().copy(resume_row(copy.resume_slot), stream_row(copy.state_slot, 1), row_bytes_);
  }

  Status restore(const ResumeCopy& copy) override {
    const Resume& resume = resumes_[at(copy.resume_slot.value)];
    Slot& slot = slots_[at(copy.state_slot.value)];
    slot.begin = resume.begin;
    slot.end = slot.length = copy.boundary_tokens;
    slot.saved = {kNowhere, kNowhere};
    if (!resume.has_streams) return {};
    slot.saved[1] = copy.boundary_tokens - 1;
    return model_.backend().copy(stream_row(copy.state_slot, 1), resume_row(copy.resume_slot), row_bytes_);
  }

  Status run(ExecutionContext& context, const StepInput& trunk, const CachePools& pools,
             std::span<const DraftedSequence> sequences) override {
    plan_first_pass(sequences);
    FATHOM_RETURN_IF_ERROR(gather_first_streams(trunk));
    for (const DraftedSequence& sequence : sequences) FATHOM_RETURN_IF_ERROR(keep_streams(sequence));
    for (const DraftedSequence& sequence : sequences) {
      if (sequence.result != nullptr) sequence.result->proposals.clear();
    }
    while (!passes_.empty()) {
      FATHOM_RETURN_IF_ERROR(run_pass(context, pools));
      FATHOM_RETURN_IF_ERROR(plan_next_pass());
    }
    return {};
  }

 private:
  // Rows of the draft layer hold what they should at positions [begin, end).
  struct Slot {
    std::int64_t begin = 1, end = 1;
    std::int64_t length = 0;                                   // of the sequence, when `end` was set
    std::array<std::int64_t, 2> saved = {kNowhere, kNowhere};  // positions of its stream rows
  };
  struct Resume {
    std::int64_t begin = 1;
    bool has_streams = false;
  };
  // A sequence's rows [first, first + num_rows) of a pass.
  struct Pass {
    const DraftedSequence* sequence = nullptr;
    std::int64_t first = 0;
    std::int32_t num_rows = 0;
    std::int32_t num_wanted = 0;     // proposals still to come; the last row has logits where > 0
    std::int32_t last_row = 0;       // in the pass
    bool streams_from_slot = false;  // of the first row; the others' are the trunk's
  };

  std::byte* stream_row(StateSlot slot, int row) const {
    return streams_.data + (std::int64_t{slot.value} * 2 + row) * row_bytes_;
  }
  std::byte* resume_row(ResumeSlot slot) const { return resume_streams_.data + slot.value * row_bytes_; }

  // How many drafts the step asks for and the window blocks have room for.
  std::int32_t num_wanted(const DraftedSequence& sequence) const {
    if (sequence.result == nullptr || sequence.next_token() < 0) return 0;
    const std::int64_t end =
        (sequence.window_first + static_cast<std::int64_t>(sequence.window_table.size())) * kBlockTokens;
    const std::int64_t room = end - sequence.committed_length();
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(room, 0, sequence.step->num_proposals));
  }

  void plan_first_pass(std::span<const DraftedSequence> sequences) {
    passes_.clear();
    std::int64_t rows_left = model_.options().max_tokens;
    for (const DraftedSequence& sequence : sequences) {
      const std::int64_t length = sequence.committed_length();
      rows_left -= length - sequence.step->start;
    }
    FATHOM_CHECK(rows_left >= 0, "the trunk's rows fit a step");
    for (const DraftedSequence& sequence : sequences) {
      const SequenceStep& step = *sequence.step;
      Slot& slot = slots_[at(sequence.state_slot.value)];
      const std::int64_t length = sequence.committed_length();
      Pass pass;
      pass.sequence = &sequence;
      pass.num_wanted = num_wanted(sequence);
      // Steps that draft and steps of prompts keep the rows complete; others leave a hole, behind which the block
      // starts afresh.
      const bool prompt = step.num_logits == 0 || step.step_class == StepClass::kChunk;
      if (!prompt && pass.num_wanted == 0) continue;
      // A sequence rolled back further than its step said has lost its last rows.
      if (slot.length != step.start) slot.end = std::min(slot.end, step.start);
      pass.first = slot.end;
      if (slot.end < std::max<std::int64_t>(step.start, 1))
        slot.begin = pass.first = std::max<std::int64_t>(step.start, 1);
      if (pass.first == step.start) {
        pass.streams_from_slot = slot.saved[at(stream_row_of(pass.first - 1))] == pass.first - 1;
        if (!pass.streams_from_slot) slot.begin = ++pass.first;
      }
      // The row at `length` is one more than the trunk had where the step's first one was not drafted before.
      if (pass.num_wanted > 0 && pass.first <= step.start && --rows_left < 0) pass.num_wanted = 0;
      const std::int64_t end = length + (pass.num_wanted > 0 ? 1 : 0);
      pass.num_rows = static_cast<std::int32_t>(end - pass.first);
      slot.end = std::max(pass.first, end);
      slot.length = length;
      if (pass.num_rows > 0) passes_.push_back(pass);
    }
  }

  // Streams of the position before each row.
  Status gather_first_streams(const StepInput& trunk) {
    const View final_streams = model_.final_streams();
    FATHOM_CHECK(final_streams.shape[0] == trunk.num_tokens(), "the streams of this step");
    std::int32_t total = 0;
    for (Pass& pass : passes_) {
      pass.last_row = total + pass.num_rows - 1;
      total += pass.num_rows;
    }
    if (total == 0) return {};
    pass_streams_ = model_.draft_input_streams(total);
    std::byte* to = pass_streams_.data;
    for (const Pass& pass : passes_) {
      const DraftedSequence& sequence = *pass.sequence;
      std::int64_t first = pass.first;
      std::int64_t count = pass.num_rows;
      if (pass.streams_from_slot) {
        FATHOM_RETURN_IF_ERROR(
            model_.backend().copy(to, stream_row(sequence.state_slot, stream_row_of(first - 1)), row_bytes_));
        to += row_bytes_;
        ++first;
        --count;
      }
      if (count == 0) continue;
      const std::int64_t row = sequence.first_row + first - 1 - sequence.step->start;
      FATHOM_RETURN_IF_ERROR(model_.backend().copy(to, final_streams.data + row * row_bytes_, count * row_bytes_));
      to += count * row_bytes_;
    }
    return {};
  }

  // The streams of the last committed position, and of the last one before a block's end.
  Status keep_streams(const DraftedSequence& sequence) {
    const std::int64_t start = sequence.step->start;
    const std::int64_t last = sequence.committed_length() - 1;
    FATHOM_RETURN_IF_ERROR(keep_stream(sequence, last));
    const std::int64_t before_end = (last + 1) / kBlockTokens * kBlockTokens - 1;
    if (before_end >= start && before_end != last) FATHOM_RETURN_IF_ERROR(keep_stream(sequence, before_end));
    return {};
  }
  Status keep_stream(const DraftedSequence& sequence, std::int64_t position) {
    const int row = stream_row_of(position);
    slots_[at(sequence.state_slot.value)].saved[at(row)] = position;
    const std::int64_t from = sequence.first_row + position - sequence.step->start;
    return model_.backend().copy(stream_row(sequence.state_slot, row), model_.final_streams().data + from * row_bytes_,
                                 row_bytes_);
  }

  Status run_pass(ExecutionContext& context, const CachePools& pools) {
    input_.clear();
    std::int32_t num_logit_rows = 0;
    for (const Pass& pass : passes_) {
      const DraftedSequence& sequence = *pass.sequence;
      const std::int64_t length = sequence.committed_length();
      ids_.clear();
      for (std::int64_t p = pass.first; p < pass.first + pass.num_rows; ++p) {
        if (p < length) {
          ids_.push_back(sequence.tokens[at(p - sequence.step->start)]);
        } else if (p == length) {
          ids_.push_back(sequence.next_token());
        } else {
          ids_.push_back(sequence.result->proposals[at(p - length - 1)]);
        }
      }
      SequenceRows rows;
      rows.tokens = ids_;
      rows.start = pass.first;
      rows.window_table = sequence.window_table;
      rows.window_first = sequence.window_first;
      rows.state_slot = sequence.state_slot.value;
      rows.window_only = true;
      rows.window_floor = slots_[at(sequence.state_slot.value)].begin;
      input_.add(rows);
      if (pass.num_wanted > 0) {
        input_.add_logit_row(pass.last_row);
        ++num_logit_rows;
      }
    }
    FATHOM_RETURN_IF_ERROR(input_.upload());
    const View device_logits = model_.draft_mtp(context, input_, pass_streams_, pools);
    ++num_forwards_;
    if (num_logit_rows == 0) return model_.backend().finish();
    const float* logits = device_logits.as<float>();
    if (!model_.backend().is_host_memory()) {
      FATHOM_RETURN_IF_ERROR(model_.backend().download(reinterpret_cast<std::byte*>(host_logits_.data()),
                                                       device_logits.data, device_logits.num_bytes()));
      logits = host_logits_.data();
    }
    FATHOM_RETURN_IF_ERROR(model_.backend().finish());
    const std::size_t vocab = at(model_.config().vocab_size);
    for (Pass& pass : passes_) {
      if (pass.num_wanted == 0) continue;
      const TokenId draft = sampler_.draw(*pass.sequence, {logits, vocab});
      logits += vocab;
      if (draft < 0) {
        pass.num_wanted = 0;
        continue;
      }
      pass.sequence->result->proposals.push_back(draft);
      --pass.num_wanted;
    }
    return {};
  }

  // The block's own streams of each sequence's last row, with the token just drafted.
  Status plan_next_pass() {
    std::erase_if(passes_, [](const Pass& pass) { return pass.num_wanted == 0; });
    if (passes_.empty()) return {};
    const View streams = model_.draft_streams();
    pass_streams_ = model_.draft_input_streams(static_cast<std::int64_t>(passes_.size()));
    std::int32_t row = 0;
    for (Pass& pass : passes_) {
      FATHOM_RETURN_IF_ERROR(model_.backend().copy(pass_streams_.data + row * row_bytes_,
                                                   streams.data + pass.last_row * row_bytes_, row_bytes_));
      pass.first += pass.num_rows;
      pass.num_rows = 1;
      pass.last_row = row++;
    }
    return {};
  }

  Model& model_;
  DrafterLimits limits_;
  std::int64_t row_bytes_ = 0;
  DeviceMemory streams_, resume_streams_;
  std::vector<Slot> slots_;
  std::vector<Resume> resumes_;
  StepInput input_;
  std::vector<Pass> passes_;
  View pass_streams_;
  std::vector<TokenId> ids_;
  std::vector<float> host_logits_;
  DraftSampler sampler_;
};

}  // namespace

Result<std::unique_ptr<Drafter>> make_mtp_drafter(Model& model, const DrafterLimits& limits) {
  auto drafter = std::make_unique<MtpDrafter>(model, limits);
  FATHOM_RETURN_IF_ERROR(drafter->allocate());
  return std::unique_ptr<Drafter>(std::move(drafter));
}

}  // namespace fathom
