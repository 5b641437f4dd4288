#include "engine/draft_pass.h"

#include <algorithm>
#include <utility>

#include "engine/filled_batch.h"

namespace fathom {

Result<DraftPass> DraftPass::make(Model& model, const DrafterLimits& limits, std::int64_t max_seats,
                                  std::int64_t num_places) {
  Backend& backend = model.backend();
  FATHOM_ASSIGN_OR_RETURN(DeviceDrafts drafts,
                          DeviceDrafts::make(backend, model.config().vocab_size, static_cast<std::int32_t>(max_seats)));
  DraftPass pass(model, limits, std::move(drafts));
  pass.max_seats_ = max_seats;
  pass.seats_.reserve(static_cast<std::size_t>(max_seats));
  pass.lists_.resize(static_cast<std::size_t>(num_places));
  FATHOM_ASSIGN_OR_RETURN(pass.device_lists_, backend.allocate(4 * num_places, "lists of a draft pass"));
  return pass;
}

std::optional<std::int32_t> DraftPass::num_empty(const ExecutionContext& context,
                                                 std::span<const DraftedSequence> sequences) const {
  const bool decodes_only = std::all_of(sequences.begin(), sequences.end(), [](const DraftedSequence& one) {
    return one.step->step_class == StepClass::kStep;
  });
  if (!limits_.capture || context.taps != nullptr || context.trace != nullptr || !decodes_only) return std::nullopt;
  if (!seats_.empty() && seats_.size() != sequences.size()) return std::nullopt;
  const std::int64_t batch = std::ssize(sequences);
  const std::int64_t filled = std::min<std::int64_t>(filled_batch(static_cast<std::int32_t>(batch)), max_seats_);
  return static_cast<std::int32_t>(std::max<std::int64_t>(0, filled - batch));
}

Status DraftPass::send_places(std::int64_t count) {
  return model_->backend().upload(device_lists_.data, reinterpret_cast<const std::byte*>(lists_.data()), 4 * count);
}

Status DraftPass::launch(const std::optional<CaptureKey>& key, ExecutionContext& context,
                         const std::function<void(ExecutionContext&)>& launches) {
  is_captured_ = key.has_value();
  if (!is_captured_) {
    launches(context);
    return {};
  }
  context.capture_max_position = model_->config().max_position_embeddings - 1;
  context.segments = limits_.segments->next(*key);
  const Status status = model_->backend().launch_captured(*key, context, launches);
  context.segments = SegmentTiming::kNone;
  context.capture_max_position = 0;
  return status;
}

Status DraftPass::take() {
  FATHOM_RETURN_IF_ERROR(seats_.empty() ? model_->backend().finish() : drafts_.take());
  if (is_captured_) limits_.segments->read(model_->backend());
  return {};
}

}  // namespace fathom
