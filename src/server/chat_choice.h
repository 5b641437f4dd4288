// One answer of a chat as it grows: reasoning, content and calls told apart, for any API's renderer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "text/output_parser.h"

namespace fathom {

class ChatChoice {
 public:
  // in_reasoning: the prompt ended inside reasoning. parallel_calls: more than the first call is reported.
  ChatChoice(bool in_reasoning, bool show_reasoning, bool parallel_calls, CallMarkup markup,
             std::string_view call_id_prefix)
      : parser_(in_reasoning, markup),
        show_reasoning_(show_reasoning),
        parallel_calls_(parallel_calls),
        call_id_prefix_(call_id_prefix) {}

  // Feeds a delta; the events that are to be reported, neighbours of one kind joined.
  const std::vector<OutputEvent>& push(const Delta& delta);

  const std::string& call_id(int index);
  const std::optional<Finish>& finish() const { return finish_; }
  // Some call is whole and is to be made.
  bool has_calls() const;
  // Ends for the call: kLength never does.
  bool ended_for_calls() const { return has_calls() && finish_ && finish_->reason != FinishReason::kLength; }

  // What is to be reported of the whole answer; calls that were cut off are left out.
  std::string reasoning() const { return show_reasoning_ ? parser_.message().reasoning_content : std::string(); }
  const std::string& content() const { return parser_.message().content; }
  std::vector<ToolCall> calls();

 private:
  OutputParser parser_;
  bool show_reasoning_;
  bool parallel_calls_;
  std::string call_id_prefix_;
  std::vector<std::string> call_ids_;
  std::vector<OutputEvent> raw_, events_;
  std::optional<Finish> finish_;
};

// "stop", "length" or "tool_calls".
std::string_view openai_finish_reason(const ChatChoice& choice);

}  // namespace fathom
