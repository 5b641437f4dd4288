// What passes between a reader and the engine thread: deltas one way, commands the other.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/request.h"

namespace fathom::engine_detail {

class StreamState;

struct Command {
  enum class Kind { kSubmit, kCancel, kContinue, kFlushCache, kMasksDone, kShutdown };
  Kind kind = Kind::kSubmit;
  RequestId id;
  // kSubmit only.
  std::unique_ptr<Request> request;
  std::shared_ptr<StreamState> stream;
  std::int64_t submitted_us = 0;
};

// Commands to the engine thread, and the admission bounds.
class Mailbox {
 public:
  // Refuses a submit beyond the bounds or after close(); everything else passes.
  Status submit(Command command, std::int32_t max_requests, std::int64_t max_tokens);
  void post(Command command);
  // All commands; waits for one if there is none, at most `timeout` (negative: for ever).
  std::vector<Command> take(std::chrono::microseconds timeout);
  // A request that was waiting is so no longer.
  void left_queue(std::int64_t prompt_tokens);
  // From now on submits are refused with `reason`; the first reason stands.
  void close(const Status& reason);
  bool closed() const;
  std::int64_t queued_tokens() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Command> commands_;
  Status closed_;
  std::int32_t num_queued_ = 0;
  std::int64_t queued_tokens_ = 0;
};

class StreamState {
 public:
  StreamState(RequestId id, std::int32_t num_choices, std::function<void()> on_ready, std::weak_ptr<Mailbox> mailbox)
      : id_(id), num_open_(num_choices), on_ready_(std::move(on_ready)), mailbox_(std::move(mailbox)) {}

  RequestId id() const { return id_; }

  // Engine thread. Returns how many deltas are untaken.
  std::size_t push(Delta delta);
  // Engine thread: the reader is to say when it has taken them. False: it has already.
  bool pause();

  // Reader.
  std::vector<Delta> take();
  std::vector<Delta> wait(std::chrono::milliseconds timeout);
  bool finished() const;
  void cancel();
  void abandon();

 private:
  std::vector<Delta> take_locked(std::unique_lock<std::mutex>& lock);

  const RequestId id_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Delta> pending_;
  std::int32_t num_open_;  // choices whose Finish has not been taken
  bool paused_ = false;
  bool abandoned_ = false;     // nobody will read: deltas are dropped
  std::mutex callback_mutex_;  // so that on_ready does not run any more when abandon() has returned
  std::function<void()> on_ready_;
  std::weak_ptr<Mailbox> mailbox_;
};

}  // namespace fathom::engine_detail
