// The classic MTP block as a drafter (spec 2.9): one token, and more by feeding its own streams back.
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "engine/draft_pass.h"
#include "engine/draft_sampler.h"
#include "engine/mtp_passes.h"

namespace fathom {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

class MtpDrafter final : public Drafter {
 public:
  MtpDrafter(Model& model, const DrafterLimits& limits)
      : model_(model),
        limits_(limits),
        planned_(streams_, limits.num_state_slots, limits.num_resume_slots, model.options().max_tokens) {}

  Status allocate() {
    Backend& backend = model_.backend();
    const ModelConfig& config = model_.config();
    row_bytes_ = std::int64_t{config.hc_mult} * config.hidden_size * dtype_bytes(backend.activation_dtype());
    FATHOM_ASSIGN_OR_RETURN(streams_,
                            DraftStreams::make(backend, row_bytes_, limits_.num_state_slots, limits_.num_resume_slots));
    StepInputLimits input;
    input.max_tokens = model_.options().max_tokens;
    input.max_sequences = limits_.max_sequences + 1;  // one fills up
    input.max_logit_rows = limits_.max_sequences;
    input.max_window_entries = limits_.max_sequences * num_window_blocks(input.max_tokens + 2 * kMaxDraft) + 1;
    FATHOM_ASSIGN_OR_RETURN(inputs_[0], StepInput::make(backend, input));
    passes_.reserve(at(limits_.max_sequences));
    ids_.reserve(at(input.max_tokens));
    return backend.is_host_memory() ? Status() : allocate_on_device(input);
  }

  Status allocate_on_device(StepInputLimits input) {
    Backend& backend = model_.backend();
    FATHOM_CHECK(row_bytes_ % 16 == 0, "streams move in pieces of 16 bytes");
    num_gathered_ = input.max_tokens;
    input.max_tokens = limits_.max_sequences;
    input.max_window_entries += limits_.max_sequences;
    for (std::size_t d = 1; d < inputs_.size(); ++d) {
      FATHOM_ASSIGN_OR_RETURN(inputs_[d], StepInput::make(backend, input));
    }
    const std::int64_t num_places =
        std::max(gather_list() + num_gathered_, 2 * (num_gathered_ + limits_.max_sequences));
    FATHOM_ASSIGN_OR_RETURN(
        DraftPass pass,
        DraftPass::make(model_, limits_, std::min<std::int64_t>(limits_.max_sequences, model_.options().max_logit_rows),
                        num_places));
    device_ = std::move(pass);
    return {};
  }

  std::int32_t max_proposals() const override { return kMaxDraft; }
  std::int64_t state_bytes() const override { return streams_.bytes_of_sequence(); }
  bool may_rest() const override { return true; }

  void create(StateSlot slot) override { planned_.create(slot); }
  Status save(const ResumeCopy& copy) override { return planned_.save(copy); }
  Status restore(const ResumeCopy& copy) override { return planned_.restore(copy); }

  Status keep(ExecutionContext& context, std::span<const DraftedSequence> sequences) override {
    if (!device_) {
      for (const DraftedSequence& sequence : sequences) {
        FATHOM_RETURN_IF_ERROR(keep_streams(sequence, DraftStreams::kKept));
      }
      return {};
    }
    std::vector<std::int32_t>& to_rows = ids_;
    std::int64_t count = 0;
    to_rows.clear();
    for (const DraftedSequence& sequence : sequences) {
      note_kept(sequence, DraftStreams::kKept, [&](std::int64_t position, std::int64_t to) {
        device_->place(count++) = trunk_row(sequence, position);
        to_rows.push_back(static_cast<std::int32_t>(to));
      });
    }
    for (std::int64_t i = 0; i < count; ++i) device_->place(count + i) = to_rows[at(i)];
    FATHOM_RETURN_IF_ERROR(device_->send_places(2 * count));
    context.layer = model_.config().num_hidden_layers;
    return model_.copy_rows(context, {streams_.data(), model_.final_streams().data, nullptr, device_->places(0),
                                      device_->places(count), static_cast<std::int32_t>(count), row_bytes_});
  }

  Status run(ExecutionContext& context, const StepInput& trunk, const CachePools& pools,
             std::span<const DraftedSequence> sequences) override {
    for (const DraftedSequence& sequence : sequences) {
      if (sequence.result != nullptr) sequence.result->proposals.clear();
    }
    planned_.plan(sequences, passes_);
    // Decodes without drafts: there is a hole from here on, behind which the streams of this step are of no use.
    if (passes_.empty() && std::none_of(sequences.begin(), sequences.end(), MtpPasses::is_of_prompt)) return {};
    if (device_) {
      device_->clear();
      for (const MtpPass& pass : passes_) {
        if (pass.num_wanted > 0) device_->add_seat(*pass.sequence, pass.num_wanted);
      }
      const std::optional<Shape> captured = captured_shape(context, sequences);
      const Shape shape = captured.value_or(Shape());
      FATHOM_ASSIGN_OR_RETURN(const bool on_device, device_->begin(shape.num_empty));
      if (on_device) return run_on_device(context, pools, sequences, shape, captured.has_value());
    }
    FATHOM_RETURN_IF_ERROR(gather_first_streams(trunk));
    for (const DraftedSequence& sequence : sequences) FATHOM_RETURN_IF_ERROR(keep_streams(sequence, 1));
    while (!passes_.empty()) {
      FATHOM_RETURN_IF_ERROR(run_pass(context, pools));
      FATHOM_RETURN_IF_ERROR(plan_next_pass());
    }
    return {};
  }

 private:
  static std::int32_t trunk_row(const DraftedSequence& sequence, std::int64_t position) {
    return static_cast<std::int32_t>(sequence.first_row + position - sequence.step->start);
  }

  // Places the passes' rows one after another; returns how many there are.
  std::int32_t place_rows() {
    std::int32_t total = 0;
    for (MtpPass& pass : passes_) {
      pass.last_row = total + pass.num_rows - 1;
      total += pass.num_rows;
    }
    return total;
  }

  // Streams of the position before each row.
  Status gather_first_streams(const StepInput& trunk) {
    const View final_streams = model_.final_streams();
    FATHOM_CHECK(final_streams.shape[0] == trunk.num_tokens(), "the streams of this step");
    const std::int32_t total = place_rows();
    if (total == 0) return {};
    pass_streams_ = model_.draft_input_streams(total);
    std::byte* to = pass_streams_.data;
    for (const MtpPass& pass : passes_) {
      const DraftedSequence& sequence = *pass.sequence;
      const std::int64_t num_kept = std::min(pass.num_from_kept, pass.num_rows);
      for (std::int64_t p = pass.first - 1; p < pass.first - 1 + num_kept; ++p) {
        FATHOM_RETURN_IF_ERROR(
            model_.backend().copy(to, streams_.row(streams_.row_of(sequence.state_slot, p)), row_bytes_));
        to += row_bytes_;
      }
      const std::int64_t count = pass.num_rows - num_kept;
      if (count == 0) continue;
      const std::int64_t row = trunk_row(sequence, pass.first - 1 + num_kept);
      FATHOM_RETURN_IF_ERROR(model_.backend().copy(to, final_streams.data + row * row_bytes_, count * row_bytes_));
      to += count * row_bytes_;
    }
    return {};
  }

  // Of the positions that the step commits, those that are kept now, and where: the last ones, at most `most`, and the
  // last one before a block's end.
  template <typename Keep>
  void note_kept(const DraftedSequence& sequence, std::int64_t most, Keep keep) {
    const StateSlot slot = sequence.state_slot;
    const std::int64_t end = sequence.committed_length(), first = std::max(sequence.step->start, end - most);
    for (std::int64_t p = first; p < end; ++p) keep(p, streams_.row_of(slot, p));
    streams_.note(slot, first, sequence.tokens.subspan(at(first - sequence.step->start), at(end - first)));
    const std::int64_t boundary = MtpPasses::boundary_position(sequence);
    if (boundary < 0) return;
    keep(boundary, streams_.boundary_row(slot));
    streams_.note_boundary(slot, boundary);
  }
  Status keep_streams(const DraftedSequence& sequence, std::int64_t most) {
    Status status;
    note_kept(sequence, most, [&](std::int64_t position, std::int64_t to) {
      if (!status.ok()) return;
      status = model_.backend().copy(
          streams_.row(to), model_.final_streams().data + trunk_row(sequence, position) * row_bytes_, row_bytes_);
    });
    return status;
  }

  // Rows [first, first + num_rows) of the pass's sequence. A draft's id that only the device knows counts as 0.
  void add_rows(StepInput& input, const MtpPass& pass, std::int64_t first, std::int32_t num_rows) {
    const DraftedSequence& sequence = *pass.sequence;
    const std::int64_t length = sequence.committed_length();
    ids_.clear();
    for (std::int64_t p = first; p < first + num_rows; ++p) {
      if (p < sequence.step->start) {
        ids_.push_back(streams_.token_of(sequence.state_slot, p));
      } else if (p < length) {
        ids_.push_back(sequence.tokens[at(p - sequence.step->start)]);
      } else if (p == length) {
        ids_.push_back(sequence.next_token());
      } else {
        const std::vector<TokenId>& proposals = sequence.result->proposals;
        ids_.push_back(at(p - length - 1) < proposals.size() ? proposals[at(p - length - 1)] : 0);
      }
    }
    SequenceRows rows;
    rows.tokens = ids_;
    rows.start = first;
    rows.window_table = sequence.window_table;
    rows.window_first = sequence.window_first;
    rows.state_slot = sequence.state_slot.value;
    rows.window_only = true;
    rows.window_floor = planned_.floor_of(sequence);
    input.add(rows);
  }
  // Rows of nobody: they see each other in a block of their own.
  void add_filling(StepInput& input, std::int32_t num_rows) {
    if (num_rows == 0) return;
    ids_.assign(at(num_rows), 0);
    SequenceRows rows;
    rows.tokens = ids_;
    rows.start = rows.window_floor = 1;
    rows.window_table = {&limits_.spare_window_block, 1};
    rows.window_only = true;
    input.add(rows);
  }

  void add_empty_passes(StepInput& input, std::int32_t count, bool draw) {
    for (std::int32_t i = 0; i < count; ++i) {
      add_filling(input, 1);
      if (draw) input.add_logit_row(input.num_tokens() - 1);
    }
  }

  Status run_pass(ExecutionContext& context, const CachePools& pools) {
    StepInput& input = inputs_[0];
    input.clear();
    std::int32_t num_logit_rows = 0;
    for (const MtpPass& pass : passes_) {
      add_rows(input, pass, pass.first, pass.num_rows);
      if (pass.num_wanted > 0) {
        input.add_logit_row(pass.last_row);
        ++num_logit_rows;
      }
    }
    FATHOM_RETURN_IF_ERROR(input.upload());
    const View device_logits = model_.draft_mtp(context, input, pass_streams_, pools);
    ++num_forwards_;
    num_rows_ += input.num_tokens();
    if (num_logit_rows == 0) return model_.backend().finish();
    const float* logits = device_logits.as<float>();
    if (!model_.backend().is_host_memory()) {
      host_logits_.resize(at(device_logits.shape.num_elements()));
      FATHOM_RETURN_IF_ERROR(model_.backend().download(reinterpret_cast<std::byte*>(host_logits_.data()),
                                                       device_logits.data, device_logits.num_bytes()));
      logits = host_logits_.data();
    }
    FATHOM_RETURN_IF_ERROR(model_.backend().finish());
    const std::size_t vocab = at(model_.config().vocab_size);
    for (MtpPass& pass : passes_) {
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
    std::erase_if(passes_, [](const MtpPass& pass) { return pass.num_wanted == 0; });
    if (passes_.empty()) return {};
    const View streams = model_.draft_streams();
    pass_streams_ = model_.draft_input_streams(static_cast<std::int64_t>(passes_.size()));
    std::int32_t row = 0;
    for (MtpPass& pass : passes_) {
      FATHOM_RETURN_IF_ERROR(model_.backend().copy(pass_streams_.data + row * row_bytes_,
                                                   streams.data + pass.last_row * row_bytes_, row_bytes_));
      pass.first += pass.num_rows;
      pass.num_rows = 1;
      pass.last_row = row++;
    }
    return {};
  }

  // ---- all drafts of a step in one go of launches, on a device ----

  // Lists of places of stream rows, in its lists one behind the other: where kept rows come from (trunk rows) and
  // go (rows of streams_), the last row of each seat, the rows that the first pass reads (trunk rows, or -1 - a row of
  // streams_).
  std::int64_t keep_to_list() const { return 2 * std::int64_t{limits_.max_sequences}; }
  std::int64_t last_row_list() const { return 4 * std::int64_t{limits_.max_sequences}; }
  std::int64_t gather_list() const { return 5 * std::int64_t{limits_.max_sequences}; }

  // Returns how many places the list has; those of empty passes keep nothing.
  std::int32_t list_kept_streams(std::span<const DraftedSequence> sequences, std::int32_t num_empty) {
    std::int64_t i = 0;
    const auto list = [&](std::int64_t from, std::int64_t to) {
      device_->place(i) = static_cast<std::int32_t>(from);
      device_->place(keep_to_list() + i++) = static_cast<std::int32_t>(to);
    };
    for (const DraftedSequence& sequence : sequences) {
      const std::int64_t next = i + 2;
      note_kept(sequence, 1, [&](std::int64_t position, std::int64_t to) { list(trunk_row(sequence, position), to); });
      if (i < next) list(0, -1);
    }
    for (std::int32_t e = 0; e < 2 * num_empty; ++e) list(0, -1);
    return static_cast<std::int32_t>(i);
  }

  // What stands behind the passes in a captured step: passes of nobody, of one row each, and rows that belong to
  // nobody.
  struct Shape {
    std::int32_t num_empty = 0;
    std::int32_t num_filling = 0;
    std::int32_t num_rows() const { return num_empty + num_filling; }
  };

  // Before list_kept_streams: the rows of streams_ are those of the step before.
  void list_read_streams(const Shape& shape, std::int32_t num_rows) {
    std::int64_t i = gather_list();
    for (const MtpPass& pass : passes_) {
      const DraftedSequence& sequence = *pass.sequence;
      for (std::int64_t p = pass.first; p < pass.first + pass.num_rows; ++p) {
        const bool is_kept = p < pass.first + pass.num_from_kept;
        device_->place(i++) = is_kept ? static_cast<std::int32_t>(-1 - streams_.row_of(sequence.state_slot, p - 1))
                                      : trunk_row(sequence, p - 1);
      }
    }
    for (std::int32_t f = 0; f < shape.num_rows(); ++f) device_->place(i + f) = 0;
    std::int64_t seat = last_row_list();
    for (const MtpPass& pass : passes_) {
      if (pass.num_wanted > 0) device_->place(seat++) = pass.last_row;
    }
    for (std::int32_t e = 0; e < shape.num_empty; ++e) device_->place(seat++) = num_rows + e;
  }

  // Besides empty passes the first pass's rows are rounded up, to whole ones of each sequence.
  std::optional<Shape> captured_shape(const ExecutionContext& context, std::span<const DraftedSequence> sequences) {
    const std::optional<std::int32_t> num_empty = device_->num_empty(context, sequences);
    if (!num_empty || passes_.empty() || passes_.size() != sequences.size()) return std::nullopt;
    const std::int64_t batch = std::ssize(passes_) + *num_empty;
    const std::int64_t num_rows = place_rows() + *num_empty;
    const std::int64_t rounded = round_up(num_rows, std::clamp<std::int64_t>(batch, 1, kBlockTokens - 1));
    if (num_rows > batch * (1 + kMaxDraft) || rounded > num_gathered_) return std::nullopt;
    return Shape{*num_empty, static_cast<std::int32_t>(rounded - num_rows)};
  }

  Status run_on_device(ExecutionContext& context, const CachePools& pools, std::span<const DraftedSequence> sequences,
                       const Shape& shape, bool captured) {
    const std::int32_t num_own_rows = place_rows(), num_rows = num_own_rows + shape.num_rows();
    list_read_streams(shape, num_own_rows);
    const std::int32_t num_kept = list_kept_streams(sequences, shape.num_empty);
    FATHOM_RETURN_IF_ERROR(device_->send_places(gather_list() + num_rows));
    if (num_rows > 0) FATHOM_RETURN_IF_ERROR(fill_inputs(shape));
    const std::int32_t num_drafts = device_->drafts().num_drafts();
    std::optional<CaptureKey> key;
    if (captured) {
      const std::int32_t num_passes = static_cast<std::int32_t>(passes_.size()) + shape.num_empty;
      // With and without filling are other shapes.
      key = {limits_.capture_owner + (shape.num_filling > 0 ? 1 : 0), num_rows, num_passes, num_passes * num_drafts,
             true};
    }
    Status launched;
    FATHOM_RETURN_IF_ERROR(device_->launch(key, context, [&](ExecutionContext& launching) {
      launched = launch_block(launching, pools, num_kept, num_rows);
    }));
    FATHOM_RETURN_IF_ERROR(launched);
    if (num_rows == 0) return {};
    num_forwards_ += std::max(1, num_drafts);
    num_rows_ += num_own_rows + device_->num_seats() * std::max(0, num_drafts - 1);
    return device_->take();
  }

  // The rows of every pass: after the first, one a seat, at the position of the draft before; a seat that wants no more
  // is filled up.
  Status fill_inputs(const Shape& shape) {
    inputs_[0].clear();
    for (const MtpPass& pass : passes_) {
      add_rows(inputs_[0], pass, pass.first, pass.num_rows);
      if (pass.num_wanted > 0) inputs_[0].add_logit_row(pass.last_row);
    }
    add_empty_passes(inputs_[0], shape.num_empty, device_->num_seats() > 0);
    add_filling(inputs_[0], shape.num_filling);
    FATHOM_RETURN_IF_ERROR(inputs_[0].upload());
    for (std::int32_t d = 1; d < device_->drafts().num_drafts(); ++d) {
      StepInput& input = inputs_[at(d)];
      input.clear();
      for (const MtpPass& pass : passes_) {
        if (pass.num_wanted == 0) continue;
        if (pass.num_wanted > d) {
          add_rows(input, pass, pass.sequence->committed_length() + d, 1);
          input.add_logit_row(input.num_tokens() - 1);
        } else {
          add_empty_passes(input, 1, true);
        }
      }
      add_empty_passes(input, shape.num_empty, true);
      FATHOM_RETURN_IF_ERROR(input.upload());
      input.use_token_ids(device_->drafts().ids(d - 1));
    }
    return {};
  }

  // Launches only: `num_rows` rows of the first pass with those that fill up.
  Status launch_block(ExecutionContext& context, const CachePools& pools, std::int32_t num_kept,
                      std::int32_t num_rows) {
    context.layer = model_.config().num_hidden_layers;
    const std::byte* trunk = model_.final_streams().data;
    View streams;
    if (num_rows > 0) {
      streams = model_.draft_input_streams(num_rows);
      FATHOM_RETURN_IF_ERROR(model_.copy_rows(
          context,
          {streams.data, trunk, streams_.data(), device_->places(gather_list()), nullptr, num_rows, row_bytes_}));
    }
    FATHOM_RETURN_IF_ERROR(model_.copy_rows(context, {streams_.data(), trunk, nullptr, device_->places(0),
                                                      device_->places(keep_to_list()), num_kept, row_bytes_}));
    if (num_rows == 0) return {};
    View logits = model_.draft_mtp(context, inputs_[0], streams, pools);
    if (device_->num_seats() == 0) return {};
    DeviceDrafts& drafts = device_->drafts();
    drafts.draw(context, logits, 0);
    for (std::int32_t d = 1; d < drafts.num_drafts(); ++d) {
      streams = model_.draft_streams();
      if (d == 1) {
        const std::byte* from = streams.data;
        streams = model_.draft_input_streams(drafts.num_seats());
        FATHOM_RETURN_IF_ERROR(
            model_.copy_rows(context, {streams.data, from, nullptr, device_->places(last_row_list()), nullptr,
                                       static_cast<std::int32_t>(drafts.num_seats()), row_bytes_}));
      }
      logits = model_.draft_mtp(context, inputs_[at(d)], streams, pools);
      drafts.draw(context, logits, d);
    }
    return {};
  }

  Model& model_;
  DrafterLimits limits_;
  std::int64_t row_bytes_ = 0;
  DraftStreams streams_;
  MtpPasses planned_;
  std::array<StepInput, kMaxDraft> inputs_;  // of the passes; on the host the first alone
  std::vector<MtpPass> passes_;
  View pass_streams_;
  std::vector<TokenId> ids_;
  std::vector<float> host_logits_;
  DraftSampler sampler_;
  // On a device.
  std::optional<DraftPass> device_;
  std::int64_t num_gathered_ = 0;  // most rows of a first pass
};

}  // namespace

Result<std::unique_ptr<Drafter>> make_mtp_drafter(Model& model, const DrafterLimits& limits) {
  auto drafter = std::make_unique<MtpDrafter>(model, limits);
  FATHOM_RETURN_IF_ERROR(drafter->allocate());
  return std::unique_ptr<Drafter>(std::move(drafter));
}

}  // namespace fathom
