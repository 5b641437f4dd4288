// POST /v1/messages and /v1/messages/count_tokens: Anthropic's protocol.
#include <memory>

#include "server/answer.h"
#include "server/anthropic_request.h"
#include "server/chat_choice.h"
#include "server/json_writer.h"
#include "server/openai_json.h"
#include "server/routes.h"
#include "server/thinking_signature.h"

namespace fathom {
namespace {

using EventKind = OutputEvent::Kind;

class MessagesRenderer : public AnswerRenderer {
 public:
  MessagesRenderer(const RouteCall& call, const AnthropicRequest& plan)
      : id_(make_id("msg_")),
        model_(call.server->options.model_names.front()),
        stops_(plan.request.stop_strings),
        omits_thinking_(!plan.thinking.show_reasoning),
        choice_(plan.request.reasoning_end.has_value(), true, plan.tools.parallel, plan.markup, "toolu_"),
        usage_(1) {
    usage_.set_prompt(0, static_cast<std::int64_t>(plan.request.prompt.size()));
  }

  std::string id() const override { return id_; }

  void on_delta(std::size_t, const Delta& delta, std::string* sse) override {
    usage_.add(0, 0, delta);
    const auto& events = choice_.push(delta);
    if (sse == nullptr) return;
    begin(*sse);
    for (const OutputEvent& event : events) write_event(event, *sse);
  }

  void on_end(std::string* sse) override {
    if (sse == nullptr) return;
    begin(*sse);
    close_block(*sse);
    write(*sse, "message_delta", [this](JsonWriter& json) {
      json.key("delta").begin_object().member("stop_reason", stop_reason());
      json.member_or_null("stop_sequence", stop_sequence()).end_object();
      json.key("usage");
      write_usage_object(json);
    });
    write(*sse, "message_stop", [](JsonWriter&) {});
  }

  std::string whole() override {
    std::string out;
    JsonWriter json(out);
    write_message(json, true);
    return out;
  }

  // Only a message may come before any other event: until it is there a comment does.
  std::string keep_alive() override {
    return begun_ ? "event: ping\ndata: {\"type\":\"ping\"}\n\n" : AnswerRenderer::keep_alive();
  }
  std::string error_event(const ApiError& error, std::string_view request_id) override {
    return "event: error\ndata: " + error_json(error, Dialect::kAnthropic, request_id) + "\n\n";
  }

 private:
  enum class Block { kNone, kThinking, kText, kToolUse };

  template <typename WriteRest>
  void write(std::string& sse, std::string_view type, WriteRest&& write_rest) {
    sse += "event: ";
    sse += type;
    sse += "\ndata: ";
    JsonWriter json(sse);
    json.begin_object().member("type", type);
    write_rest(json);
    json.end_object();
    sse += "\n\n";
  }

  void begin(std::string& sse) {
    if (begun_) return;
    begun_ = true;
    write(sse, "message_start", [this](JsonWriter& json) {
      json.key("message");
      write_message(json, false);
    });
  }

  void close_block(std::string& sse) {
    if (block_ == Block::kNone) return;
    if (block_ == Block::kThinking) {
      // It vouches for nothing here; clients want the event.
      write(sse, "content_block_delta", [this](JsonWriter& json) {
        json.member("index", block_index_).key("delta").begin_object();
        json.member("type", "signature_delta").member("signature", signature()).end_object();
      });
    }
    write(sse, "content_block_stop", [this](JsonWriter& json) { json.member("index", block_index_); });
    block_ = Block::kNone;
    ++block_index_;
  }

  template <typename WriteBlock>
  void open_block(Block block, std::string& sse, WriteBlock&& write_block) {
    close_block(sse);
    block_ = block;
    write(sse, "content_block_start", [&](JsonWriter& json) {
      json.member("index", block_index_).key("content_block").begin_object();
      write_block(json);
      json.end_object();
    });
  }

  void write_delta(std::string& sse, std::string_view type, std::string_view field, std::string_view text) {
    write(sse, "content_block_delta", [&](JsonWriter& json) {
      json.member("index", block_index_).key("delta").begin_object();
      json.member("type", type).member(field, text).end_object();
    });
  }

  void write_event(const OutputEvent& event, std::string& sse) {
    switch (event.kind) {
      case EventKind::kReasoning:
        if (block_ != Block::kThinking) {
          open_block(Block::kThinking, sse, [](JsonWriter& json) {
            json.member("type", "thinking").member("thinking", "").member("signature", "");
          });
        }
        if (omits_thinking_) return;
        return write_delta(sse, "thinking_delta", "thinking", event.text);
      case EventKind::kContent:
        if (block_ != Block::kText) {
          open_block(Block::kText, sse, [](JsonWriter& json) { json.member("type", "text").member("text", ""); });
        }
        return write_delta(sse, "text_delta", "text", event.text);
      case EventKind::kToolCallStart:
        return open_block(Block::kToolUse, sse, [&](JsonWriter& json) {
          json.member("type", "tool_use").member("id", choice_.call_id(event.index)).member("name", event.text);
          json.key("input").begin_object().end_object();
        });
      case EventKind::kToolArguments: return write_delta(sse, "input_json_delta", "partial_json", event.text);
      case EventKind::kToolCallEnd: return close_block(sse);
    }
  }

  std::string signature() const { return omits_thinking_ ? thinking_signature(choice_.reasoning()) : std::string(); }

  std::string_view stop_reason() const {
    const FinishReason reason = choice_.finish()->reason;
    if (reason == FinishReason::kLength) return "max_tokens";
    if (choice_.ended_for_calls()) return "tool_use";
    return reason == FinishReason::kStopString ? "stop_sequence" : "end_turn";
  }
  std::string stop_sequence() const {
    const Finish& finish = *choice_.finish();
    return finish.reason == FinishReason::kStopString ? stops_[static_cast<std::size_t>(finish.stop_string)]
                                                      : std::string();
  }

  void write_usage_object(JsonWriter& json) const {
    const std::int64_t cached = usage_.cached_tokens();
    json.begin_object().member("input_tokens", usage_.prompt_tokens() - cached);
    json.member("cache_creation_input_tokens", 0).member("cache_read_input_tokens", cached);
    json.member("output_tokens", usage_.completion_tokens()).key("output_tokens_details").begin_object();
    json.member("thinking_tokens", usage_.reasoning_tokens()).end_object().end_object();
  }

  void write_message(JsonWriter& json, bool whole) {
    json.begin_object().member("id", id_).member("type", "message").member("role", "assistant");
    json.member("model", model_).key("content").begin_array();
    if (whole) write_blocks(json);
    json.end_array();
    if (whole) {
      json.member("stop_reason", stop_reason()).member_or_null("stop_sequence", stop_sequence());
    } else {
      json.key("stop_reason").null().key("stop_sequence").null();
    }
    json.key("usage");
    write_usage_object(json);
    json.end_object();
  }

  void write_blocks(JsonWriter& json) {
    const auto calls = choice_.calls();
    if (const std::string reasoning = choice_.reasoning(); !reasoning.empty()) {
      json.begin_object().member("type", "thinking").member("thinking", omits_thinking_ ? "" : reasoning);
      json.member("signature", signature()).end_object();
    }
    if (!choice_.content().empty()) {
      json.begin_object().member("type", "text").member("text", choice_.content()).end_object();
    }
    for (const ToolCall& call : calls) {
      json.begin_object().member("type", "tool_use").member("id", call.id).member("name", call.name);
      json.key("input").raw(call.arguments.empty() ? "{}" : call.arguments).end_object();
    }
  }

  std::string id_;
  std::string model_;
  std::vector<std::string> stops_;
  bool omits_thinking_;  // its blocks have the signature alone
  ChatChoice choice_;
  UsageSum usage_;
  bool begun_ = false;
  Block block_ = Block::kNone;
  int block_index_ = 0;
};

}  // namespace

void handle_messages(RouteCall& call) {
  ApiError error;
  const auto body = parse_body(call.request().body, error);
  if (!body) return call.reply_error(error);
  auto plan = read_anthropic(*body, call.server->options, *call.model, false, error);
  if (!plan) return call.reply_error(error);
  AnswerJob job;
  job.stream = plan->stream;
  job.renderer = std::make_unique<MessagesRenderer>(call, *plan);
  job.requests.push_back(std::move(plan->request));
  Answer::begin(call, std::move(job));
}

void handle_count_tokens(RouteCall& call) {
  ApiError error;
  const auto body = parse_body(call.request().body, error);
  if (!body) return call.reply_error(error);
  const auto plan = read_anthropic(*body, call.server->options, *call.model, true, error);
  if (!plan) return call.reply_error(error);
  std::string out;
  JsonWriter(out).begin_object().member("input_tokens", plan->request.prompt.size()).end_object();
  call.reply_json(std::move(out));
}

}  // namespace fathom
