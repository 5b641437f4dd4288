// Reading typed fields out of a request body: strict about what is read, silent about what is not known.
//
// A field that is null counts as absent, as every client library assumes. The first failure is kept; later reads give
// nothing, so a parser reads all it wants and asks once. Numbers may be written either way (16 or 16.0). JSON has no
// NaN and no 1e999, but clients write them: a body with one is refused by the name of the field that holds it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "text/json_value.h"

namespace fathom {

// The body as one JSON object. Failure: 400 with line and column.
std::optional<JsonValue> parse_body(std::string_view body, ApiError& error);

class RequestFields {
 public:
  // `object` must outlive this. `prefix` names the object in messages: "stream_options.".
  explicit RequestFields(const JsonValue& object, std::string prefix = {})
      : object_(&object), prefix_(std::move(prefix)) {}

  // Absent and null give null.
  const JsonValue* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }

  std::optional<bool> boolean(std::string_view key);
  std::optional<std::string> string(std::string_view key);
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t lowest, std::int64_t highest);
  // Closed interval; open_low: without its lower end.
  std::optional<double> number(std::string_view key, double lowest, double highest, bool open_low = false);
  const JsonValue* object(std::string_view key);
  const JsonValue* array(std::string_view key);

  void fail(std::string_view key, std::string message);
  void fail(ApiError error);
  // Takes over a failure of nested fields.
  void absorb(const RequestFields& nested);
  bool failed() const { return error_.has_value(); }
  const ApiError& error() const { return *error_; }

 private:
  const JsonValue* object_;
  std::string prefix_;
  std::optional<ApiError> error_;
};

// "found a number, expected a string"
std::string found_expected(const JsonValue& found, std::string_view expected);
// An integer written as 3 or 3.0; nothing when it is none or does not fit.
std::optional<std::int64_t> integral_value(const JsonValue& value);

}  // namespace fathom
