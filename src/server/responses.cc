// POST /v1/responses: items in, items and their events out. Nothing is stored: previous_response_id is refused.
#include <map>
#include <memory>

#include "server/answer.h"
#include "server/chat_choice.h"
#include "server/chat_prompt.h"
#include "server/custom_input.h"
#include "server/generation_fields.h"
#include "server/json_build.h"
#include "server/openai_json.h"
#include "server/responses_input.h"
#include "server/responses_tools.h"
#include "server/routes.h"

namespace fathom {
namespace {

using Kind = JsonValue::Kind;
using EventKind = OutputEvent::Kind;

struct ResponsePlan {
  bool stream = false;
  ThinkingFields thinking;
  ToolFields tools;
  std::map<std::string, CallTarget> targets;  // by the model's names
  CallMarkup markup = CallMarkup::kText;
  bool logprobs = false;  // of the tokens of messages
  Request request;
  std::string echoed;  // members of the request that the response repeats, as JSON members without braces
};

class ResponsesRenderer : public AnswerRenderer {
 public:
  ResponsesRenderer(const RouteCall& call, ResponsePlan& plan)
      : tokenizer_(call.model->tokenizer),
        logprobs_(plan.logprobs),
        id_(make_id("resp_")),
        model_(call.server->options.model_names.front()),
        created_(unix_seconds()),
        targets_(std::move(plan.targets)),
        echoed_(std::move(plan.echoed)),
        choice_(plan.request.reasoning_end.has_value(), plan.thinking.show_reasoning, plan.tools.parallel, plan.markup,
                "call_"),
        usage_(1) {
    usage_.set_prompt(0, static_cast<std::int64_t>(plan.request.prompt.size()));
  }

  std::string id() const override { return id_; }

  void on_delta(std::size_t, const Delta& delta, std::string* sse) override {
    usage_.add(0, 0, delta);
    // The same events feed the stream and the list of items.
    std::string dropped;
    std::string& out = sse != nullptr ? *sse : dropped;
    if (sse != nullptr) begin(out);
    if (logprobs_) note_logprobs(delta);
    for (const OutputEvent& event : choice_.push(delta)) {
      take(event, out);
      dropped.clear();
    }
  }

  void on_end(std::string* sse) override {
    std::string dropped;
    std::string& out = sse != nullptr ? *sse : dropped;
    if (sse != nullptr) begin(out);
    close_item(out, is_cut() ? "incomplete" : "completed");
    if (items_.empty()) {  // an answer of nothing is an empty message
      open_item(Item::kMessage, out);
      close_item(out, is_cut() ? "incomplete" : "completed");
    }
    write(out, is_cut() ? "response.incomplete" : "response.completed", [this](JsonWriter& json) {
      json.key("response");
      write_response(json, is_cut() ? "incomplete" : "completed");
    });
  }

  std::string whole() override {
    std::string out;
    JsonWriter json(out);
    write_response(json, is_cut() ? "incomplete" : "completed");
    return out;
  }

  // An event: clients that wait for one with a time-out (Codex) do not count comments.
  std::string keep_alive() override {
    std::string out;
    if (begun_) {
      write_progress(out, "response.in_progress");
    } else {
      begin(out);
    }
    return out;
  }

  // Some clients hear the one, some the other.
  std::string error_event(const ApiError& error, std::string_view) override {
    std::string out;
    begin(out);
    write(out, "error", [&](JsonWriter& json) {
      json.member_or_null("code", error.code).member("message", error.message).member_or_null("param", error.param);
    });
    failure_ = error;
    write(out, "response.failed", [this](JsonWriter& json) {
      json.key("response");
      write_response(json, "failed");
    });
    return out;
  }

 private:
  enum class Item { kNone, kReasoning, kMessage, kCall, kCustomCall, kSearchCall };

  bool is_cut() const { return choice_.finish() && choice_.finish()->reason == FinishReason::kLength; }

  // Waiting for the text that they are of: what is left out of it (the end, calls) has no entry.
  void note_logprobs(const Delta& delta) {
    std::vector<OutputToken> tokens;
    for (const OutputToken& token : delta.tokens) {
      if (!token.in_reasoning) tokens.push_back(token);
    }
    const bool ended = delta.finish &&
                       (delta.finish->reason == FinishReason::kEos || delta.finish->reason == FinishReason::kStopToken);
    if (ended && !tokens.empty()) tokens.pop_back();
    append_chat_logprobs(*tokenizer_, tokens, new_logprobs_);
  }

  template <typename WriteRest>
  void write(std::string& out, std::string_view type, WriteRest&& write_rest) {
    out += "event: ";
    out += type;
    out += "\ndata: ";
    JsonWriter json(out);
    json.begin_object().member("type", type).member("sequence_number", sequence_++);
    write_rest(json);
    json.end_object();
    out += "\n\n";
  }

  void begin(std::string& out) {
    if (begun_) return;
    begun_ = true;
    write_progress(out, "response.created");
    write_progress(out, "response.in_progress");
  }

  void write_progress(std::string& out, std::string_view type) {
    write(out, type, [this](JsonWriter& json) {
      json.key("response");
      write_response(json, "in_progress");
    });
  }

  void take(const OutputEvent& event, std::string& out) {
    switch (event.kind) {
      case EventKind::kReasoning:
        ensure(Item::kReasoning, out);
        text_ += event.text;
        return write_part_event(out, "response.reasoning_text.delta", "delta", event.text);
      case EventKind::kContent:
        ensure(Item::kMessage, out);
        text_ += event.text;
        write_part_event(out, "response.output_text.delta", "delta", event.text, new_logprobs_);
        if (!item_logprobs_.empty() && !new_logprobs_.empty()) item_logprobs_ += ',';
        item_logprobs_ += std::exchange(new_logprobs_, {});
        return;
      case EventKind::kToolCallStart:
        close_item(out, "completed");
        new_logprobs_.clear();
        call_id_ = choice_.call_id(event.index);
        custom_input_ = {};
        call_ = {event.text, {}, ToolKind::kFunction};  // of a name that nobody offered: as it stands
        if (const auto found = targets_.find(event.text); found != targets_.end()) call_ = found->second;
        return open_item(call_.kind == ToolKind::kCustom   ? Item::kCustomCall
                         : call_.kind == ToolKind::kSearch ? Item::kSearchCall
                                                           : Item::kCall,
                         out);
      case EventKind::kToolArguments:
        return write_call_delta(out, item_ == Item::kCustomCall ? custom_input_.push(event.text) : event.text);
      case EventKind::kToolCallEnd:
        if (item_ == Item::kCustomCall && event.complete) write_call_delta(out, custom_input_.finish());
        return close_item(out, event.complete ? "completed" : "incomplete");
    }
  }

  bool is_call() const { return item_ >= Item::kCall; }
  std::string_view call_event(std::string_view end) const {
    if (item_ == Item::kCall) {
      return end == "delta" ? "response.function_call_arguments.delta" : "response.function_call_arguments.done";
    }
    return end == "delta" ? "response.custom_tool_call_input.delta" : "response.custom_tool_call_input.done";
  }

  void write_call_delta(std::string& out, const std::string& text) {
    if (text.empty()) return;
    text_ += text;
    if (item_ == Item::kSearchCall) return;  // its arguments are an object, and come whole
    write(out, call_event("delta"), [&](JsonWriter& json) {
      json.member("item_id", item_id_).member("output_index", items_.size()).member("delta", text);
    });
  }

  void ensure(Item item, std::string& out) {
    if (item_ == item) return;
    close_item(out, "completed");
    open_item(item, out);
  }

  // `logprobs`: entries of a message's text, with commas between.
  void write_part_event(std::string& out, std::string_view type, std::string_view field, std::string_view text,
                        const std::string& logprobs = {}) {
    write(out, type, [&](JsonWriter& json) {
      json.member("item_id", item_id_).member("output_index", items_.size()).member("content_index", 0);
      if (item_ == Item::kMessage && type.find("output_text") != std::string_view::npos) {
        json.key("logprobs").raw("[" + logprobs + "]");
      }
      json.member(field, text);
    });
  }

  void open_item(Item item, std::string& out) {
    item_ = item;
    text_.clear();
    item_logprobs_.clear();
    item_id_ = make_id(item == Item::kReasoning    ? "rs_"
                       : item == Item::kMessage    ? "msg_"
                       : item == Item::kCall       ? "fc_"
                       : item == Item::kSearchCall ? "tsc_"
                                                   : "ctc_");
    write(out, "response.output_item.added", [this](JsonWriter& json) {
      json.member("output_index", items_.size()).key("item");
      write_item(json, "in_progress", false);
    });
    if (is_call()) return;
    write(out, "response.content_part.added", [this](JsonWriter& json) { write_part_place(json, ""); });
  }

  void close_item(std::string& out, std::string_view status) {
    if (item_ == Item::kNone) return;
    if (item_ == Item::kSearchCall) {
      // Nothing but the item.
    } else if (is_call()) {
      // A function's as one value, valid JSON whenever the call is whole.
      write(out, call_event("done"), [this](JsonWriter& json) {
        json.member("item_id", item_id_).member("output_index", items_.size());
        if (item_ == Item::kCall) json.member("name", call_.name);
        json.member(item_ == Item::kCall ? "arguments" : "input", text_);
      });
    } else {
      write_part_event(out, item_ == Item::kMessage ? "response.output_text.done" : "response.reasoning_text.done",
                       "text", text_, item_logprobs_);
      write(out, "response.content_part.done", [this](JsonWriter& json) { write_part_place(json, text_); });
    }
    std::string item;
    JsonWriter item_json(item);
    write_item(item_json, status, true);
    write(out, "response.output_item.done",
          [&](JsonWriter& json) { json.member("output_index", items_.size()).key("item").raw(item); });
    items_.push_back(std::move(item));
    item_ = Item::kNone;
  }

  void write_part_place(JsonWriter& json, std::string_view text) {
    json.member("item_id", item_id_).member("output_index", items_.size()).member("content_index", 0).key("part");
    write_part(json, text);
  }

  void write_part(JsonWriter& json, std::string_view text) {
    json.begin_object();
    if (item_ == Item::kReasoning) {
      json.member("type", "reasoning_text").member("text", text);
    } else {
      json.member("type", "output_text").member("text", text);
      json.key("annotations").begin_array().end_array().key("logprobs");
      json.raw("[" + (text.empty() ? std::string() : item_logprobs_) + "]");
    }
    json.end_object();
  }

  void write_item(JsonWriter& json, std::string_view status, bool whole) {
    json.begin_object().member("id", item_id_);
    switch (item_) {
      case Item::kReasoning: json.member("type", "reasoning").key("summary").begin_array().end_array(); break;
      case Item::kMessage: json.member("type", "message").member("role", "assistant"); break;
      case Item::kSearchCall:
        json.member("type", "tool_search_call").member("call_id", call_id_).member("execution", "client");
        json.key("arguments").raw(is_valid_json(text_) ? text_ : "{}");
        break;
      default:
        json.member("type", item_ == Item::kCall ? "function_call" : "custom_tool_call");
        json.member("call_id", call_id_).member("name", call_.name);
        if (!call_.name_space.empty()) json.member("namespace", call_.name_space);
        json.member(item_ == Item::kCall ? "arguments" : "input", text_);
    }
    json.member("status", status);
    if (!is_call()) {
      json.key("content").begin_array();
      if (whole) write_part(json, text_);
      json.end_array();
    }
    json.end_object();
  }

  void write_response(JsonWriter& json, std::string_view status) {
    json.begin_object().member("id", id_).member("object", "response").member("created_at", created_);
    json.member("status", status).member("model", model_).key("error");
    if (failure_) {
      json.begin_object().member("code", failure_->status == 429 ? "rate_limit_exceeded" : "server_error");
      json.member("message", failure_->message).end_object();
    } else {
      json.null();
    }
    json.key("incomplete_details");
    if (status == "incomplete") {
      json.begin_object().member("reason", "max_output_tokens").end_object();
    } else {
      json.null();
    }
    json.key("output").begin_array();
    for (const auto& item : items_) json.raw(item);
    json.end_array().raw(echoed_).key("usage");
    if (status == "in_progress" || status == "failed") {
      json.null();
    } else {
      json.begin_object().member("input_tokens", usage_.prompt_tokens());
      json.key("input_tokens_details").begin_object().member("cached_tokens", usage_.cached_tokens()).end_object();
      json.member("output_tokens", usage_.completion_tokens());
      json.key("output_tokens_details").begin_object().member("reasoning_tokens", usage_.reasoning_tokens());
      json.end_object().member("total_tokens", usage_.prompt_tokens() + usage_.completion_tokens()).end_object();
    }
    json.end_object();
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  bool logprobs_;
  std::string id_;
  std::string model_;
  std::int64_t created_;
  std::map<std::string, CallTarget> targets_;
  std::string echoed_;
  ChatChoice choice_;
  UsageSum usage_;
  bool begun_ = false;
  std::optional<ApiError> failure_;
  int sequence_ = 0;
  Item item_ = Item::kNone;
  std::string item_id_, text_, call_id_;      // of the open item
  CallTarget call_;                           // of the open item
  CustomInput custom_input_;                  // of the open item
  std::string new_logprobs_, item_logprobs_;  // not written yet; of the open item
  std::vector<std::string> items_;            // done, as JSON
};

// text.format in the form of response_format, instructions, reasoning.effort.
void read_response_fields(RequestFields& fields, const ServedModel& model, ResponsePlan& plan) {
  if (fields.has("previous_response_id")) {
    fields.fail("previous_response_id", "responses are not stored here: send the earlier items again");
  }
  if (fields.has("conversation")) fields.fail("conversation", "conversations are not stored here");
  if (fields.has("prompt")) fields.fail("prompt", "prompts are not stored here: send input and instructions");
  if (fields.boolean("background").value_or(false)) fields.fail("background", "is not offered");
  // Without effect here, and checked all the same: a client that sends the wrong kind has made a mistake.
  read_unused(fields);
  fields.integer("max_tool_calls", 0, 1 << 30);
  fields.object("stream_options");
  if (const JsonValue* include = fields.array("include")) {
    for (std::size_t i = 0; i < include->items.size(); ++i) {
      if (include->items[i].is(Kind::kString)) {
        plan.logprobs = plan.logprobs || include->items[i].text == "message.output_text.logprobs";
        continue;
      }
      fields.fail("include[" + std::to_string(i) + "]", found_expected(include->items[i], "a string"));
    }
  }
  const auto top = fields.integer("top_logprobs", 0, model.engine->options().max_logprobs);
  plan.logprobs = plan.logprobs || top.value_or(0) > 0;
  if (plan.logprobs) plan.request.num_logprobs = static_cast<std::int32_t>(top.value_or(0));
  if (const JsonValue* metadata = fields.object("metadata")) {
    for (const auto& member : metadata->members) {
      if (member.value.is(Kind::kString)) continue;
      fields.fail("metadata." + member.key.substr(0, 80), found_expected(member.value, "a string"));
    }
  }
  const auto truncation = fields.string("truncation");
  if (truncation && *truncation != "auto" && *truncation != "disabled") {
    fields.fail("truncation", "found \"" + *truncation + "\", expected auto or disabled");
  }
  if (const JsonValue* reasoning = fields.object("reasoning")) {
    RequestFields nested(*reasoning, "reasoning.");
    const auto effort = nested.string("effort");
    nested.string("summary");
    if (effort && !apply_effort(*effort, plan.thinking)) {
      nested.fail("effort", "found \"" + *effort + "\", expected none, minimal, low, medium, high or max");
    }
    fields.absorb(nested);
  }
  if (const JsonValue* text = fields.object("text")) {
    RequestFields nested(*text, "text.");
    nested.string("verbosity");
    fields.absorb(nested);
    if (const JsonValue* format = nested.find("format")) {
      read_format(fields, *format, "text.format", model, plan.request);
    }
  }
}

void write_names(JsonWriter& json, std::string_view key, const std::vector<std::string>& names) {
  if (names.empty()) return;
  json.key(key).begin_array();
  for (const auto& name : names) json.value(name);
  json.end_array();
}

std::string echoed_members(const JsonValue& body, const ResponsePlan& plan, const ResponsesTools& tools,
                           const std::vector<std::string>& ignored_items) {
  std::string out;
  JsonWriter json(out);
  json.member("parallel_tool_calls", plan.tools.parallel);
  json.member("temperature", static_cast<double>(plan.request.sampling.temperature));
  json.member("top_p", static_cast<double>(plan.request.sampling.top_p));
  json.key("tools").begin_array();
  if (const JsonValue* sent = body.find("tools"); sent != nullptr) {
    for (const JsonValue& tool : sent->items) {
      const std::string type = json_text_of(tool.find("type"));
      const JsonValue* within = tool.find("tools");
      const bool has_tools = type == "namespace" && within != nullptr && within->is(Kind::kArray);
      const bool searches = type == kSearchTool && json_text_of(tool.find("execution")) == "client";
      if (type == "function" || type == "custom" || has_tools || searches) json.raw(dump_python_json(tool));
    }
  }
  json.end_array();
  write_names(json, "ignored_tools", tools.ignored);
  write_names(json, "ignored_items", ignored_items);
  write_names(json, "unenforced_grammars", tools.unenforced);
  for (const auto& [key, otherwise] : {std::pair{"instructions", "null"},
                                       {"metadata", "{}"},
                                       {"tool_choice", "\"auto\""},
                                       {"max_output_tokens", "null"}}) {
    const JsonValue* value = body.find(key);
    json.key(key).raw(value != nullptr ? dump_python_json(*value) : std::string(otherwise));
  }
  json.member("store", false).key("previous_response_id").null().member("truncation", "disabled");
  return out;
}

// Reads, renders and tokenises. Nothing: `error` says why.
std::optional<ResponsePlan> read_responses(const RouteCall& call, ApiError& error) {
  const auto body = parse_body(call.request().body, error);
  if (!body) return std::nullopt;
  RequestFields fields(*body);
  const ServedModel& model = *call.model;
  ResponsePlan plan;
  read_model(fields, call.server->options);
  read_sampling(fields, call.server->options, model, plan.request);
  read_stops(fields, plan.request);
  read_max_tokens(fields, {"max_output_tokens"}, 1, plan.request);
  plan.stream = fields.boolean("stream").value_or(false);
  plan.thinking = read_thinking(fields, call.server->options);
  read_response_fields(fields, model, plan);
  ResponsesTools tools = translate_responses_tools(fields, model.grammar != nullptr);
  RequestFields tool_fields(tools.body);
  plan.tools = read_tools(tool_fields, model.grammar != nullptr, tools.places);
  fields.absorb(tool_fields);
  const auto instructions = fields.string("instructions");
  const JsonValue* input = fields.find("input");
  if (!fields.failed() && input == nullptr) fields.fail("input", "found none, expected a string or an array of items");
  const auto failed_with = [&error](ApiError reason) {
    error = std::move(reason);
    return std::nullopt;
  };
  if (fields.failed()) return failed_with(fields.error());

  DeferredTools deferred(plan.tools.tools, tools.deferred);
  const ResponsesInput items = read_responses_input(fields, instructions, deferred, *input);
  if (fields.failed()) return failed_with(fields.error());
  const auto conversation = read_client_chat(items.messages, &deferred.shown());
  if (!conversation.ok()) return failed_with(error_of(conversation.status()));
  plan.markup = call_markup(*conversation);
  if (auto failed = build_chat_prompt(model, *conversation, plan.thinking, plan.tools, "input", plan.request)) {
    return failed_with(std::move(*failed));
  }
  plan.tools.tools = nullptr;  // it pointed into tools.body
  plan.echoed = echoed_members(*body, plan, tools, items.ignored);
  plan.targets = std::move(tools.targets);
  return plan;
}

}  // namespace

void handle_responses(RouteCall& call) {
  ApiError error;
  auto plan = read_responses(call, error);
  if (!plan) return call.reply_error(error);
  AnswerJob job;
  job.stream = plan->stream;
  job.renderer = std::make_unique<ResponsesRenderer>(call, *plan);
  job.requests.push_back(std::move(plan->request));
  Answer::begin(call, std::move(job));
}

void handle_input_tokens(RouteCall& call) {
  ApiError error;
  const auto plan = read_responses(call, error);
  if (!plan) return call.reply_error(error);
  std::string out;
  JsonWriter json(out);
  json.begin_object().member("object", "response.input_tokens");
  json.member("input_tokens", plan->request.prompt.size()).end_object();
  call.reply_json(std::move(out));
}

}  // namespace fathom
