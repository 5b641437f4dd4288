// Which handler a request goes to, and what must hold before it runs.
#pragma once

#include <string_view>

#include "server/server_context.h"

namespace fathom {

struct Route {
  std::string_view method;  // "GET", "POST"; "*": both
  std::string_view path;    // ending in '/': and anything behind it
  void (*handler)(RouteCall&);
  bool needs_key = true;
  bool needs_model = true;
  bool generates = false;  // refused while draining
  Dialect dialect = Dialect::kOpenAi;
};

// Null: no such path. `wrong_method`: the path is there, for another method.
const Route* find_route(std::string_view method, std::string_view path, bool& wrong_method);

// Finds the route, checks key and model, and runs the handler. On a worker.
void answer_request(ServerContext& server, std::shared_ptr<HttpExchange> exchange);

}  // namespace fathom
