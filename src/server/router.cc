#include "server/router.h"

#include <algorithm>
#include <cmath>

#include "server/routes.h"

namespace fathom {
namespace {

constexpr auto kOpen = Dialect::kOpenAi;
constexpr auto kAnthropic = Dialect::kAnthropic;

// method, path, handler, needs_key, needs_model, generates, dialect
constexpr Route kRoutes[] = {
    {"POST", "/v1/chat/completions", handle_chat_completions, true, true, true, kOpen},
    {"POST", "/v1/completions", handle_completions, true, true, true, kOpen},
    {"POST", "/v1/responses", handle_responses, true, true, true, kOpen},
    {"POST", "/v1/responses/input_tokens", handle_input_tokens, true, true, false, kOpen},
    {"POST", "/v1/messages", handle_messages, true, true, true, kAnthropic},
    {"POST", "/v1/messages/count_tokens", handle_count_tokens, true, true, false, kAnthropic},
    {"POST", "/generate", handle_generate, true, true, true, kOpen},
    {"GET", "/v1/models", handle_models, true, true, false, kOpen},
    {"GET", "/v1/models/", handle_model, true, true, false, kOpen},
    {"POST", "/tokenize", handle_tokenize, true, true, false, kOpen},
    {"POST", "/detokenize", handle_detokenize, true, true, false, kOpen},
    {"GET", "/tokenizer_info", handle_tokenizer_info, true, true, false, kOpen},
    {"*", "/flush_cache", handle_flush_cache, true, true, false, kOpen},
    {"*", "/reset_prefix_cache", handle_flush_cache, true, true, false, kOpen},
    {"GET", "/get_server_info", handle_server_info, true, true, false, kOpen},
    {"GET", "/server_info", handle_server_info, true, true, false, kOpen},
    {"*", "/start_profile", handle_start_profile, true, true, false, kOpen},
    {"*", "/stop_profile", handle_stop_profile, true, true, false, kOpen},
    {"GET", "/version", handle_version, true, false, false, kOpen},
    {"GET", "/health", handle_health, false, false, false, kOpen},
    {"GET", "/metrics", handle_metrics, true, false, false, kOpen},
    // The page itself holds nothing; what it shows it asks for with a key.
    {"GET", "/", handle_page, false, false, false, kOpen},
    {"GET", "/v1/requests", handle_requests, true, false, false, kOpen},
    {"GET", "/v1/requests/", handle_request, true, false, false, kOpen},
};

bool path_matches(std::string_view pattern, std::string_view path) {
  if (pattern.size() > 1 && pattern.ends_with('/')) return path.size() > pattern.size() && path.starts_with(pattern);
  return path == pattern;
}

bool method_matches(std::string_view wanted, std::string_view method) {
  if (wanted == "*") return method == "GET" || method == "POST";
  return wanted == method || (wanted == "GET" && method == "HEAD");
}

std::string allowed_methods(std::string_view path) {
  std::string out;
  for (const Route& route : kRoutes) {
    if (!path_matches(route.path, path)) continue;
    out += (out.empty() ? "" : ", ") + std::string(route.method == std::string_view("*") ? "GET, POST" : route.method);
  }
  return out;
}

// The client's own, when it is harmless in a header and a log line; else a fresh one.
std::string request_id(const HttpRequest& request) {
  const std::string_view given = request.header("x-request-id");
  const bool usable = !given.empty() && given.size() <= 128 && std::all_of(given.begin(), given.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
           c == '.' || c == ':';
  });
  return usable ? std::string(given) : make_id("req-");
}

void add_cors(const ServerOptions& options, HttpExchange& exchange) {
  if (options.cors_origin.empty()) return;
  exchange.add_header("Access-Control-Allow-Origin", options.cors_origin);
  exchange.add_header("Access-Control-Expose-Headers", "x-request-id, retry-after");
  if (options.cors_origin != "*") exchange.add_header("Vary", "Origin");
}

void answer_preflight(HttpExchange& exchange) {
  std::string asked(exchange.request().header("access-control-request-headers"));
  if (asked.empty() || asked.size() > 1000) asked = "authorization, content-type, x-api-key, x-request-id";
  exchange.reply({204,
                  "",
                  "",
                  {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                   {"Access-Control-Allow-Headers", asked},
                   {"Access-Control-Max-Age", "600"}}});
}

ApiError loading_error(ServerContext& server) {
  const std::lock_guard lock(server.mutex);
  if (!server.load_failure.empty()) return not_available("the model could not be loaded: " + server.load_failure, 30);
  const int percent = static_cast<int>(std::floor(server.loaded_share * 100));
  return not_available("the model is loading, " + std::to_string(percent) + " % done", 2);
}

}  // namespace

const Route* find_route(std::string_view method, std::string_view path, bool& wrong_method) {
  wrong_method = false;
  for (const Route& route : kRoutes) {
    if (!path_matches(route.path, path)) continue;
    if (method_matches(route.method, method)) return &route;
    wrong_method = true;
  }
  return nullptr;
}

void answer_request(ServerContext& server, std::shared_ptr<HttpExchange> exchange) {
  ++server.metrics.num_requests;
  RouteCall call;
  call.server = &server;
  call.exchange = std::move(exchange);
  call.id = request_id(call.request());
  call.exchange->add_header("x-request-id", call.id);
  add_cors(server.options, *call.exchange);
  const HttpRequest& request = call.request();
  if (request.method == "OPTIONS" && !server.options.cors_origin.empty()) return answer_preflight(*call.exchange);

  bool wrong_method = false;
  const Route* route = find_route(request.method, request.path, wrong_method);
  if (request.path.starts_with("/v1/messages")) call.dialect = Dialect::kAnthropic;
  if (route != nullptr) call.dialect = route->dialect;
  if (route == nullptr || route->needs_key) {
    const auto key = server.keys.find(request);
    if (!key) {
      return call.reply_error(
          {401, "no valid API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'", {}, "invalid_api_key"});
    }
    call.key_index = *key;
  }
  if (route == nullptr) {
    const std::string what = request.method.substr(0, 20) + " " + request.path.substr(0, 200);
    if (wrong_method) {
      call.exchange->add_header("Allow", allowed_methods(request.path));
      return call.reply_error({405, what + ": the path is there, but not for this method", {}, "method_not_allowed"});
    }
    return call.reply_error({404, what + ": there is no such route", {}, "not_found"});
  }
  if (route->needs_model) {
    call.model = server.model();
    if (call.model == nullptr) return call.reply_error(loading_error(server));
  }
  if (route->generates) {
    if (server.draining) return call.reply_error(not_available("the server is shutting down"));
    if (const EngineHealth health = call.model->engine->health(); !health.ok) {
      return call.reply_error(not_available(health.reason));
    }
  }
  const std::string_view encoding = request.header("content-encoding");
  if (!request.body.empty() && !encoding.empty() && encoding != "identity") {
    return call.reply_error({415,
                             "content-encoding: found " + std::string(encoding.substr(0, 40)) +
                                 ", expected none: bodies are read as they are",
                             "content-encoding", "unsupported_media_type"});
  }
  route->handler(call);
}

}  // namespace fathom
