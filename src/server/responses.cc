// POST /v1/responses: items in, items and their events out. Nothing is stored: previous_response_id is refused.
#include <algorithm>
#include <memory>

#include "server/answer.h"
#include "server/chat_choice.h"
#include "server/chat_prompt.h"
#include "server/generation_fields.h"
#include "server/json_build.h"
#include "server/openai_json.h"
#include "server/routes.h"

namespace fathom {
namespace {

using Kind = JsonValue::Kind;
using EventKind = OutputEvent::Kind;

struct ResponsePlan {
  bool stream = false;
  ThinkingFields thinking;
  ToolFields tools;
  std::vector<std::string> ignored_tools;  // their types
  CallMarkup markup = CallMarkup::kText;
  bool logprobs = false;  // of the tokens of messages
  Request request;
  std::string echoed;  // members of the request that the response repeats, as JSON members without braces
};

std::string text_of(const JsonValue* value) {
  return value != nullptr && value->is(Kind::kString) ? value->text : std::string();
}

// Items of `input`, as the messages of a chat. Reasoning and calls belong to the assistant message that they stand
// beside; one is put together from neighbours.
class InputReader {
 public:
  explicit InputReader(RequestFields& fields) : fields_(fields) {}

  JsonValue read(const JsonValue& input) {
    if (input.is(Kind::kString)) {
      add("user", json_string(input.text));
    } else if (input.is(Kind::kArray)) {
      for (std::size_t i = 0; i < input.items.size() && !fields_.failed(); ++i) {
        read_item(input.items[i], "input[" + std::to_string(i) + "]");
      }
      flush_assistant();
    } else {
      fields_.fail("input", found_expected(input, "a string or an array of items"));
    }
    if (!fields_.failed() && messages_.items.empty()) fields_.fail("input", "found no item");
    return std::move(messages_);
  }
  void add(const std::string& role, JsonValue content) {
    flush_assistant();
    JsonValue message = json_object();
    json_set(message, "role", json_string(role));
    json_set(message, "content", std::move(content));
    messages_.items.push_back(std::move(message));
  }

 private:
  void read_item(const JsonValue& item, const std::string& where) {
    if (!item.is(Kind::kObject)) return fields_.fail(where, found_expected(item, "an object"));
    std::string type = text_of(item.find("type"));
    if (type.empty() && item.find("role") != nullptr) type = "message";
    if (type == "message") {
      read_message(item, where);
    } else if (type == "function_call") {
      read_call(item, where);
    } else if (type == "function_call_output") {
      read_output(item, where);
    } else if (type == "reasoning") {
      read_reasoning(item);
    } else {
      fields_.fail(where + ".type",
                   "found \"" + type + "\", expected message, function_call, function_call_output or reasoning");
    }
  }

  void read_message(const JsonValue& item, const std::string& where) {
    std::string role = text_of(item.find("role"));
    if (role == "developer") role = "system";  // OpenAI's name for it; the encoder's developer is another thing
    if (role != "user" && role != "assistant" && role != "system") {
      return fields_.fail(where + ".role", "found \"" + role + "\", expected user, assistant, system or developer");
    }
    JsonValue parts = json_array();
    const JsonValue* content = item.find("content");
    if (content != nullptr && content->is(Kind::kString)) {
      parts.items.push_back(json_text_part(content->text));
    } else if (content != nullptr && content->is(Kind::kArray)) {
      for (std::size_t i = 0; i < content->items.size(); ++i) {
        const JsonValue& part = content->items[i];
        const std::string at = where + ".content[" + std::to_string(i) + "].";
        const std::string type = text_of(part.find("type"));
        if (type != "input_text" && type != "output_text" && type != "text" && type != "refusal") {
          return fields_.fail(at + "type", "found \"" + type + "\", expected input_text or output_text");
        }
        const std::string key = type == "refusal" ? "refusal" : "text";
        const JsonValue* text = part.find(key);
        if (text == nullptr || !text->is(Kind::kString)) return fields_.fail(at + key, "expected a string");
        parts.items.push_back(json_text_part(text->text));
      }
    } else if (content != nullptr && !content->is(Kind::kNull)) {
      return fields_.fail(where + ".content", found_expected(*content, "a string or an array of parts"));
    }
    if (role != "assistant") return add(role, std::move(parts));
    // Text after calls is another turn.
    if (!calls_.items.empty() || has_text_) flush_assistant();
    open_ = has_text_ = true;
    text_ = std::move(parts);
  }

  void read_reasoning(const JsonValue& item) {
    if (has_text_ || !calls_.items.empty()) flush_assistant();
    open_ = true;
    for (const char* key : {"content", "summary"}) {
      const JsonValue* parts = item.find(key);
      if (parts == nullptr || !parts->is(Kind::kArray) || parts->items.empty()) continue;
      for (const JsonValue& part : parts->items) reasoning_ += text_of(part.find("text"));
      return;
    }
  }

  void read_call(const JsonValue& item, const std::string& where) {
    RequestFields sent(item, where + ".");
    const auto name = sent.string("name");
    const auto call_id = sent.string("call_id");
    if (!sent.failed() && (!name || name->empty())) sent.fail("name", "expected a name");
    const JsonValue* arguments = sent.find("arguments");
    if (arguments != nullptr && !is_arguments(*arguments)) {
      sent.fail("arguments", found_expected(*arguments, "the JSON text of an object"));
    }
    fields_.absorb(sent);
    if (fields_.failed()) return;
    JsonValue function = json_object();
    json_set(function, "name", json_string(*name));
    json_set(function, "arguments", arguments != nullptr ? *arguments : json_string("{}"));
    JsonValue call = json_object();
    json_set(call, "id", json_string(call_id.value_or("")));
    json_set(call, "type", json_string("function"));
    json_set(call, "function", std::move(function));
    open_ = true;
    calls_.items.push_back(std::move(call));
  }

  // An object, or text that the model may have left unfinished; not the JSON text of something else.
  static bool is_arguments(const JsonValue& arguments) {
    if (!arguments.is(Kind::kString)) return arguments.is(Kind::kObject);
    const auto parsed = parse_json(arguments.text);
    return !parsed.ok() || parsed->is(Kind::kObject);
  }

  void read_output(const JsonValue& item, const std::string& where) {
    RequestFields sent(item, where + ".");
    const auto call_id = sent.string("call_id");
    fields_.absorb(sent);
    const JsonValue* output = sent.find("output");
    if (output == nullptr || !(output->is(Kind::kString) || output->is(Kind::kArray))) {
      return fields_.fail(where + ".output", "expected a string or an array of parts");
    }
    for (std::size_t i = 0; i < output->items.size(); ++i) {
      const JsonValue* type = output->items[i].find("type");
      const JsonValue* text = output->items[i].find("text");
      const bool is_text = text_of(type) == "input_text" || text_of(type) == "output_text" || text_of(type) == "text";
      if (text_of(type).empty() || (is_text && (text == nullptr || !text->is(Kind::kString)))) {
        return fields_.fail(where + ".output[" + std::to_string(i) + "]", "expected a part, with text where it is one");
      }
    }
    add("tool", *output);
    json_set(messages_.items.back(), "tool_call_id", json_string(call_id.value_or("")));
  }

  void flush_assistant() {
    if (!open_) return;
    open_ = has_text_ = false;
    JsonValue message = json_object();
    json_set(message, "role", json_string("assistant"));
    json_set(message, "content", std::exchange(text_, json_array()));
    if (!reasoning_.empty()) json_set(message, "reasoning_content", json_string(std::exchange(reasoning_, {})));
    if (!calls_.items.empty()) json_set(message, "tool_calls", std::exchange(calls_, json_array()));
    messages_.items.push_back(std::move(message));
  }

  RequestFields& fields_;
  JsonValue messages_ = json_array();
  bool open_ = false, has_text_ = false;  // an assistant message is being put together
  JsonValue text_ = json_array(), calls_ = json_array();
  std::string reasoning_;
};

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const auto& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

// Function tools in the form of chat. Tools that only OpenAI's servers have (web_search, ...) are left out and named in
// `ignored`: agents send them with every request; who demands one by tool_choice is refused.
JsonValue translate_tools(RequestFields& fields, std::vector<std::string>& ignored, std::vector<std::string>& places) {
  JsonValue body = json_object();
  if (const JsonValue* tools = fields.array("tools")) {
    JsonValue list = json_array();
    for (std::size_t i = 0; i < tools->items.size(); ++i) {
      const JsonValue& tool = tools->items[i];
      const std::string where = "tools[" + std::to_string(i) + "]";
      if (!tool.is(Kind::kObject)) {
        fields.fail(where, found_expected(tool, "an object"));
        return body;
      }
      RequestFields sent(tool, where + ".");
      const auto type = sent.string("type");
      if (!sent.failed() && !type) sent.fail("type", "found none, expected \"function\"");
      if (!sent.failed() && *type != "function") {
        if (std::find(ignored.begin(), ignored.end(), *type) == ignored.end()) ignored.push_back(*type);
        continue;
      }
      if (!sent.string("name") && !sent.failed()) sent.fail("name", "found none, expected a string");
      sent.object("parameters");
      sent.boolean("strict");
      fields.absorb(sent);
      if (fields.failed()) return body;
      places.push_back(where);
      JsonValue function = json_object();
      for (const auto& member : tool.members) {
        if (member.key != "type") json_set(function, member.key, member.value);
      }
      JsonValue entry = json_object();
      json_set(entry, "type", json_string("function"));
      json_set(entry, "function", std::move(function));
      list.items.push_back(std::move(entry));
    }
    json_set(body, "tools", std::move(list));
  }
  const std::string names = joined(ignored);
  if (const JsonValue* choice = fields.find("tool_choice")) {
    const std::string type = text_of(choice->find("type"));
    if (choice->is(Kind::kObject) && type != "function" && type != "allowed_tools") {
      fields.fail("tool_choice.type", "found \"" + type + "\": only function tools can be called here");
    }
    const JsonValue* list = body.find("tools");
    if (choice->is(Kind::kString) && choice->text == "required" && !names.empty() && list->items.empty()) {
      fields.fail("tool_choice", "found required, but no tool is a function: " + names + " is not offered here");
    }
  }
  for (const char* key : {"tool_choice", "parallel_tool_calls"}) {
    if (const JsonValue* value = fields.find(key)) json_set(body, key, *value);
  }
  return body;
}

class ResponsesRenderer : public AnswerRenderer {
 public:
  ResponsesRenderer(const RouteCall& call, ResponsePlan& plan)
      : tokenizer_(call.model->tokenizer),
        logprobs_(plan.logprobs),
        id_(make_id("resp_")),
        model_(call.server->options.model_names.front()),
        created_(unix_seconds()),
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

  std::string error_event(const ApiError& error, std::string_view) override {
    std::string out;
    write(out, "error", [&](JsonWriter& json) {
      json.member_or_null("code", error.code).member("message", error.message).member_or_null("param", error.param);
    });
    return out;
  }

 private:
  enum class Item { kNone, kReasoning, kMessage, kCall };

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
    for (const char* type : {"response.created", "response.in_progress"}) {
      write(out, type, [this](JsonWriter& json) {
        json.key("response");
        write_response(json, "in_progress");
      });
    }
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
        call_name_ = event.text;
        call_id_ = choice_.call_id(event.index);
        return open_item(Item::kCall, out);
      case EventKind::kToolArguments:
        text_ += event.text;
        return write(out, "response.function_call_arguments.delta", [&](JsonWriter& json) {
          json.member("item_id", item_id_).member("output_index", items_.size()).member("delta", event.text);
        });
      case EventKind::kToolCallEnd: return close_item(out, event.complete ? "completed" : "incomplete");
    }
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
    item_id_ = make_id(item == Item::kReasoning ? "rs_" : item == Item::kMessage ? "msg_" : "fc_");
    write(out, "response.output_item.added", [this](JsonWriter& json) {
      json.member("output_index", items_.size()).key("item");
      write_item(json, "in_progress", false);
    });
    if (item == Item::kCall) return;
    write(out, "response.content_part.added", [this](JsonWriter& json) { write_part_place(json, ""); });
  }

  void close_item(std::string& out, std::string_view status) {
    if (item_ == Item::kNone) return;
    if (item_ == Item::kCall) {
      // As one value, valid JSON whenever the call is whole.
      write(out, "response.function_call_arguments.done", [this](JsonWriter& json) {
        json.member("item_id", item_id_).member("output_index", items_.size());
        json.member("name", call_name_).member("arguments", text_);
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
      default:
        json.member("type", "function_call").member("call_id", call_id_).member("name", call_name_);
        json.member("arguments", text_);
    }
    json.member("status", status);
    if (item_ != Item::kCall) {
      json.key("content").begin_array();
      if (whole) write_part(json, text_);
      json.end_array();
    }
    json.end_object();
  }

  void write_response(JsonWriter& json, std::string_view status) {
    json.begin_object().member("id", id_).member("object", "response").member("created_at", created_);
    json.member("status", status).member("model", model_).key("error").null().key("incomplete_details");
    if (status == "incomplete") {
      json.begin_object().member("reason", "max_output_tokens").end_object();
    } else {
      json.null();
    }
    json.key("output").begin_array();
    for (const auto& item : items_) json.raw(item);
    json.end_array().raw(echoed_).key("usage");
    if (status == "in_progress") {
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
  std::string echoed_;
  ChatChoice choice_;
  UsageSum usage_;
  bool begun_ = false;
  int sequence_ = 0;
  Item item_ = Item::kNone;
  std::string item_id_, text_, call_id_, call_name_;  // of the open item
  std::string new_logprobs_, item_logprobs_;          // not written yet; of the open item
  std::vector<std::string> items_;                    // done, as JSON
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

std::string echoed_members(const JsonValue& body, const ResponsePlan& plan) {
  std::string out;
  JsonWriter json(out);
  json.member("parallel_tool_calls", plan.tools.parallel);
  json.member("temperature", static_cast<double>(plan.request.sampling.temperature));
  json.member("top_p", static_cast<double>(plan.request.sampling.top_p));
  json.key("tools").begin_array();
  if (const JsonValue* tools = body.find("tools"); tools != nullptr) {
    for (const JsonValue& tool : tools->items) {
      if (text_of(tool.find("type")) == "function") json.raw(dump_python_json(tool));
    }
  }
  json.end_array();
  if (!plan.ignored_tools.empty()) {
    json.key("ignored_tools").begin_array();
    for (const auto& type : plan.ignored_tools) json.value(type);
    json.end_array();
  }
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
  std::vector<std::string> places;
  const JsonValue tool_body = translate_tools(fields, plan.ignored_tools, places);
  RequestFields tool_fields(tool_body);
  plan.tools = read_tools(tool_fields, model.grammar != nullptr, places);
  fields.absorb(tool_fields);
  const auto instructions = fields.string("instructions");
  const JsonValue* input = fields.find("input");
  if (!fields.failed() && input == nullptr) fields.fail("input", "found none, expected a string or an array of items");
  const auto failed_with = [&error](ApiError reason) {
    error = std::move(reason);
    return std::nullopt;
  };
  if (fields.failed()) return failed_with(fields.error());

  InputReader reader(fields);
  if (instructions && !instructions->empty()) reader.add("system", json_string(*instructions));
  const JsonValue messages = reader.read(*input);
  if (fields.failed()) return failed_with(fields.error());
  const auto conversation = read_chat(messages, plan.tools.tools);
  if (!conversation.ok()) return failed_with(error_of(conversation.status()));
  plan.markup = call_markup(*conversation);
  if (auto failed = build_chat_prompt(model, *conversation, plan.thinking, plan.tools, "input", plan.request)) {
    return failed_with(std::move(*failed));
  }
  plan.tools.tools = nullptr;  // it pointed into tool_body
  plan.echoed = echoed_members(*body, plan);
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
