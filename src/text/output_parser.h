// The streaming parser of an answer: reasoning, content and DSML tool calls (spec 8.5), as they arrive.
//
// What is valid parses as the vendor's parser does it. What is not is taken as follows; nothing is ever an error:
// - Thinking without </think>: all of it is reasoning and content is empty. A tool block ends the reasoning as </think>
// would.
// - A <think> at the very start is dropped (and starts reasoning in chat mode); a </think> at the very start of the
//   content is dropped; later think tags are text.
// - EOS text ends the message; it is in no field, and what follows it is ignored.
// - A block may lack the newlines before or inside it, and an invoke may stand without a block. White space between
//   tags is dropped, other text between parameters too. Text after a block or between calls is content.
// - A parameter without its closing tag ends at a tag that starts a line (</§invoke>, </§tool_calls>, <§parameter
// name=",
//   <§invoke name="), or at EOS. Of two parameters with one name the first counts.
// - A value with string="false" (or no such attribute) that is not JSON becomes a string. Such values are held until
//   they are whole, strings stream; so the arguments of a complete call are always valid JSON.
// - EOS inside a call completes it. An end without EOS (max_tokens, a stop string) leaves it incomplete, with the
//   arguments as far as they were streamed.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_messages.h"

namespace fathom {

struct OutputEvent {
  enum class Kind {
    kReasoning,      // text: more reasoning
    kContent,        // text: more content
    kToolCallStart,  // index; text: the function's name
    kToolArguments,  // index; text: more of the arguments JSON
    kToolCallEnd,    // index; complete
  };
  Kind kind = Kind::kContent;
  std::string text;      // valid UTF-8, never empty for the three deltas
  int index = 0;         // tool calls: 0, 1, ...
  bool complete = true;  // kToolCallEnd
};

// What the markup of calls in an answer is.
enum class CallMarkup {
  kCalls,  // calls
  kText,   // text like any other: the model was shown no tools, and its user knows what to do with no call
};

// What the events add up to.
struct AssistantMessage {
  std::string reasoning_content;
  std::string content;
  std::vector<ToolCall> tool_calls;  // without ids; an incomplete call only as the last
  bool operator==(const AssistantMessage&) const = default;
};

class OutputParser {
 public:
  // thinking: the prompt ended with <think>.
  explicit OutputParser(bool thinking, CallMarkup markup = CallMarkup::kCalls);
  ~OutputParser();
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;

  // Any cut of the answer's bytes, from the detokenizer with or without special tokens shown. Appends events; only
  // what could still become a marker is held back (at most some 40 bytes), tag attributes and non-string values apart.
  void push(std::string_view bytes, std::vector<OutputEvent>& events);
  // The end of the answer; stopped_by_eos: the model ended it with EOS. Later calls do nothing.
  void finish(bool stopped_by_eos, std::vector<OutputEvent>& events);

  // Where the parser stands: true until the reasoning has ended (counts reasoning tokens, bars stop strings).
  bool in_reasoning() const;
  // EOS text was seen: the message is over.
  bool saw_eos() const;
  // All events so far, put together.
  const AssistantMessage& message() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A whole answer at once.
AssistantMessage parse_output(std::string_view completion, bool thinking, bool stopped_by_eos);

// {"role": "assistant", "reasoning_content", "content", "tool_calls": [{"type": "function", "function": {...}}]}, as
// Python prints it; an incomplete call stands apart, as "incomplete_tool_call".
std::string message_to_json(const AssistantMessage& message);

}  // namespace fathom
