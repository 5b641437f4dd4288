#include "engine/device_sampler.h"

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "ops/cache_view.h"

namespace fathom {
namespace {

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }
// Of a step, all rows together. A request may bias 1,024 ids.
constexpr std::int64_t kMaxBiases = 1 << 16;
constexpr std::int64_t kMaxHistories = 1 << 20;

}  // namespace

template <typename T>
Status DeviceSampler::make_array(std::int64_t capacity, const char* purpose, Array<T>& array) {
  array.capacity = capacity;
  array.host.reserve(at(std::min<std::int64_t>(capacity, 1 << 12)));
  FATHOM_ASSIGN_OR_RETURN(array.memory, backend_->allocate(capacity * static_cast<std::int64_t>(sizeof(T)), purpose));
  return {};
}

template <typename T>
Status DeviceSampler::send(Array<T>& array) {
  return backend_->upload(array.memory.data, reinterpret_cast<const std::byte*>(array.host.data()),
                          static_cast<std::int64_t>(array.host.size() * sizeof(T)));
}

Result<DeviceSampler> DeviceSampler::make(Backend& backend, std::int64_t vocab, std::int32_t max_rows,
                                          std::int32_t max_sequences) {
  // Rows beyond these are of prompts: their ids are given, not drawn.
  return make_for_rows(backend, vocab, max_rows, std::min(max_rows, max_sequences * (1 + kMaxDraft)));
}

// The rows of one draft are drawn before those of the next: they share what they compute with.
Result<DeviceSampler> DeviceSampler::make_for_drafts(Backend& backend, std::int64_t vocab, std::int32_t max_drafts,
                                                     std::int32_t max_sequences) {
  return make_for_rows(backend, vocab, max_drafts * max_sequences, max_sequences);
}

Result<DeviceSampler> DeviceSampler::make_for_rows(Backend& backend, std::int64_t vocab, std::int32_t max_rows,
                                                   std::int32_t max_value_rows) {
  DeviceSampler sampler;
  sampler.backend_ = &backend;
  sampler.plan_ = plan_sample_rows(vocab);
  sampler.max_value_rows_ = max_value_rows;
  const std::int64_t words = ceil_div(vocab, 32);
  FATHOM_RETURN_IF_ERROR(sampler.make_array(max_rows, "sampling options", sampler.rows_));
  FATHOM_RETURN_IF_ERROR(sampler.make_array(sampler.max_value_rows_ * words, "token masks", sampler.masks_));
  FATHOM_RETURN_IF_ERROR(sampler.make_array(kMaxBiases, "logit biases", sampler.biases_));
  FATHOM_RETURN_IF_ERROR(sampler.make_array(kMaxHistories, "penalised ids", sampler.histories_));
  FATHOM_RETURN_IF_ERROR(sampler.make_array(max_rows, "sampled tokens", sampler.sampled_));
  FATHOM_RETURN_IF_ERROR(sampler.make_array(max_rows, "ids of sampled tokens", sampler.ids_));
  FATHOM_ASSIGN_OR_RETURN(sampler.values_,
                          backend.allocate(sampler.max_value_rows_ * vocab * 4, "logits of rows with cuts or masks"));
  FATHOM_ASSIGN_OR_RETURN(sampler.exchange_,
                          backend.allocate(sampler.plan_.exchange_bytes, "exchange of samplers' blocks"));
  const std::vector<std::byte> zeros(at(sampler.plan_.exchange_bytes));
  FATHOM_RETURN_IF_ERROR(backend.upload(sampler.exchange_.data, zeros.data(), sampler.plan_.exchange_bytes));
  sampler.counts_.resize(at(vocab), 0);
  return sampler;
}

// Each id once, as apply_penalties() of the host's rule treats it.
void DeviceSampler::add_history(const SampleSpec& spec, SampleRow& row) {
  const bool repetition = spec.repetition_penalty != 1.0f;
  if (!repetition && spec.frequency_penalty == 0.0f && spec.presence_penalty == 0.0f) return;
  const auto known = [this](TokenId id) { return id >= 0 && at(id) < counts_.size(); };
  constexpr std::int32_t kInPrompt = 1 << 30;
  seen_.clear();
  const auto see = [&](TokenId id, std::int32_t mark) {
    std::int32_t& count = counts_[at(id)];
    if (count == 0) seen_.push_back(id);
    if (mark == 1) {
      ++count;
    } else {
      count |= mark;
    }
  };
  if (repetition) {
    for (const TokenId id : spec.prompt_ids) {
      if (known(id)) see(id, kInPrompt);
    }
  }
  for (const TokenId id : spec.output_ids) {
    if (known(id)) see(id, 1);
  }
  row.history_begin = static_cast<std::int32_t>(histories_.host.size());
  row.history_count = static_cast<std::int32_t>(seen_.size());
  for (const TokenId id : seen_) histories_.host.push_back({id, std::exchange(counts_[at(id)], 0) & (kInPrompt - 1)});
}

bool DeviceSampler::add_row(const SampleSpec& spec, std::int64_t position, std::int32_t bias_begin) {
  SampleRow row;
  row.seed = spec.seed, row.position = position, row.choice = spec.choice;
  row.temperature = spec.temperature, row.top_p = spec.top_p, row.min_p = spec.min_p, row.top_k = spec.top_k;
  row.repetition_penalty = spec.repetition_penalty;
  row.frequency_penalty = spec.frequency_penalty, row.presence_penalty = spec.presence_penalty;
  row.num_logprobs = spec.num_logprobs;
  if (spec.num_logprobs > kMaxSampleTop) return false;
  if (!spec.forced.empty()) row.forced = spec.forced[0];
  if (row.forced < 0) {
    if (!spec.allowed.empty()) {
      if (!masks_.has_room(spec.allowed.size())) return false;
      row.mask_begin = static_cast<std::int32_t>(masks_.host.size());
      masks_.host.insert(masks_.host.end(), spec.allowed.begin(), spec.allowed.end());
    }
    row.bias_begin = bias_begin, row.bias_count = static_cast<std::int32_t>(spec.logit_bias.size());
    if (!histories_.has_room(std::min(spec.prompt_ids.size() + spec.output_ids.size(), counts_.size()))) return false;
    add_history(spec, row);
    if (row.changes_logits() || row.cuts()) {
      if (num_value_rows_ == max_value_rows_) return false;
      row.value_row = num_value_rows_++;
    }
  }
  rows_.host.push_back(row);
  return true;
}

void DeviceSampler::clear() {
  rows_.host.clear(), masks_.host.clear(), biases_.host.clear(), histories_.host.clear();
  num_value_rows_ = 0;
}

Status DeviceSampler::send_rows() {
  FATHOM_RETURN_IF_ERROR(send(rows_));
  FATHOM_RETURN_IF_ERROR(send(masks_));
  FATHOM_RETURN_IF_ERROR(send(biases_));
  return send(histories_);
}

const SampleSpec& DeviceSampler::nobody() {
  static const SampleSpec greedy = [] {
    SampleSpec spec;
    spec.temperature = 0.0f;
    return spec;
  }();
  return greedy;
}

Result<bool> DeviceSampler::fill(const StepPlan& plan, std::int32_t num_empty) {
  clear();
  std::size_t next = 0;
  for (const SequenceStep& step : plan.sequences) {
    if (step.num_logits == 0) continue;
    const SampleSpec& spec = plan.samples[next++];
    if (!biases_.has_room(spec.logit_bias.size())) return false;
    const auto bias_begin = static_cast<std::int32_t>(biases_.host.size());
    for (const auto& [id, bias] : spec.logit_bias) biases_.host.push_back({id, bias});
    const std::int64_t end = step.start + step.num_tokens;
    for (std::int32_t i = 0; i < step.num_logits; ++i) {
      const SampleSpec narrow = row_spec(spec, i, step.num_logits, plan_.vocab);
      if (!add_row(narrow, end - step.num_logits + i + 1, bias_begin)) return false;
    }
  }
  for (std::int32_t i = 0; i < num_empty; ++i) {
    if (!add_row(nobody(), 0, 0)) return false;
  }
  FATHOM_RETURN_IF_ERROR(send_rows());
  return true;
}

Result<bool> DeviceSampler::fill_drafts(std::span<const DraftedRows> sequences, std::int32_t num_drafts) {
  clear();
  if (sequences.size() * at(num_drafts) > at(rows_.capacity)) return false;
  for (std::int32_t draft = 0; draft < num_drafts; ++draft) {
    num_value_rows_ = 0;
    std::int32_t bias_begin = 0;  // the first draft's lists serve all
    for (const DraftedRows& sequence : sequences) {
      SampleSpec spec = *sequence.spec;
      if (spec.repetition_penalty != 1.0f || spec.frequency_penalty != 0.0f || spec.presence_penalty != 0.0f) {
        return false;
      }
      spec.allowed = {};
      spec.forced = {};
      spec.num_logprobs = -1;
      if (draft == 0) {
        if (!biases_.has_room(spec.logit_bias.size())) return false;
        for (const auto& [id, bias] : spec.logit_bias) biases_.host.push_back({id, bias});
      }
      if (!add_row(spec, sequence.position + draft, bias_begin)) return false;
      bias_begin += static_cast<std::int32_t>(spec.logit_bias.size());
    }
  }
  FATHOM_RETURN_IF_ERROR(send_rows());
  return true;
}

View DeviceSampler::ids(std::int64_t first_row, std::int64_t count) const {
  FATHOM_CHECK(first_row + count <= ids_.capacity, "rows that it has room for");
  return make_view(ids_.memory.data + 4 * first_row, DType::kI32, {count});
}

Result<std::span<const std::int32_t>> DeviceSampler::take_ids() {
  ids_.host.resize(rows_.host.size());
  FATHOM_RETURN_IF_ERROR(backend_->download(reinterpret_cast<std::byte*>(ids_.host.data()), ids_.memory.data,
                                            static_cast<std::int64_t>(4 * ids_.host.size())));
  return std::span<const std::int32_t>(ids_.host);
}

void DeviceSampler::launch(ExecutionContext& context, const View& logits, std::int64_t first_row) {
  SampleRowsArgs args;
  args.logits = logits;
  args.rows = rows_.device() + first_row;
  args.masks = masks_.device();
  args.biases = biases_.device();
  args.histories = histories_.device();
  args.exchange = make_view(exchange_.data, DType::kU8, {plan_.exchange_bytes});
  args.values = make_view(values_.data, DType::kF32, {std::int64_t{max_value_rows_}, plan_.vocab});
  args.sampled = sampled_.device() + first_row;
  args.ids = ids_.device() + first_row;
  run_sample_rows(context, plan_, args);
}

Result<std::span<const SampledRow>> DeviceSampler::take() {
  sampled_.host.resize(rows_.host.size());
  FATHOM_RETURN_IF_ERROR(backend_->download(reinterpret_cast<std::byte*>(sampled_.host.data()), sampled_.memory.data,
                                            static_cast<std::int64_t>(sampled_.host.size() * sizeof(SampledRow))));
  return std::span<const SampledRow>(sampled_.host);
}

}  // namespace fathom
