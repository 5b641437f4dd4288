// A completion in any cut: the deltas add up to the message, and every cut gives the same message, in valid
// UTF-8, with valid JSON in every complete call.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "text/json_value.h"
#include "text/output_parser.h"
#include "text/utf8.h"

namespace {

fathom::AssistantMessage add_up(const std::vector<fathom::OutputEvent>& events) {
  fathom::AssistantMessage message;
  for (const auto& event : events) {
    using Kind = fathom::OutputEvent::Kind;
    switch (event.kind) {
      case Kind::kReasoning: message.reasoning_content += event.text; break;
      case Kind::kContent: message.content += event.text; break;
      case Kind::kToolCallStart:
        if (event.index != static_cast<int>(message.tool_calls.size())) std::abort();
        message.tool_calls.emplace_back();
        message.tool_calls.back().name = event.text;
        break;
      case Kind::kToolArguments: message.tool_calls.back().arguments += event.text; break;
      case Kind::kToolCallEnd: break;
    }
  }
  return message;
}

void check_same(const fathom::AssistantMessage& a, const fathom::AssistantMessage& b) {
  if (a.reasoning_content != b.reasoning_content || a.content != b.content) std::abort();
  if (a.tool_calls.size() != b.tool_calls.size()) std::abort();
  for (std::size_t i = 0; i < a.tool_calls.size(); ++i) {
    if (a.tool_calls[i].name != b.tool_calls[i].name || a.tool_calls[i].arguments != b.tool_calls[i].arguments) {
      std::abort();
    }
  }
}

}  // namespace

// Byte 0: bit 0 thinking, bit 1 stopped by EOS, the rest the length of the pieces.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const bool thinking = (data[0] & 1) != 0;
  const bool stopped = (data[0] & 2) != 0;
  const std::size_t piece = static_cast<std::size_t>(data[0] >> 2) + 1;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  fathom::OutputParser parser(thinking);
  std::vector<fathom::OutputEvent> events;
  for (std::size_t begin = 0; begin < text.size(); begin += piece) parser.push(text.substr(begin, piece), events);
  parser.finish(stopped, events);
  check_same(add_up(events), parser.message());
  check_same(parser.message(), fathom::parse_output(text, thinking, stopped));
  for (const auto& event : events) {
    if (!fathom::is_valid_utf8(event.text)) std::abort();
  }
  for (const auto& call : parser.message().tool_calls) {
    if (call.complete && !fathom::is_valid_json(call.arguments)) std::abort();
  }
  if (!fathom::is_valid_json(fathom::message_to_json(parser.message()))) std::abort();
  return 0;
}
