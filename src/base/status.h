// Expected failures as values: bad files, bad requests, full pools, cancelled work.
//
// A message says what failed, what was found, what was expected and, where it helps, what to do.
// Broken invariants are FATHOM_CHECK (check.h) instead: no input may reach those.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"

namespace fathom {

enum class StatusCode {
  kOk,
  kInvalidArgument,     // a flag, field, token or request that is wrong in itself
  kNotFound,            // a file, tensor or key that is not there
  kFailedPrecondition,  // a checkpoint or state that does not fit what was asked
  kDataLoss,            // a truncated or corrupt file
  kResourceExhausted,   // memory, cache blocks, queue places
  kUnavailable,         // shutting down, device gone
  kCancelled,
  kIoError,
  kInternal,
};

// "invalid argument", "not found", ... for messages.
std::string_view status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status ok_status() { return {}; }
  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same failure seen from one level up: "loading models/x: <message>".
  Status with_context(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

Status invalid_argument(std::string message);
Status not_found(std::string message);
Status failed_precondition(std::string message);
Status data_loss(std::string message);
Status resource_exhausted(std::string message);
Status unavailable(std::string message);
Status cancelled(std::string message);
Status io_error(std::string message);
Status internal_error(std::string message);

// A value or the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}        // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    FATHOM_CHECK(!std::get<Status>(state_).ok(), "a Result needs a value or a failure");
  }

  bool ok() const { return std::holds_alternative<T>(state_); }
  Status status() const { return ok() ? Status{} : std::get<Status>(state_); }
  T& value() & {
    FATHOM_CHECK(ok(), status().message().c_str());
    return std::get<T>(state_);
  }
  const T& value() const& {
    FATHOM_CHECK(ok(), status().message().c_str());
    return std::get<T>(state_);
  }
  T&& value() && {
    FATHOM_CHECK(ok(), status().message().c_str());
    return std::get<T>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

#define FATHOM_CONCAT_INNER(a, b) a##b
#define FATHOM_CONCAT(a, b) FATHOM_CONCAT_INNER(a, b)

// Leaves the function with the failure, if there is one.
#define FATHOM_RETURN_IF_ERROR(expression)                                    \
  do {                                                                        \
    if (::fathom::Status fathom_status = (expression); !fathom_status.ok()) { \
      return fathom_status;                                                   \
    }                                                                         \
  } while (0)

// FATHOM_ASSIGN_OR_RETURN(auto x, make_x()); declares or assigns the value, or leaves with the failure.
#define FATHOM_ASSIGN_OR_RETURN(target, expression) \
  FATHOM_ASSIGN_OR_RETURN_INNER(FATHOM_CONCAT(fathom_result_, __LINE__), target, expression)
#define FATHOM_ASSIGN_OR_RETURN_INNER(temporary, target, expression) \
  auto temporary = (expression);                                     \
  if (!temporary.ok()) return temporary.status();                    \
  target = std::move(temporary).value()

}  // namespace fathom
