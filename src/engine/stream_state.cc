#include "engine/stream_state.h"

#include <string>
#include <utility>

#include "engine/engine.h"

namespace fathom {
namespace engine_detail {

Status Mailbox::submit(Command command, std::int32_t max_requests, std::int64_t max_tokens) {
  const auto tokens = static_cast<std::int64_t>(command.request->prompt.size());
  {
    const std::lock_guard lock(mutex_);
    if (!closed_.ok()) return closed_;
    if (num_queued_ >= max_requests) {
      return resource_exhausted("queue full: " + std::to_string(num_queued_) + " requests wait, at most " +
                                std::to_string(max_requests) + " may; try again later");
    }
    // One request is let in however long it is.
    if (num_queued_ > 0 && queued_tokens_ + tokens > max_tokens) {
      return resource_exhausted("queue full: " + std::to_string(queued_tokens_) +
                                " prompt tokens wait, this request has " + std::to_string(tokens) + ", at most " +
                                std::to_string(max_tokens) + " may wait together; try again later");
    }
    ++num_queued_;
    queued_tokens_ += tokens;
    commands_.push_back(std::move(command));
  }
  arrived_.notify_one();
  return {};
}

void Mailbox::post(Command command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  arrived_.notify_one();
}

std::vector<Command> Mailbox::take(std::chrono::microseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto some = [this] { return !commands_.empty(); };
  if (timeout.count() < 0) {
    arrived_.wait(lock, some);
  } else if (timeout.count() > 0) {
    arrived_.wait_for(lock, timeout, some);
  }
  return std::exchange(commands_, {});
}

void Mailbox::left_queue(std::int64_t prompt_tokens) {
  const std::lock_guard lock(mutex_);
  --num_queued_;
  queued_tokens_ -= prompt_tokens;
}

void Mailbox::close(const Status& reason) {
  const std::lock_guard lock(mutex_);
  if (closed_.ok()) closed_ = reason;
}

bool Mailbox::closed() const {
  const std::lock_guard lock(mutex_);
  return !closed_.ok();
}

std::int64_t Mailbox::queued_tokens() const {
  const std::lock_guard lock(mutex_);
  return queued_tokens_;
}

std::size_t StreamState::push(Delta delta) {
  std::size_t num_pending = 0;
  {
    const std::lock_guard lock(mutex_);
    if (abandoned_) return 0;
    pending_.push_back(std::move(delta));
    num_pending = pending_.size();
  }
  arrived_.notify_all();
  if (num_pending == 1) {
    const std::lock_guard lock(callback_mutex_);
    if (on_ready_) on_ready_();
  }
  return num_pending;
}

bool StreamState::pause() {
  const std::lock_guard lock(mutex_);
  if (pending_.empty() || abandoned_) return false;
  paused_ = true;
  return true;
}

std::vector<Delta> StreamState::take_locked(std::unique_lock<std::mutex>& lock) {
  std::vector<Delta> taken = std::exchange(pending_, {});
  for (const Delta& delta : taken) num_open_ -= delta.finish ? 1 : 0;
  const bool was_paused = std::exchange(paused_, false);
  lock.unlock();
  if (was_paused) {
    if (const auto mailbox = mailbox_.lock()) mailbox->post({Command::Kind::kContinue, id_, nullptr, nullptr, 0});
  }
  return taken;
}

std::vector<Delta> StreamState::take() {
  std::unique_lock lock(mutex_);
  return take_locked(lock);
}

std::vector<Delta> StreamState::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, timeout, [this] { return !pending_.empty() || num_open_ == 0; });
  return take_locked(lock);
}

bool StreamState::finished() const {
  const std::lock_guard lock(mutex_);
  return num_open_ == 0;
}

void StreamState::cancel() {
  if (finished()) return;
  if (const auto mailbox = mailbox_.lock()) mailbox->post({Command::Kind::kCancel, id_, nullptr, nullptr, 0});
}

void StreamState::abandon() {
  cancel();
  {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
    pending_.clear();
  }
  const std::lock_guard lock(callback_mutex_);
  on_ready_ = nullptr;
}

}  // namespace engine_detail

Stream::Stream(std::shared_ptr<engine_detail::StreamState> state) : state_(std::move(state)) {}
Stream::~Stream() { state_->abandon(); }
RequestId Stream::id() const { return state_->id(); }
std::vector<Delta> Stream::take() { return state_->take(); }
std::vector<Delta> Stream::wait(std::chrono::milliseconds timeout) { return state_->wait(timeout); }
bool Stream::finished() const { return state_->finished(); }
void Stream::cancel() { state_->cancel(); }

}  // namespace fathom
