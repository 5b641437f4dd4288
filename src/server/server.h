// The server: HTTP in front, routes between, the engine behind. It listens from the start and answers 503 until a model
// is there.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "server/server_options.h"

namespace fathom {

class Server {
 public:
  // Listens at once. Failure: bad options, or the address cannot be bound.
  static Result<std::unique_ptr<Server>> open(ServerOptions options);
  virtual ~Server() = default;  // stop()

  virtual std::uint16_t port() const = 0;

  // While loading: what /health says. `share` from 0 to 1.
  virtual void set_loading(double share, std::string what) = 0;
  // For LoadOptions::progress: tells of the bytes done as a share between `from` and `to`.
  std::function<void(std::int64_t done, std::int64_t total)> loading_progress(double from, double to);
  // Loading ended with a failure: /health says so from now on.
  virtual void set_load_failure(std::string reason) = 0;
  // From now on requests are answered.
  virtual void set_model(std::shared_ptr<ServedModel> model) = 0;

  // New requests get 503, those being answered may finish within `limit`. True: all did. The rest is cut off by stop().
  virtual bool drain(std::chrono::milliseconds limit) = 0;
  // Ends everything and joins all threads; the engine is shut down. Idempotent.
  virtual void stop() = 0;
};

}  // namespace fathom
