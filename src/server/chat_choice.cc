#include "server/chat_choice.h"

#include "server/server_context.h"

namespace fathom {

const std::vector<OutputEvent>& ChatChoice::push(const Delta& delta) {
  raw_.clear();
  events_.clear();
  parser_.push(delta.text, raw_);
  if (delta.finish) {
    finish_ = delta.finish;
    parser_.finish(delta.finish->reason == FinishReason::kEos, raw_);
  }
  for (OutputEvent& event : raw_) {
    const bool is_call = event.kind == OutputEvent::Kind::kToolCallStart ||
                         event.kind == OutputEvent::Kind::kToolArguments ||
                         event.kind == OutputEvent::Kind::kToolCallEnd;
    if (event.kind == OutputEvent::Kind::kReasoning && !show_reasoning_) continue;
    if (is_call && event.index > 0 && !parallel_calls_) continue;
    const bool joins = !events_.empty() && events_.back().kind == event.kind && events_.back().index == event.index &&
                       event.kind != OutputEvent::Kind::kToolCallStart && event.kind != OutputEvent::Kind::kToolCallEnd;
    if (joins) {
      events_.back().text += event.text;
    } else {
      events_.push_back(std::move(event));
    }
  }
  return events_;
}

const std::string& ChatChoice::call_id(int index) {
  while (call_ids_.size() <= static_cast<std::size_t>(index)) call_ids_.push_back(make_id(call_id_prefix_));
  return call_ids_[static_cast<std::size_t>(index)];
}

bool ChatChoice::has_calls() const {
  const auto& calls = parser_.message().tool_calls;
  return !calls.empty() && calls.front().complete;
}

std::vector<ToolCall> ChatChoice::calls() {
  std::vector<ToolCall> out;
  for (const ToolCall& call : parser_.message().tool_calls) {
    if (!call.complete || (!out.empty() && !parallel_calls_)) break;
    out.push_back(call);
    out.back().id = call_id(static_cast<int>(out.size()) - 1);
  }
  return out;
}

std::string_view openai_finish_reason(const ChatChoice& choice) {
  if (choice.finish() && choice.finish()->reason == FinishReason::kLength) return "length";
  return choice.ended_for_calls() ? "tool_calls" : "stop";
}

}  // namespace fathom
