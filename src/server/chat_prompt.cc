#include "server/chat_prompt.h"

#include <algorithm>

#include "server/generation_fields.h"
#include "server/grammar_constraint.h"

namespace fathom {
namespace {

// Enough to never be drawn, and what OpenAI's API gives as the end of the range.
constexpr float kForbidden = -100.0f;

// The encoder lets no answer begin behind a system message, and clients send such: harnesses put notes behind the
// user's turn. There its text is the user's. A conversation of a system message alone gets an empty turn of the user.
void let_answers_begin(std::vector<ChatMessage>& messages) {
  bool answer_follows = true;
  for (std::size_t i = messages.size() - 1; i > 0; --i) {
    ChatMessage& message = messages[i];
    const bool is_note = message.role == Role::kSystem && message.tools.empty() && !message.response_format;
    if (is_note && answer_follows) {
      message.role = Role::kUser;
    } else {
      answer_follows = message.role == Role::kAssistant;
    }
  }
  if (messages.size() == 1 && messages.front().role == Role::kSystem) messages.emplace_back();
}

bool ends_inside_reasoning(const PromptText& prompt) {
  return prompt.text.ends_with(kThinkOpenText) && !prompt.template_ranges.empty() &&
         prompt.template_ranges.back().end == prompt.text.size();
}

// Sets make_constraint as the tool choice demands; one that is there already is what an answer without calls must fit.
std::optional<ApiError> constrain_calls(const ServedModel& model, const ToolFields& tools, Request& request) {
  const bool must_call = tools.choice == ToolFields::Choice::kRequired || tools.choice == ToolFields::Choice::kNamed;
  std::vector<CallableTool> callable;
  std::vector<std::string> names;
  bool strict = false;
  for (const OfferedTool& tool : tools.offered) {
    if (tools.choice == ToolFields::Choice::kNamed && tool.name != tools.named) continue;
    names.push_back(tool.name);
    // Where nobody asked for the schema to hold, a call that must come is still best held to it.
    callable.push_back({tool.name, tool.strict || must_call ? tool.parameters : std::string()});
    strict = strict || tool.strict;
  }
  const bool bound_answer = static_cast<bool>(request.make_constraint);
  if (callable.empty() || (!must_call && !strict && !bound_answer && !tools.is_narrowed)) return std::nullopt;
  const bool parallel = tools.parallel && tools.choice != ToolFields::Choice::kNamed;
  const auto rule = must_call || bound_answer ? ToolCallRule::kRequired : ToolCallRule::kOptional;
  const auto source = make_tool_calls_source(callable, rule, parallel);
  auto calls = source.ok() ? compile_constraint(model, {GrammarKind::kToolCalls, *source})
                           : Result<MakeConstraint>(source.status());
  if (!calls.ok()) {
    if (strict || !must_call) return bad_field("tools", calls.status().message());
    request.make_constraint = make_call_constraint(*model.tokenizer, names);
    return std::nullopt;
  }
  // The answer is a call from its first character on: the line ends and quotes of its markup are no text of it.
  if (must_call) request.stop_strings.clear();
  request.make_constraint = must_call || !bound_answer
                                ? std::move(*calls)
                                : make_either(std::move(request.make_constraint), std::move(*calls));
  return std::nullopt;
}

}  // namespace

bool apply_effort(std::string_view name, ThinkingFields& thinking) {
  if (name == "none") {
    thinking.thinking = false;
  } else if (name == "minimal" || name == "low" || name == "medium") {
    thinking.effort = ReasoningEffort::kLow;
  } else if (name == "high") {
    thinking.effort = ReasoningEffort::kHigh;
  } else if (name == "max" || name == "xhigh") {
    thinking.effort = ReasoningEffort::kMax;
  } else {
    return false;
  }
  return true;
}

ThinkingFields read_thinking(RequestFields& fields, const ServerOptions& options) {
  ThinkingFields out;
  out.thinking = options.thinking;
  out.effort = options.effort;
  const auto read_effort = [&](RequestFields& from) {
    const auto effort = from.string("reasoning_effort");
    if (effort && !apply_effort(*effort, out)) {
      from.fail("reasoning_effort", "found \"" + *effort + "\", expected none, minimal, low, medium, high or max");
    }
  };
  read_effort(fields);
  if (const JsonValue* object = fields.object("chat_template_kwargs")) {
    RequestFields nested(*object, "chat_template_kwargs.");
    if (const auto on = nested.boolean("enable_thinking")) out.thinking = *on;
    if (const auto on = nested.boolean("thinking")) out.thinking = *on;
    if (const auto drop = nested.boolean("drop_thinking")) out.drop_thinking = *drop;
    read_effort(nested);
    fields.absorb(nested);
  }
  if (const JsonValue* object = fields.object("thinking")) {
    RequestFields nested(*object, "thinking.");
    const auto type = nested.string("type");
    if (type && *type == "disabled") {
      out.thinking = false;
    } else if (type && (*type == "enabled" || *type == "adaptive" || *type == "auto")) {
      out.thinking = true;
    } else {
      nested.fail("type", type ? "found \"" + *type + "\", expected enabled or disabled" : "found none");
    }
    fields.absorb(nested);
  }
  out.show_reasoning = fields.boolean("include_reasoning").value_or(true);
  return out;
}

Result<ChatConversation> read_client_chat(const JsonValue& messages, const JsonValue* tools) {
  auto conversation = read_chat(messages, tools);
  if (!conversation.ok()) return conversation;
  for (ChatMessage& message : conversation->messages) {
    if (message.role == Role::kDeveloper) message.role = Role::kSystem;
  }
  let_answers_begin(conversation->messages);
  return conversation;
}

CallMarkup call_markup(const ChatConversation& conversation) {
  const bool offers = std::any_of(conversation.messages.begin(), conversation.messages.end(),
                                  [](const ChatMessage& message) { return !message.tools.empty(); });
  return offers ? CallMarkup::kCalls : CallMarkup::kText;
}

std::optional<ApiError> build_chat_prompt(const ServedModel& model, const ChatConversation& conversation,
                                          const ThinkingFields& thinking, const ToolFields& tools,
                                          std::string_view param, Request& request) {
  const Tokenizer& tokenizer = *model.tokenizer;
  ChatEncodingOptions options;
  options.release = model.release;
  options.thinking = thinking.thinking;
  options.effort = thinking.effort;
  options.drop_thinking = thinking.drop_thinking;
  const ChatMessage& last = conversation.messages.back();
  options.continue_final_message = last.role == Role::kAssistant && !last.task;
  const auto prompt = encode_chat(conversation, options);
  if (!prompt.ok()) return error_of(prompt.status());
  if (auto failed = check_prompt_bytes(model, param, prompt->text.size())) return failed;
  request.prompt = tokenizer.encode(*prompt);
  if (ends_inside_reasoning(*prompt)) request.reasoning_end = tokenizer.find_added_token(kThinkCloseText);

  if (tools.choice == ToolFields::Choice::kNone) {
    if (const auto markup = tokenizer.find_added_token(kDsmlText)) {
      request.sampling.logit_bias.emplace_back(*markup, kForbidden);
    }
  } else {
    if (tools.tools != nullptr) request.calls_begin = tokenizer.find_added_token(kDsmlText);
    if (auto failed = constrain_calls(model, tools, request)) return failed;
  }
  return fit_to_context(model, param, request);
}

}  // namespace fathom
