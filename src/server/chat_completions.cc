// POST /v1/chat/completions.
#include <memory>

#include "server/answer.h"
#include "server/chat_choice.h"
#include "server/chat_prompt.h"
#include "server/generation_fields.h"
#include "server/openai_json.h"
#include "server/routes.h"

namespace fathom {
namespace {

struct ChatPlan {
  StreamFields stream;
  ThinkingFields thinking;
  ToolFields tools;
  CallMarkup markup = CallMarkup::kText;
  bool logprobs = false;
  Request request;
};

class ChatRenderer : public AnswerRenderer {
 public:
  ChatRenderer(const RouteCall& call, const ChatPlan& plan)
      : tokenizer_(call.model->tokenizer),
        stream_(plan.stream),
        logprobs_(plan.logprobs),
        id_(make_id("chatcmpl-")),
        model_(call.server->options.model_names.front()),
        created_(unix_seconds()),
        stop_strings_(plan.request.stop_strings),
        usage_(1) {
    usage_.set_prompt(0, static_cast<std::int64_t>(plan.request.prompt.size()));
    for (int i = 0; i < plan.request.num_choices; ++i) {
      choices_.emplace_back(plan.request.reasoning_end.has_value(), plan.thinking.show_reasoning, plan.tools.parallel,
                            plan.markup, "call_");
    }
    open_.resize(choices_.size());
    logprob_entries_.resize(choices_.size());
  }

  std::string id() const override { return id_; }

  void on_delta(std::size_t, const Delta& delta, std::string* sse) override {
    const auto index = static_cast<std::size_t>(delta.choice);
    usage_.add(0, index, delta);
    if (logprobs_) append_chat_logprobs(*tokenizer_, delta.tokens, logprob_entries_[index]);
    const auto& events = choices_[index].push(delta);
    if (sse == nullptr) return;
    if (!open_[index]) {
      open_[index] = true;
      write_chunk(index, *sse, {}, [](JsonWriter& json) { json.member("role", "assistant").member("content", ""); });
    }
    for (const OutputEvent& event : events) write_event(index, event, *sse);
    if (delta.finish) {
      write_chunk(index, *sse, openai_finish_reason(choices_[index]), [](JsonWriter&) {});
    } else if (stream_.continuous_usage && events.empty() && !delta.tokens.empty()) {
      write_chunk(index, *sse, {}, [](JsonWriter&) {});
    }
  }

  void on_end(std::string* sse) override {
    if (sse == nullptr) return;
    if (stream_.include_usage) {
      *sse += "data: ";
      JsonWriter json(*sse);
      write_head(json, "chat.completion.chunk");
      json.key("choices").begin_array().end_array();
      json.key("usage");
      write_usage(json, usage_);
      json.end_object();
      *sse += "\n\n";
    }
    *sse += "data: [DONE]\n\n";
  }

  std::string whole() override {
    std::string out;
    JsonWriter json(out);
    write_head(json, "chat.completion");
    json.key("choices").begin_array();
    for (std::size_t i = 0; i < choices_.size(); ++i) write_choice(json, i);
    json.end_array();
    json.key("usage");
    write_usage(json, usage_);
    json.end_object();
    return out;
  }

 private:
  void write_head(JsonWriter& json, std::string_view object) const {
    json.begin_object();
    json.member("id", id_).member("object", object).member("created", created_).member("model", model_);
  }

  void write_event(std::size_t index, const OutputEvent& event, std::string& sse) {
    write_chunk(index, sse, {}, [&](JsonWriter& json) {
      switch (event.kind) {
        case OutputEvent::Kind::kReasoning: json.member("reasoning_content", event.text); break;
        case OutputEvent::Kind::kContent: json.member("content", event.text); break;
        case OutputEvent::Kind::kToolCallStart:
          json.key("tool_calls").begin_array().begin_object();
          json.member("index", event.index).member("id", choices_[index].call_id(event.index));
          json.member("type", "function").key("function").begin_object();
          json.member("name", event.text).member("arguments", "").end_object().end_object().end_array();
          break;
        case OutputEvent::Kind::kToolArguments:
          json.key("tool_calls").begin_array().begin_object().member("index", event.index);
          json.key("function").begin_object().member("arguments", event.text).end_object().end_object().end_array();
          break;
        case OutputEvent::Kind::kToolCallEnd: break;
      }
    });
  }

  template <typename WriteDelta>
  void write_chunk(std::size_t index, std::string& sse, std::string_view finish_reason, WriteDelta&& write_delta) {
    sse += "data: ";
    JsonWriter json(sse);
    write_head(json, "chat.completion.chunk");
    json.key("choices").begin_array().begin_object().member("index", index);
    json.key("delta").begin_object();
    write_delta(json);
    json.end_object();
    write_logprobs(json, index);
    json.member_or_null("finish_reason", finish_reason);
    if (!finish_reason.empty()) write_stop_reason(json, index);
    json.end_object().end_array();
    if (stream_.continuous_usage) {
      json.key("usage");
      write_usage(json, usage_);
    } else if (stream_.include_usage) {
      json.key("usage").null();
    }
    json.end_object();
    sse += "\n\n";
  }

  // Entries go out once, with the first chunk after their tokens.
  void write_logprobs(JsonWriter& json, std::size_t index) {
    std::string& entries = logprob_entries_[index];
    if (!logprobs_ || entries.empty()) {
      json.key("logprobs").null();
      return;
    }
    json.key("logprobs").begin_object().key("content").raw("[" + entries + "]");
    json.key("refusal").null().end_object();
    entries.clear();
  }

  void write_stop_reason(JsonWriter& json, std::size_t index) {
    const Finish& finish = *choices_[index].finish();
    json.key("stop_reason");
    if (finish.reason == FinishReason::kStopToken) {
      json.value(finish.stop_token);
    } else if (finish.reason == FinishReason::kStopString) {
      json.value(stop_strings_[static_cast<std::size_t>(finish.stop_string)]);
    } else {
      json.null();
    }
  }

  void write_choice(JsonWriter& json, std::size_t index) {
    ChatChoice& choice = choices_[index];
    const auto calls = choice.calls();
    json.begin_object().member("index", index);
    json.key("message").begin_object().member("role", "assistant").key("content");
    if (choice.content().empty() && !calls.empty()) {
      json.null();
    } else {
      json.value(choice.content());
    }
    json.key("refusal").null();
    if (const std::string reasoning = choice.reasoning(); !reasoning.empty()) {
      json.member("reasoning_content", reasoning);
    }
    if (!calls.empty()) {
      json.key("tool_calls").begin_array();
      for (const ToolCall& call : calls) {
        json.begin_object().member("id", call.id).member("type", "function").key("function").begin_object();
        json.member("name", call.name).member("arguments", call.arguments).end_object().end_object();
      }
      json.end_array();
    }
    json.end_object();
    write_logprobs(json, index);
    json.member("finish_reason", openai_finish_reason(choice));
    write_stop_reason(json, index);
    json.end_object();
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  StreamFields stream_;
  bool logprobs_;
  std::string id_;
  std::string model_;
  std::int64_t created_;
  std::vector<std::string> stop_strings_;
  std::vector<ChatChoice> choices_;
  std::vector<bool> open_;  // the role has been sent
  std::vector<std::string> logprob_entries_;
  UsageSum usage_;
};

void read_logprobs(RequestFields& fields, const EngineOptions& engine, ChatPlan& plan) {
  plan.logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, engine.max_logprobs);
  if (top && *top > 0 && !plan.logprobs) fields.fail("top_logprobs", "needs logprobs to be true");
  if (plan.logprobs) plan.request.num_logprobs = static_cast<std::int32_t>(top.value_or(0));
}

}  // namespace

void handle_chat_completions(RouteCall& call) {
  ApiError error;
  const auto body = parse_body(call.request().body, error);
  if (!body) return call.reply_error(error);
  RequestFields fields(*body);
  const ServedModel& model = *call.model;
  ChatPlan plan;
  read_model(fields, call.server->options);
  read_sampling(fields, call.server->options, model, plan.request);
  read_stops(fields, plan.request);
  read_shares(fields, model, plan.request);
  // An answer of no tokens is no chat: 0 is refused.
  read_max_tokens(fields, {"max_completion_tokens", "max_tokens"}, 1, plan.request);
  read_logprobs(fields, model.engine->options(), plan);
  plan.stream = read_stream(fields);
  plan.thinking = read_thinking(fields, call.server->options);
  plan.tools = read_tools(fields, model.grammar != nullptr);
  read_constraint(fields, model, plan.request);
  read_unused(fields);
  for (const std::string_view key : {"functions", "function_call"}) {
    if (fields.has(key)) fields.fail(key, "the API's older form is not offered: send tools and tool_choice");
  }
  const bool continues = fields.boolean("continue_final_message").value_or(false);
  const JsonValue* messages = fields.array("messages");
  if (!fields.failed() && (messages == nullptr || messages->items.empty())) {
    fields.fail("messages", "found none, expected at least one message");
  }
  if (fields.failed()) return call.reply_error(fields.error());

  const auto conversation = read_client_chat(*messages, plan.tools.tools);
  if (!conversation.ok()) return call.reply_error(error_of(conversation.status()));
  if (continues && conversation->messages.back().role != Role::kAssistant) {
    return call.reply_error(bad_field("continue_final_message", "the last message is not an assistant's"));
  }
  plan.markup = call_markup(*conversation);
  if (const auto failed =
          build_chat_prompt(model, *conversation, plan.thinking, plan.tools, "messages", plan.request)) {
    return call.reply_error(*failed);
  }
  AnswerJob job;
  job.stream = plan.stream.stream;
  job.renderer = std::make_unique<ChatRenderer>(call, plan);
  job.requests.push_back(std::move(plan.request));
  Answer::begin(call, std::move(job));
}

}  // namespace fathom
