// Who asks, and whether this key may begin another request.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/http/http_message.h"
#include "server/server_options.h"

namespace fathom {

class KeyTable {
 public:
  explicit KeyTable(std::vector<ApiKey> keys);

  bool open_to_all() const { return keys_.empty(); }
  // The key that the request carries ("Authorization: Bearer ..." or "x-api-key"), as an index; nothing when it carries
  // none or an unknown one. Takes the same time for any wrong secret. With no keys set up: index 0.
  std::optional<std::size_t> find(const HttpRequest& request) const;
  // "anonymous" with no keys set up.
  const std::string& label(std::size_t index) const { return labels_[index]; }

  // Counts one request of the key, until release(). The error is a 429 that says which limit holds.
  std::optional<ApiError> admit(std::size_t index, std::int64_t now_us);
  void release(std::size_t index);
  std::int32_t num_running(std::size_t index) const;

 private:
  struct Use {
    std::int32_t num_running = 0;
    std::deque<std::int64_t> begun_us;  // of the last minute; kept only where that is limited
  };
  std::vector<ApiKey> keys_;
  std::vector<std::string> labels_;
  mutable std::mutex mutex_;
  std::vector<Use> uses_;
};

// Lines "label secret [max_concurrent=N] [max_per_minute=N]"; '#' starts a comment.
Result<std::vector<ApiKey>> parse_key_file(std::string_view text);
// Fails where two keys share a label or a secret: their requests could not be told apart. Shows no secret.
Status check_keys(const std::vector<ApiKey>& keys);

}  // namespace fathom
