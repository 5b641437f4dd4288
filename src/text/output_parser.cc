#include "text/output_parser.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <unordered_set>

#include "text/chat_encoding.h"
#include "text/json_value.h"
#include "text/utf8.h"

namespace fathom {
namespace {

// What can stand in an answer besides text. The number of newlines in front that belong to a tag varies.
enum class Tag {
  kNone,
  kEos,
  kThinkOpen,
  kThinkClose,
  kBlockOpen,
  kBlockClose,
  kInvokeOpen,
  kInvokeClose,
  kParameterOpen,
  kParameterClose,
};

struct Marker {
  std::string_view text;
  Tag tag;
  std::size_t newlines = 0;  // of `text`, in front of the tag proper
};

constexpr Marker kEos{kEosText, Tag::kEos};
constexpr Marker kThinkOpen{kThinkOpenText, Tag::kThinkOpen};
constexpr Marker kThinkClose{kThinkCloseText, Tag::kThinkClose};
constexpr Marker kBlockOpen{"<｜DSML｜tool_calls", Tag::kBlockOpen};
constexpr Marker kBlockOpen1{"\n<｜DSML｜tool_calls", Tag::kBlockOpen, 1};
constexpr Marker kBlockOpen2{"\n\n<｜DSML｜tool_calls", Tag::kBlockOpen, 2};
constexpr Marker kBlockClose{"</｜DSML｜tool_calls>", Tag::kBlockClose};
constexpr Marker kBlockClose1{"\n</｜DSML｜tool_calls>", Tag::kBlockClose, 1};
constexpr Marker kInvokeOpen{"<｜DSML｜invoke name=\"", Tag::kInvokeOpen};
constexpr Marker kInvokeOpen1{"\n<｜DSML｜invoke name=\"", Tag::kInvokeOpen, 1};
constexpr Marker kInvokeOpen2{"\n\n<｜DSML｜invoke name=\"", Tag::kInvokeOpen, 2};
constexpr Marker kInvokeClose{"</｜DSML｜invoke>", Tag::kInvokeClose};
constexpr Marker kInvokeClose1{"\n</｜DSML｜invoke>", Tag::kInvokeClose, 1};
constexpr Marker kParameterOpen{"<｜DSML｜parameter name=\"", Tag::kParameterOpen};
constexpr Marker kParameterOpen1{"\n<｜DSML｜parameter name=\"", Tag::kParameterOpen, 1};
constexpr Marker kParameterClose{"</｜DSML｜parameter>", Tag::kParameterClose};

constexpr std::array kAtStart{kThinkOpen};
constexpr std::array kAtChatStart{kThinkOpen, kThinkClose};
constexpr std::array kAtContentStart{kThinkClose};
constexpr std::array kInReasoning{kEos,        kThinkClose, kBlockOpen,   kBlockOpen1,
                                  kBlockOpen2, kInvokeOpen, kInvokeOpen1, kInvokeOpen2};
constexpr std::array kInContent{kEos, kBlockOpen, kBlockOpen1, kBlockOpen2, kInvokeOpen, kInvokeOpen1, kInvokeOpen2};
// Once there was a block its closing tag is no text, wherever it turns up.
constexpr std::array kInLaterContent{kEos,         kBlockOpen,   kBlockOpen1, kBlockOpen2, kInvokeOpen,
                                     kInvokeOpen1, kInvokeOpen2, kBlockClose, kBlockClose1};
// Where no call is looked for.
constexpr std::array kInReasoningAlone{kEos, kThinkClose};
constexpr std::array kInContentAlone{kEos};
constexpr std::array kBetweenCalls{kEos, kBlockOpen, kBlockClose, kInvokeOpen, kInvokeClose, kParameterClose};
constexpr std::array kBetweenParameters{kEos, kBlockClose, kInvokeOpen, kInvokeClose, kParameterOpen};
constexpr std::array kInValue{kEos, kParameterClose, kBlockClose1, kInvokeOpen1, kInvokeClose1, kParameterOpen1};

struct Scan {
  std::size_t text = 0;            // bytes in front that are text for certain
  const Marker* marker = nullptr;  // what follows them, if it is whole
};

// The first marker in `pending`, or as much text as no marker can begin in.
Scan scan(std::string_view pending, std::span<const Marker> markers) {
  for (std::size_t at = 0; (at = pending.find_first_of("<\n", at)) != std::string_view::npos; ++at) {
    const std::string_view rest = pending.substr(at);
    bool may_become_one = false;
    for (const Marker& marker : markers) {
      if (rest.starts_with(marker.text)) return {at, &marker};
      may_become_one = may_become_one || marker.text.starts_with(rest);
    }
    if (may_become_one) return {at, nullptr};
  }
  return {pending.size(), nullptr};
}

// The marker at the very start, if it is there (found) or may yet come (undecided).
struct Start {
  const Marker* marker = nullptr;
  bool undecided = false;
};

Start match_start(std::string_view pending, std::span<const Marker> markers) {
  Start start;
  for (const Marker& marker : markers) {
    if (pending.starts_with(marker.text)) return {&marker, false};
    start.undecided = start.undecided || marker.text.starts_with(pending);
  }
  return start;
}

}  // namespace

struct OutputParser::State {
  enum class Place {
    kStart,  // nothing read
    kReasoning,
    kContentStart,  // right behind the reasoning
    kContent,
    kBlockOpen,  // behind "<§tool_calls": its ">"
    kBlock,      // between calls
    kInvokeName,
    kInvoke,  // between parameters
    kParameterHead,
    kValue,
    kDone,
  };

  State(bool is_thinking, CallMarkup markup) : thinking(is_thinking), reads_calls(markup == CallMarkup::kCalls) {}

  bool thinking;
  bool reads_calls;
  Place place = Place::kStart;
  Utf8Stream utf8;
  std::string buffer;  // from `begin` on: read, not yet decided
  std::size_t begin = 0;
  std::size_t searched = 0;  // bytes of pending() in which the end of a name or head is not
  std::vector<OutputEvent>* events = nullptr;
  AssistantMessage message;
  bool seen_block = false;
  bool saw_eos = false;
  // The call being read.
  std::unordered_set<std::string> names;  // of its parameters so far
  std::string name;                       // of the last one
  bool in_call = false;
  bool value_is_string = false;
  bool value_counts = false;  // false for a repeated name
  std::string raw_value;

  void push(std::string_view bytes) {
    if (place == Place::kDone) return;
    utf8.push(bytes, buffer);
    run();
    buffer.erase(0, place == Place::kDone ? std::string::npos : begin);
    begin = 0;
  }

  void finish(bool stopped_by_eos) {
    if (place == Place::kDone) return;
    utf8.flush(buffer);
    run();
    if (place == Place::kDone) return;
    flush_held(stopped_by_eos);
    end_message(stopped_by_eos);
  }

 private:
  void run() {
    while (place != Place::kDone && step()) {
    }
  }

  std::string_view pending() const { return std::string_view(buffer).substr(begin); }

  void emit(OutputEvent::Kind kind, std::string_view text) {
    if (text.empty()) return;
    const int index = static_cast<int>(message.tool_calls.size()) - 1;
    switch (kind) {
      case OutputEvent::Kind::kReasoning: message.reasoning_content += text; break;
      case OutputEvent::Kind::kContent: message.content += text; break;
      default: message.tool_calls.back().arguments += text; break;
    }
    const bool is_call = kind == OutputEvent::Kind::kToolArguments;
    if (!events->empty() && events->back().kind == kind) {
      events->back().text += text;
    } else {
      events->push_back({kind, std::string(text), is_call ? index : 0, true});
    }
  }

  void consume(std::size_t bytes) {
    begin += bytes;
    searched = 0;
  }

  std::span<const Marker> reasoning_markers() const {
    return reads_calls ? std::span<const Marker>(kInReasoning) : std::span<const Marker>(kInReasoningAlone);
  }
  std::span<const Marker> content_markers() const {
    if (!reads_calls) return kInContentAlone;
    return seen_block ? std::span<const Marker>(kInLaterContent) : std::span<const Marker>(kInContent);
  }

  // Reads one thing; false when `pending()` does not decide what comes next.
  bool step() {
    switch (place) {
      case Place::kStart: return step_start();
      case Place::kReasoning: return step_text(OutputEvent::Kind::kReasoning, reasoning_markers());
      case Place::kContentStart: return step_content_start();
      case Place::kContent: return step_text(OutputEvent::Kind::kContent, content_markers());
      case Place::kBlockOpen:
        if (pending().empty()) return false;
        if (pending()[0] == '>') consume(1);
        place = Place::kBlock;
        return true;
      case Place::kBlock: return step_block();
      case Place::kInvokeName: return step_invoke_name();
      case Place::kInvoke: return step_invoke();
      case Place::kParameterHead: return step_parameter_head();
      case Place::kValue: return step_value();
      case Place::kDone: return false;
    }
    return false;
  }

  bool step_start() {
    if (pending().empty()) return false;
    const Start start =
        match_start(pending(), thinking ? std::span<const Marker>(kAtStart) : std::span<const Marker>(kAtChatStart));
    if (start.undecided) return false;
    place = thinking ? Place::kReasoning : Place::kContent;
    if (start.marker != nullptr) {
      place = start.marker->tag == Tag::kThinkOpen ? Place::kReasoning : Place::kContent;
      consume(start.marker->text.size());
    }
    return true;
  }

  bool step_content_start() {
    if (pending().empty()) return false;
    const Start start = match_start(pending(), kAtContentStart);
    if (start.undecided) return false;
    if (start.marker != nullptr) consume(start.marker->text.size());
    place = Place::kContent;
    return true;
  }

  bool step_text(OutputEvent::Kind kind, std::span<const Marker> markers) {
    const Scan found = scan(pending(), markers);
    emit(kind, pending().substr(0, found.text));
    if (found.marker == nullptr) {
      consume(found.text);
      return false;
    }
    consume(found.text + found.marker->text.size());
    enter(found.marker->tag);
    return true;
  }

  // What a whole tag outside of a value leads to.
  void enter(Tag tag) {
    switch (tag) {
      case Tag::kEos:
        saw_eos = true;
        end_message(true);
        break;
      case Tag::kThinkClose: place = Place::kContentStart; break;
      case Tag::kBlockOpen:
        end_call(true);
        seen_block = true;
        place = Place::kBlockOpen;
        break;
      case Tag::kInvokeOpen:
        end_call(true);
        seen_block = true;
        place = Place::kInvokeName;
        break;
      case Tag::kInvokeClose:
      case Tag::kBlockClose:
        end_call(true);
        place = Place::kBlock;
        break;
      case Tag::kParameterOpen: place = Place::kParameterHead; break;
      case Tag::kParameterClose:
      case Tag::kThinkOpen:
      case Tag::kNone: break;
    }
  }

  bool step_block() {
    consume(std::min(pending().find_first_not_of(" \n\r\t"), pending().size()));
    if (pending().empty()) return false;
    const Start start = match_start(pending(), kBetweenCalls);
    if (start.undecided) return false;
    if (start.marker != nullptr) {
      consume(start.marker->text.size());
      enter(start.marker->tag);
      return true;
    }
    if (!message.content.empty()) emit(OutputEvent::Kind::kContent, "\n\n");
    place = Place::kContent;
    return true;
  }

  // The rest of a tag's head, up to its `">`, once that is there; takes both out of pending(). EOS in a head ends the
  // message.
  std::optional<std::string> take_head() {
    constexpr std::string_view kEnd = "\">";
    const std::size_t end = pending().find(kEnd, searched);
    const std::size_t eos = pending().substr(0, end).find(kEosText, searched);
    if (eos != std::string::npos) {
      enter(Tag::kEos);
      return std::nullopt;
    }
    if (end == std::string::npos) {
      searched = pending().size() - std::min(pending().size(), kEosText.size() - 1);
      return std::nullopt;
    }
    std::string head(pending().substr(0, end));
    consume(end + kEnd.size());
    return head;
  }

  bool step_invoke_name() {
    std::optional<std::string> function_name = take_head();
    if (!function_name) return false;
    ToolCall call;
    call.name = *std::move(function_name);
    call.complete = false;
    events->push_back(
        {OutputEvent::Kind::kToolCallStart, call.name, static_cast<int>(message.tool_calls.size()), true});
    message.tool_calls.push_back(std::move(call));
    in_call = true;
    names.clear();
    place = Place::kInvoke;
    return true;
  }

  bool step_invoke() {
    const Scan found = scan(pending(), kBetweenParameters);
    if (found.marker == nullptr) {
      consume(found.text);
      return false;
    }
    consume(found.text + found.marker->text.size());
    enter(found.marker->tag);
    return true;
  }

  bool step_parameter_head() {
    std::optional<std::string> head = take_head();
    if (!head) return false;
    constexpr std::string_view kString = "\" string=\"true";
    constexpr std::string_view kNoString = "\" string=\"false";
    value_is_string = head->ends_with(kString);
    name = *std::move(head);
    if (value_is_string) {
      name.resize(name.size() - kString.size());
    } else if (name.ends_with(kNoString)) {
      name.resize(name.size() - kNoString.size());
    } else {
      name.resize(std::min(name.find('"'), name.size()));  // no such attribute
    }
    value_counts = names.insert(name).second;
    raw_value.clear();
    if (value_counts && value_is_string) emit(OutputEvent::Kind::kToolArguments, argument_head() + '"');
    place = Place::kValue;
    return true;
  }

  // What stands in front of the value of the parameter read last.
  std::string argument_head() const {
    std::string head = names.size() == 1 ? "{" : ", ";
    append_json_quoted(name, head);
    return head + ": ";
  }

  void take_value(std::string_view text) {
    if (!value_counts || text.empty()) return;
    if (!value_is_string) {
      raw_value += text;
      return;
    }
    std::string escaped;
    append_json_escaped(text, escaped);
    emit(OutputEvent::Kind::kToolArguments, escaped);
  }

  void end_value() {
    place = Place::kInvoke;
    if (!value_counts) return;
    if (value_is_string) {
      emit(OutputEvent::Kind::kToolArguments, "\"");
      return;
    }
    std::string argument = argument_head();
    if (is_valid_json(raw_value)) {
      argument += raw_value;
    } else {
      append_json_quoted(raw_value, argument);
    }
    emit(OutputEvent::Kind::kToolArguments, argument);
  }

  bool step_value() {
    const Scan found = scan(pending(), kInValue);
    take_value(pending().substr(0, found.text));
    if (found.marker == nullptr) {
      consume(found.text);
      return false;
    }
    if (found.marker->tag == Tag::kParameterClose) {
      consume(found.text + found.marker->text.size());
      end_value();
      return true;
    }
    // Unclosed: the tag itself is read again from its place between parameters.
    consume(found.text + found.marker->newlines);
    end_value();
    return true;
  }

  void end_call(bool complete) {
    if (!in_call) return;
    in_call = false;
    if (complete) emit(OutputEvent::Kind::kToolArguments, names.empty() ? "{}" : "}");
    message.tool_calls.back().complete = complete;
    events->push_back({OutputEvent::Kind::kToolCallEnd, "", static_cast<int>(message.tool_calls.size()) - 1, complete});
  }

  void end_message(bool complete) {
    if (place == Place::kValue && complete) end_value();
    end_call(complete);
    place = Place::kDone;
  }

  // Held text at the end of the answer was no marker after all; unless it got as far as ｜DSML｜, then it was one.
  void flush_held(bool stopped_by_eos) {
    if (pending().find(kDsmlText) != std::string::npos) return;
    switch (place) {
      case Place::kStart:
        emit(thinking ? OutputEvent::Kind::kReasoning : OutputEvent::Kind::kContent, pending());
        break;
      case Place::kReasoning: emit(OutputEvent::Kind::kReasoning, pending()); break;
      case Place::kContentStart:
      case Place::kContent: emit(OutputEvent::Kind::kContent, pending()); break;
      case Place::kBlock:
        if (!pending().empty() && !message.content.empty()) emit(OutputEvent::Kind::kContent, "\n\n");
        emit(OutputEvent::Kind::kContent, pending());
        break;
      case Place::kValue:
        if (stopped_by_eos) take_value(pending());
        break;
      default: break;
    }
  }
};

OutputParser::OutputParser(bool thinking, CallMarkup markup) : state_(std::make_unique<State>(thinking, markup)) {}
OutputParser::~OutputParser() = default;
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;

void OutputParser::push(std::string_view bytes, std::vector<OutputEvent>& events) {
  state_->events = &events;
  state_->push(bytes);
}

void OutputParser::finish(bool stopped_by_eos, std::vector<OutputEvent>& events) {
  state_->events = &events;
  state_->finish(stopped_by_eos);
}

bool OutputParser::in_reasoning() const {
  return state_->place == State::Place::kReasoning || (state_->place == State::Place::kStart && state_->thinking);
}

bool OutputParser::saw_eos() const { return state_->saw_eos; }

const AssistantMessage& OutputParser::message() const { return state_->message; }

AssistantMessage parse_output(std::string_view completion, bool thinking, bool stopped_by_eos) {
  OutputParser parser(thinking);
  std::vector<OutputEvent> events;
  parser.push(completion, events);
  parser.finish(stopped_by_eos, events);
  return parser.message();
}

std::string message_to_json(const AssistantMessage& message) {
  const auto append_call = [](const ToolCall& call, std::string& out) {
    out += "{\"type\": \"function\", \"function\": {\"name\": ";
    append_json_quoted(call.name, out);
    out += ", \"arguments\": ";
    append_json_quoted(call.arguments, out);
    out += "}}";
  };
  std::string out = "{\"role\": \"assistant\", \"reasoning_content\": ";
  append_json_quoted(message.reasoning_content, out);
  out += ", \"content\": ";
  append_json_quoted(message.content, out);
  out += ", \"tool_calls\": [";
  const char* separator = "";
  const ToolCall* incomplete = nullptr;
  for (const ToolCall& call : message.tool_calls) {
    if (!call.complete) {
      incomplete = &call;
      continue;
    }
    out += separator;
    append_call(call, out);
    separator = ", ";
  }
  out += "]";
  if (incomplete != nullptr) {
    out += ", \"incomplete_tool_call\": ";
    append_call(*incomplete, out);
  }
  return out + "}";
}

}  // namespace fathom
