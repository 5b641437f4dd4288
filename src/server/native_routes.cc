// The small routes: models, tokens, cache, health, metrics, requests.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <ctime>

#include "server/answer.h"
#include "server/chat_prompt.h"
#include "server/generation_fields.h"
#include "server/json_writer.h"
#include "server/openai_json.h"
#include "server/prompt_fields.h"
#include "server/routes.h"
#include "server/web/page.h"
#include "text/utf8.h"

namespace fathom {
namespace {

// RFC 3339.
std::string utc_time(std::int64_t unix_time) {
  const auto time = static_cast<std::time_t>(unix_time);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts));
}

void write_model(JsonWriter& json, const RouteCall& call, const std::string& name) {
  json.begin_object();
  // The server's start: the same however often one asks.
  const std::int64_t created = call.server->start_unix;
  json.member("id", name).member("object", "model").member("created", created).member("owned_by", "fathom");
  json.member("root", call.model->root).key("parent").null();
  json.member("max_model_len", call.model->context_tokens());
  // As Anthropic's clients read it.
  json.member("type", "model").member("display_name", name).member("created_at", utc_time(created));
  json.member("max_input_tokens", call.model->context_tokens()).member("max_tokens", call.model->context_tokens());
  json.end_object();
}

// {"text", "ids"} of a body with `prompt` or `messages`.
std::optional<RawPrompt> read_tokenize(RequestFields& fields, RouteCall& call) {
  const ServedModel& model = *call.model;
  const JsonValue* messages = fields.array("messages");
  if (messages == nullptr) {
    auto prompts = read_prompts(fields, fields.has("text") ? "text" : "prompt", model, 1);
    if (fields.failed()) return std::nullopt;
    // Here an empty text is no tokens.
    if (prompts.front().text.empty()) prompts.front().ids.clear();
    return std::move(prompts.front());
  }
  if (messages->items.empty()) fields.fail("messages", "found none, expected at least one message");
  const ThinkingFields thinking = read_thinking(fields, call.server->options);
  const ToolFields tools = read_tools(fields, true);
  if (fields.failed()) return std::nullopt;
  const auto conversation = read_client_chat(*messages, tools.tools);
  if (!conversation.ok()) {
    fields.fail(error_of(conversation.status()));
    return std::nullopt;
  }
  Request request;
  if (auto failed = build_chat_prompt(model, *conversation, thinking, tools, "messages", request)) {
    fields.fail(std::move(*failed));
    return std::nullopt;
  }
  return RawPrompt{std::move(request.prompt), {}};
}

// `all`: to name the request whose prefill took the most of this one's time.
void write_times(JsonWriter& json, const RouteCall& call, const RequestRecord& record,
                 const std::vector<RequestRecord>& all) {
  const RequestTimes& t = record.times;
  const auto since = [&](std::int64_t us) { return us > 0 ? static_cast<double>(us - t.submitted_us) / 1000.0 : 0.0; };
  json.key("timeline_ms").begin_object();
  json.member("queued", since(t.admitted_us));
  json.member("first_token", since(t.first_token_us));
  json.member("finished", since(t.finished_us));
  json.member("stalled_by_prefills", static_cast<double>(t.prefill_stall_us) / 1000.0);
  json.end_object();
  const auto culprit = std::find_if(all.begin(), all.end(), [&](const RequestRecord& other) {
    return t.prefill_stall_us > 0 && may_see(call, other) &&
           std::find(other.engine_ids.begin(), other.engine_ids.end(), t.stalled_by.value) != other.engine_ids.end();
  });
  json.member_or_null("stalled_most_by", culprit != all.end() ? culprit->id : std::string());
}

void write_record(JsonWriter& json, const RouteCall& call, const RequestRecord& record,
                  const std::vector<RequestRecord>& all) {
  json.begin_object();
  json.member("id", record.id)
      .member_or_null("response_id", record.response_id)
      .member("engine_id", record.engine_id)
      .member("key", record.key_label);
  json.member("route", record.route).member("created", record.created_unix).member("state", record.state);
  json.member_or_null("reason", record.reason).member("choices", record.num_choices);
  json.member("prompt_tokens", record.usage.prompt_tokens).member("cached_tokens", record.usage.cached_tokens);
  json.member("completion_tokens", record.usage.completion_tokens);
  json.member("reasoning_tokens", record.usage.reasoning_tokens);
  json.member("preemptions", record.usage.num_preemptions);
  write_times(json, call, record, all);
  json.end_object();
}

// Names with a slash come as %2F. What is no such code stays as it is.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned char code = 0;
    const char* const digits = text.data() + i + 1;
    const bool is_code =
        text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, code, 16).ptr == digits + 2;
    out += is_code ? static_cast<char>(code) : text[i];
    if (is_code) i += 2;
  }
  return out;
}

struct Health {
  bool ok = false;
  std::string status, reason;
  std::string detail;  // what is worth a look though the server is well
  double loaded_percent = 100;
};

std::string percent(double share) { return std::to_string(std::lround(100 * share)) + " %"; }

Health health_of(ServerContext& server) {
  Health health;
  std::shared_ptr<ServedModel> model;
  {
    const std::lock_guard lock(server.mutex);
    model = server.served;
    if (model == nullptr) {
      health.loaded_percent = server.loaded_share * 100;
      health.status = server.load_failure.empty() ? "loading" : "failed";
      health.reason = server.load_failure.empty() ? server.loading_what : server.load_failure;
      return health;
    }
  }
  const EngineHealth engine = model->engine->health();
  if (!engine.ok) {
    health.status = "unhealthy";
    health.reason = engine.reason;
  } else if (server.draining) {
    health.status = "draining";
    health.reason = "the server is shutting down";
  } else {
    health.ok = true;
    health.status = "ok";
    if (const EngineStats stats = model->engine->stats(); stats.draft_alarm) {
      health.detail = "drafts are accepted far less often than before: " + percent(stats.draft_acceptance) +
                      " lately, " + percent(stats.draft_acceptance_history) + " before";
    }
  }
  return health;
}

}  // namespace

void handle_models(RouteCall& call) {
  std::string out;
  JsonWriter json(out);
  const auto& names = call.server->options.model_names;
  json.begin_object().member("object", "list").key("data").begin_array();
  for (const auto& name : names) write_model(json, call, name);
  json.end_array().member("has_more", false).member("first_id", names.front()).member("last_id", names.back());
  json.end_object();
  call.reply_json(std::move(out));
}

void handle_model(RouteCall& call) {
  const std::string name = percent_decoded(call.request().path.substr(std::string_view("/v1/models/").size()));
  const auto& names = call.server->options.model_names;
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    return call.reply_error({404, "model: '" + name + "' is not served here", "model", "model_not_found"});
  }
  std::string out;
  JsonWriter json(out);
  write_model(json, call, name);
  call.reply_json(std::move(out));
}

void handle_tokenize(RouteCall& call) {
  ApiError error;
  const auto body = parse_body(call.request().body, error);
  if (!body) return call.reply_error(error);
  RequestFields fields(*body);
  read_model(fields, call.server->options);
  const bool strings = fields.boolean("return_token_strs").value_or(false);
  read_unused(fields);
  const auto prompt = read_tokenize(fields, call);
  if (fields.failed()) return call.reply_error(fields.error());
  std::string out;
  JsonWriter json(out);
  json.begin_object().member("count", prompt->ids.size()).member("max_model_len", call.model->context_tokens());
  json.key("tokens").begin_array();
  for (const TokenId id : prompt->ids) json.value(id);
  json.end_array().key("token_strs");
  if (strings) {
    json.begin_array();
    for (const TokenId id : prompt->ids) json.value(token_text(*call.model->tokenizer, id));
    json.end_array();
  } else {
    json.null();
  }
  json.end_object();
  call.reply_json(std::move(out));
}

void handle_detokenize(RouteCall& call) {
  ApiError error;
  const auto body = parse_body(call.request().body, error);
  if (!body) return call.reply_error(error);
  RequestFields fields(*body);
  read_model(fields, call.server->options);
  const JsonValue* tokens = fields.array("tokens");
  if (!fields.failed() && tokens == nullptr) fields.fail("tokens", "found none, expected an array of token ids");
  std::vector<TokenId> ids;
  for (std::size_t i = 0; !fields.failed() && i < tokens->items.size(); ++i) {
    const auto id = integral_value(tokens->items[i]);
    if (!id || *id < 0 || *id >= call.model->engine->limits().vocab_size) {
      fields.fail("tokens[" + std::to_string(i) + "]", found_expected(tokens->items[i], "a token id of this model"));
    } else {
      ids.push_back(static_cast<TokenId>(*id));
    }
  }
  if (fields.failed()) return call.reply_error(fields.error());
  std::string out;
  JsonWriter json(out);
  json.begin_object().member("prompt", replace_invalid_utf8(call.model->tokenizer->decode(ids))).end_object();
  call.reply_json(std::move(out));
}

void handle_tokenizer_info(RouteCall& call) {
  const Tokenizer& tokenizer = *call.model->tokenizer;
  std::string out;
  JsonWriter json(out);
  json.begin_object().member("tokenizer_class", "PreTrainedTokenizerFast");
  json.member("vocab_size", tokenizer.vocab_size()).member("model_max_length", call.model->context_tokens());
  json.member("bos_token", tokenizer.token_bytes(tokenizer.bos_id())).member("bos_token_id", tokenizer.bos_id());
  json.member("eos_token", tokenizer.token_bytes(tokenizer.eos_id())).member("eos_token_id", tokenizer.eos_id());
  json.member("pad_token", tokenizer.token_bytes(tokenizer.eos_id()));
  json.member("add_bos_token", false).member("add_eos_token", false).key("chat_template").null();
  json.end_object();
  call.reply_json(std::move(out));
}

void handle_flush_cache(RouteCall& call) {
  call.model->engine->flush_prefix_cache();
  call.reply_json(R"({"success":true})");
}

void handle_server_info(RouteCall& call) {
  const EngineStats stats = call.model->engine->stats();
  const EngineOptions& engine = call.model->engine->options();
  // Tokens of a verified step: one, and the drafts that were right.
  const double accept_length =
      stats.draft_steps > 0 ? 1.0 + static_cast<double>(stats.accepted_tokens) / static_cast<double>(stats.draft_steps)
                            : 1.0;
  std::string out;
  JsonWriter json(out);
  json.begin_object().member("version", call.server->options.version).member("model_path", call.model->root);
  json.member("served_model_name", call.server->options.model_names.front());
  json.member("max_model_len", call.model->context_tokens());
  json.member("max_total_num_tokens", std::int64_t{stats.context_blocks} * 128);
  json.member("max_running_requests", engine.max_running).member("max_queued_requests", engine.max_queued_requests);
  json.member("chunked_prefill_size", engine.prefill_chunk_tokens).member("num_drafts", engine.num_drafts);
  json.member("disable_radix_cache", !engine.prefix_cache);
  json.key("internal_states").begin_array().begin_object();
  json.member("avg_spec_accept_length", accept_length);
  json.member("num_running", stats.num_running).member("num_waiting", stats.num_waiting);
  json.end_object().end_array().end_object();
  call.reply_json(std::move(out));
}

void handle_version(RouteCall& call) {
  std::string out;
  JsonWriter(out).begin_object().member("version", call.server->options.version).end_object();
  call.reply_json(std::move(out));
}

void handle_health(RouteCall& call) {
  const Health health = health_of(*call.server);
  HttpReply reply;
  reply.status = health.ok ? 200 : 503;
  if (!health.ok) reply.headers.emplace_back("Retry-After", "2");
  JsonWriter json(reply.body);
  json.begin_object().member("status", health.status).member_or_null("reason", replace_invalid_utf8(health.reason));
  json.member("loaded_percent", health.loaded_percent).member_or_null("detail", health.detail).end_object();
  call.exchange->reply(std::move(reply));
}

void handle_metrics(RouteCall& call) {
  std::optional<EngineStats> stats;
  if (const auto model = call.server->model()) stats = model->engine->stats();
  HttpReply reply;
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  call.server->metrics.workers_busy_us = call.server->workers_busy_us();
  reply.body = render_metrics(call.server->metrics, *call.server->http_counts, stats ? &*stats : nullptr,
                              health_of(*call.server).ok, call.server->options.model_names.front(),
                              call.server->options.version);
  call.exchange->reply(std::move(reply));
}

void handle_page(RouteCall& call) {
  HttpReply reply;
  reply.content_type = "text/html; charset=utf-8";
  reply.body = web_page();
  reply.headers = {{"Cache-Control", "no-cache"},
                   {"X-Content-Type-Options", "nosniff"},
                   {"Content-Security-Policy",
                    "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; "
                    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}};
  call.exchange->reply(std::move(reply));
}

void handle_requests(RouteCall& call) {
  std::string out;
  JsonWriter json(out);
  json.begin_object().member("object", "list").key("data").begin_array();
  int num_shown = 0;
  const auto all = request_records(*call.server);
  for (const RequestRecord& record : all) {
    if (!may_see(call, record)) continue;
    if (++num_shown > 200) break;
    write_record(json, call, record, all);
  }
  json.end_array().end_object();
  call.reply_json(std::move(out));
}

void handle_request(RouteCall& call) {
  const std::string id = call.request().path.substr(std::string_view("/v1/requests/").size());
  constexpr std::string_view kTimeline = "/timeline";
  if (id.ends_with(kTimeline)) {
    return reply_timeline(call, std::string_view(id).substr(0, id.size() - kTimeline.size()));
  }
  const auto all = request_records(*call.server);
  const RequestRecord* const record = find_record(call, all, id);
  if (record == nullptr) return;
  std::string out;
  JsonWriter json(out);
  write_record(json, call, *record, all);
  call.reply_json(std::move(out));
}

}  // namespace fathom
