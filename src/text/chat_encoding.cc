#include "text/chat_encoding.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fathom {
namespace {

constexpr std::string_view kEffortTextA =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";
constexpr std::string_view kEffortTextB =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the "
    "problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying "
    "cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n\n";

constexpr std::string_view kToolsIntroduction =
    "\n\n## Tools\n\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "
    "\"<｜DSML｜tool_calls>\" block like the following:\n\n"
    "<｜DSML｜tool_calls>\n"
    "<｜DSML｜invoke name=\"$TOOL_NAME\">\n"
    "<｜DSML｜parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜parameter>\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "<｜DSML｜invoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "</｜DSML｜tool_calls>\n\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, booleans, "
    "arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside "
    "<think>...</think> BEFORE any tool calls or final response.\n\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n";
constexpr std::string_view kToolsEnd =
    "\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";
constexpr std::string_view kResponseFormat =
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

std::string_view effort_text(const ChatEncodingOptions& options) {
  if (!options.thinking) return "";
  switch (options.effort) {
    case ReasoningEffort::kDefault:
    case ReasoningEffort::kLow: return "";
    case ReasoningEffort::kHigh: return options.release == Release::k0731 ? kEffortTextA : "";
    case ReasoningEffort::kMax: return options.release == Release::k0731 ? kEffortTextB : kEffortTextA;
  }
  return "";
}

std::string_view task_text(Task task) {
  switch (task) {
    case Task::kAction: return "<｜action｜>";
    case Task::kQuery: return "<｜query｜>";
    case Task::kAuthority: return "<｜authority｜>";
    case Task::kDomain: return "<｜domain｜>";
    case Task::kTitle: return "<｜title｜>";
    case Task::kReadUrl: return "<｜read_url｜>";
  }
  return "";
}

// A message after merging (spec 8.2): a user turn holds text blocks and tool results.
struct Block {
  bool is_tool_result = false;
  std::string_view content;
  std::string_view tool_call_id;
};
struct Turn {
  const ChatMessage* message = nullptr;  // the first of a merged user turn
  std::ptrdiff_t index = 0;              // of `message` among the messages the client sent, for errors
  Role role = Role::kUser;
  std::vector<Block> blocks;  // user
  std::optional<Task> task;   // of merged messages the last one that has any
};

bool opens_answer(Role role) { return role == Role::kUser || role == Role::kDeveloper; }

std::vector<Turn> merge_turns(const ChatConversation& conversation) {
  const std::vector<ChatMessage>& messages = conversation.messages;
  std::vector<Turn> turns;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const std::ptrdiff_t index = static_cast<std::ptrdiff_t>(i) - conversation.num_inserted;
    const bool is_tool = message.role == Role::kTool;
    const bool is_user = message.role == Role::kUser;
    if (!is_tool && !is_user) {
      turns.push_back({&message, index, message.role, {}, message.task});
      continue;
    }
    const bool follows_user = !turns.empty() && turns.back().role == Role::kUser;
    if (!follows_user || (is_user && turns.back().task)) turns.push_back({&message, index, Role::kUser, {}, {}});
    turns.back().blocks.push_back({is_tool, message.content, message.tool_call_id});
    if (message.task) turns.back().task = message.task;
  }
  return turns;
}

// Puts the tool results of each user turn into the order in which the latest calls were made; the places of the other
// blocks stay. Results of unknown calls count as the first call's.
void order_tool_results(std::vector<Turn>& turns) {
  std::unordered_map<std::string_view, std::size_t> call_places;
  for (Turn& turn : turns) {
    if (turn.role == Role::kAssistant && !turn.message->tool_calls.empty()) {
      call_places.clear();
      for (const ToolCall& call : turn.message->tool_calls) call_places.emplace(call.id, call_places.size());
    }
    if (turn.role != Role::kUser) continue;
    std::vector<Block> results;
    std::vector<std::pair<std::size_t, std::size_t>> order;  // (place of the call, place among the results)
    for (const Block& block : turn.blocks) {
      if (!block.is_tool_result) continue;
      const auto call = call_places.find(block.tool_call_id);
      order.emplace_back(call == call_places.end() ? 0 : call->second, results.size());
      results.push_back(block);
    }
    std::sort(order.begin(), order.end());
    auto next = order.begin();
    for (Block& block : turn.blocks) {
      if (block.is_tool_result) block = results[(next++)->second];
    }
  }
}

// Index of the last user or developer turn; -1 when there is none.
std::ptrdiff_t last_opening_turn(const std::vector<Turn>& turns) {
  std::ptrdiff_t last = -1;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    if (opens_answer(turns[i].role)) last = static_cast<std::ptrdiff_t>(i);
  }
  return last;
}

// Writes turns into the prompt: what the encoder writes is template, what the messages hold is user text.
class TurnWriter {
 public:
  TurnWriter(const ChatEncodingOptions& options, bool drop_thinking, std::vector<Turn> turns)
      : options_(options),
        drop_thinking_(drop_thinking),
        turns_(std::move(turns)),
        last_opening_(last_opening_turn(turns_)) {}

  Result<PromptText> write() {
    prompt_.append_template(kBosText);
    prompt_.append_template(effort_text(options_));
    for (std::size_t i = 0; i < turns_.size(); ++i) {
      FATHOM_RETURN_IF_ERROR(write_turn(i));
      write_transition(i);
    }
    return std::move(prompt_);
  }

 private:
  Status write_turn(std::size_t i) {
    const Turn& turn = turns_[i];
    switch (turn.role) {
      case Role::kDeveloper: prompt_.append_template(kUserText); [[fallthrough]];
      case Role::kSystem:
        prompt_.append_user(turn.message->content);
        write_tools(*turn.message);
        return {};
      case Role::kUser:
      case Role::kTool: write_blocks(turn); return {};
      case Role::kLatestReminder:
        prompt_.append_template("<｜latest_reminder｜>");
        prompt_.append_user(turn.message->content);
        return {};
      case Role::kAssistant: return write_answer(i);
    }
    return {};
  }

  void write_tools(const ChatMessage& message) {
    if (!message.tools.empty()) {
      prompt_.append_template(kToolsIntroduction);
      for (const JsonValue& tool : message.tools) {
        prompt_.append_user(dump_python_json(tool));
        prompt_.append_template("\n");
      }
      prompt_.append_template(kToolsEnd);
    }
    if (message.response_format) {
      prompt_.append_template(kResponseFormat);
      prompt_.append_user(dump_python_json(*message.response_format));
    }
  }

  void write_blocks(const Turn& turn) {
    prompt_.append_template(kUserText);
    for (std::size_t b = 0; b < turn.blocks.size(); ++b) {
      if (b > 0) prompt_.append_template("\n\n");
      const Block& block = turn.blocks[b];
      if (block.is_tool_result) prompt_.append_template(kToolResultOpenText);
      prompt_.append_user(block.content);
      if (block.is_tool_result) prompt_.append_template(kToolResultCloseText);
    }
  }

  Status write_answer(std::size_t i) {
    const ChatMessage& message = *turns_[i].message;
    const bool follows_task = i > 0 && turns_[i - 1].task.has_value();
    if (options_.thinking && !follows_task && (!drop_thinking_ || static_cast<std::ptrdiff_t>(i) > last_opening_)) {
      prompt_.append_user(message.reasoning_content);
      prompt_.append_template(kThinkCloseText);
    }
    prompt_.append_user(message.content);
    if (!message.tool_calls.empty()) FATHOM_RETURN_IF_ERROR(write_calls(turns_[i]));
    const bool goes_on = message.wo_eos || (options_.continue_final_message && i + 1 == turns_.size());
    if (!goes_on) prompt_.append_template(kEosText);
    return {};
  }

  Status write_calls(const Turn& turn) {
    prompt_.append_template("\n\n<｜DSML｜tool_calls>\n");
    const std::vector<ToolCall>& calls = turn.message->tool_calls;
    for (std::size_t c = 0; c < calls.size(); ++c) {
      if (c > 0) prompt_.append_template("\n");
      prompt_.append_template("<｜DSML｜invoke name=\"");
      prompt_.append_user(calls[c].name);
      prompt_.append_template("\">\n");
      const std::string field =
          "messages[" + std::to_string(turn.index) + "].tool_calls[" + std::to_string(c) + "].function.arguments";
      FATHOM_RETURN_IF_ERROR(write_arguments(calls[c].arguments, field));
      prompt_.append_template("\n</｜DSML｜invoke>");
    }
    prompt_.append_template("\n</｜DSML｜tool_calls>");
    return {};
  }

  Status write_arguments(const std::string& arguments, const std::string& field) {
    const Result<JsonValue> parsed = parse_json(arguments);
    if (!parsed.ok()) {
      write_parameter("arguments", true, arguments);
      return {};
    }
    if (!parsed->is(JsonValue::Kind::kObject)) {
      return invalid_argument(field + ": found " + std::string(json_kind_name(parsed->kind)) +
                              ", expected the JSON text of an object");
    }
    for (std::size_t m = 0; m < parsed->members.size(); ++m) {
      if (m > 0) prompt_.append_template("\n");
      const JsonValue::Member& member = parsed->members[m];
      const bool is_string = member.value.is(JsonValue::Kind::kString);
      write_parameter(member.key, is_string, is_string ? member.value.text : dump_python_json(member.value));
    }
    return {};
  }

  void write_parameter(std::string_view name, bool is_string, std::string_view value) {
    prompt_.append_template("<｜DSML｜parameter name=\"");
    prompt_.append_user(name);
    prompt_.append_template(is_string ? "\" string=\"true\">" : "\" string=\"false\">");
    prompt_.append_user(value);
    prompt_.append_template("</｜DSML｜parameter>");
  }

  void write_transition(std::size_t i) {
    if (i + 1 < turns_.size()) {
      const Role next = turns_[i + 1].role;
      if (next != Role::kAssistant && next != Role::kLatestReminder) return;
    }
    const Turn& turn = turns_[i];
    if (turn.task) {
      if (*turn.task == Task::kAction) {
        prompt_.append_template(kAssistantText);
        prompt_.append_template(options_.thinking ? kThinkOpenText : kThinkCloseText);
      }
      prompt_.append_template(task_text(*turn.task));
      return;
    }
    if (!opens_answer(turn.role)) return;
    prompt_.append_template(kAssistantText);
    const bool thinks = options_.thinking && (!drop_thinking_ || static_cast<std::ptrdiff_t>(i) >= last_opening_);
    prompt_.append_template(thinks ? kThinkOpenText : kThinkCloseText);
  }

  const ChatEncodingOptions& options_;
  bool drop_thinking_;
  std::vector<Turn> turns_;
  std::ptrdiff_t last_opening_;
  PromptText prompt_;
};

}  // namespace

Result<PromptText> encode_chat(const ChatConversation& conversation, const ChatEncodingOptions& options) {
  const std::vector<ChatMessage>& messages = conversation.messages;
  if (options.continue_final_message && (messages.empty() || messages.back().role != Role::kAssistant)) {
    return invalid_argument(
        "continue_final_message: found a conversation that does not end with an assistant message, "
        "expected one to continue");
  }
  std::vector<Turn> turns = merge_turns(conversation);
  order_tool_results(turns);
  const bool any_tools =
      std::any_of(messages.begin(), messages.end(), [](const ChatMessage& m) { return !m.tools.empty(); });
  const bool drop_thinking = options.drop_thinking && !any_tools;
  if (options.thinking && drop_thinking) {
    // Reasoning before the last question is not written (TurnWriter); developer turns there go altogether.
    const auto end = turns.begin() + std::max<std::ptrdiff_t>(last_opening_turn(turns), 0);
    turns.erase(std::remove_if(turns.begin(), end, [](const Turn& t) { return t.role == Role::kDeveloper; }), end);
  }
  return TurnWriter(options, drop_thinking, std::move(turns)).write();
}

std::optional<Release> release_from_name(std::string_view name) {
  if (name == "preview") return Release::kPreview;
  if (name == "0731") return Release::k0731;
  return std::nullopt;
}

std::string_view release_name(Release release) { return release == Release::kPreview ? "preview" : "0731"; }

std::optional<ReasoningEffort> effort_from_name(std::string_view name) {
  if (name == "low") return ReasoningEffort::kLow;
  if (name == "high") return ReasoningEffort::kHigh;
  if (name == "max") return ReasoningEffort::kMax;
  return std::nullopt;
}

}  // namespace fathom
