#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <random>

#include "base/mapped_file.h"
#include "base/thread_time.h"
#include "text/chat_encoding.h"
#include "text/json_value.h"
#include "text/text_test_data.h"

namespace fathom {
namespace {

using Kind = OutputEvent::Kind;

// Puts the events together without the parser's own help, and checks their order.
struct Collected {
  AssistantMessage message;
  void take(const std::vector<OutputEvent>& events) {
    for (const OutputEvent& event : events) {
      const int last = static_cast<int>(message.tool_calls.size()) - 1;
      switch (event.kind) {
        case Kind::kReasoning:
          EXPECT_TRUE(message.content.empty());
          message.reasoning_content += event.text;
          break;
        case Kind::kContent: message.content += event.text; break;
        case Kind::kToolCallStart:
          EXPECT_EQ(event.index, last + 1);
          message.tool_calls.push_back({"", event.text, "", false});
          continue;
        case Kind::kToolArguments:
          ASSERT_EQ(event.index, last);
          message.tool_calls.back().arguments += event.text;
          break;
        case Kind::kToolCallEnd:
          ASSERT_EQ(event.index, last);
          message.tool_calls.back().complete = event.complete;
          continue;
      }
      EXPECT_FALSE(event.text.empty());
      EXPECT_TRUE(is_valid_utf8(event.text));
    }
  }
};

AssistantMessage parse_in_parts(const std::vector<std::string>& parts, bool thinking, bool eos) {
  OutputParser parser(thinking);
  Collected collected;
  for (const std::string& part : parts) {
    std::vector<OutputEvent> events;
    parser.push(part, events);
    collected.take(events);
  }
  std::vector<OutputEvent> events;
  parser.finish(eos, events);
  collected.take(events);
  EXPECT_EQ(collected.message, parser.message());
  return collected.message;
}

// Every cut into two, single bytes, and random cuts: always the message of the uncut text.
AssistantMessage parse_every_way(const std::string& text, bool thinking, bool eos) {
  const AssistantMessage whole = parse_output(text, thinking, eos);
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const auto parts = std::vector<std::string>{text.substr(0, cut), text.substr(cut)};
    EXPECT_EQ(parse_in_parts(parts, thinking, eos), whole) << "cut at " << cut << " of " << text;
  }
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  EXPECT_EQ(parse_in_parts(bytes, thinking, eos), whole) << text;
  return whole;
}

std::vector<std::string> token_parts(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::string> parts;
  for (const TokenId id : tokenizer.encode(text, SpecialTokens::kRecognise)) {
    parts.emplace_back(tokenizer.token_bytes(id));
  }
  return parts;
}

AssistantMessage plain(std::string reasoning, std::string content) {
  return {std::move(reasoning), std::move(content), {}};
}

const std::string kEos(kEosText);
const std::string kOpen = "\n\n<｜DSML｜tool_calls>\n";
const std::string kClose = "</｜DSML｜tool_calls>";

std::string parameter(const std::string& name, bool is_string, const std::string& value) {
  return "<｜DSML｜parameter name=\"" + name + "\" string=\"" + (is_string ? "true" : "false") + "\">" + value +
         "</｜DSML｜parameter>\n";
}
std::string invoke(const std::string& name, const std::string& parameters) {
  return "<｜DSML｜invoke name=\"" + name + "\">\n" + (parameters.empty() ? "\n" : parameters) + "</｜DSML｜invoke>\n";
}

TEST(OutputParser, SpecExample) {
  const AssistantMessage message =
      parse_every_way("r</think>" + kOpen + invoke("f", parameter("n", false, "5")) + kClose + kEos, true, true);
  EXPECT_EQ(message.reasoning_content, "r");
  EXPECT_EQ(message.content, "");
  ASSERT_EQ(message.tool_calls.size(), 1u);
  EXPECT_EQ(message.tool_calls[0], (ToolCall{"", "f", "{\"n\": 5}", true}));
}

TEST(OutputParser, TextWithoutMarkup) {
  EXPECT_EQ(parse_every_way("391", false, true), plain("", "391"));
  EXPECT_EQ(parse_every_way("think</think>\n\nParis" + kEos, true, true), plain("think", "\n\nParis"));
  EXPECT_EQ(parse_every_way("a\n\n\nb\n\n", false, true), plain("", "a\n\n\nb\n\n"));
  EXPECT_EQ(parse_every_way("né 你好 😀 <｜User｜> ｜", false, true), plain("", "né 你好 😀 <｜User｜> ｜"));
  EXPECT_EQ(parse_every_way("", true, false), plain("", ""));
}

TEST(OutputParser, LastCharactersAreDelivered) {  // case 52
  for (const char* tail : {"2 <", "<", "\n", "\n\n<", "\n\n", "</", "<｜", "</thin", "a\n\n<｜"}) {
    const std::string text = std::string("1 < ") + tail;
    EXPECT_EQ(parse_every_way(text, false, true), plain("", text));
    EXPECT_EQ(parse_every_way(text, false, false), plain("", text));
    EXPECT_EQ(parse_every_way(text + kEos, false, false), plain("", text));
    EXPECT_EQ(parse_every_way("r</think>" + text, true, true), plain("r", text));
  }
}

TEST(OutputParser, HoldsBackOnlyWhatMayBecomeAMarker) {
  OutputParser parser(false);
  std::vector<OutputEvent> events;
  parser.push("a <b> c\nd", events);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, "a <b> c\nd");
  events.clear();
  parser.push("\n\n<", events);
  EXPECT_TRUE(events.empty());
  parser.push("b>", events);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, "\n\n<b>");
}

TEST(OutputParser, WithoutThinkCloseAllIsReasoning) {  // cases 61, 62
  EXPECT_EQ(parse_every_way("thinking on and on", true, false), plain("thinking on and on", ""));
  EXPECT_EQ(parse_every_way("thinking" + kEos, true, true), plain("thinking", ""));
}

TEST(OutputParser, EosIsInNoField) {
  EXPECT_EQ(parse_every_way("a" + kEos + "b</think>c", true, true), plain("a", ""));
  EXPECT_EQ(parse_every_way("a" + kEos + "b", false, true), plain("", "a"));
}

TEST(OutputParser, ThinkTagsAtTheStart) {
  EXPECT_EQ(parse_every_way("<think>r</think>c", true, true), plain("r", "c"));
  EXPECT_EQ(parse_every_way("<think>r</think>c", false, true), plain("r", "c"));
  EXPECT_EQ(parse_every_way("</think>c", false, true), plain("", "c"));
  EXPECT_EQ(parse_every_way("r</think></think>c", true, true), plain("r", "c"));
  EXPECT_EQ(parse_every_way("the tag </think> ends it", false, true), plain("", "the tag </think> ends it"));
}

TEST(OutputParser, StringValuesComeBackExactly) {  // case 51
  for (const std::string value :
       {"", "2>&1", "<", "</", "a</", "\"quoted\" \\ \t", "line\nline\n", "｜", "<｜", "</｜", "</｜DSML｜",
        "\n</｜DSML｜x", "</｜DSML｜invoke> inside a line", "😀 é", "\x01\x7f", "{\"json\": 1}"}) {
    const std::string text = "ok" + kOpen + invoke("f", parameter("a", true, value)) + kClose;
    const AssistantMessage message = parse_every_way(text, false, true);
    ASSERT_EQ(message.tool_calls.size(), 1u) << value;
    const auto arguments = parse_json(message.tool_calls[0].arguments);
    ASSERT_TRUE(arguments.ok()) << message.tool_calls[0].arguments;
    EXPECT_EQ(arguments->find("a")->text, value);
    EXPECT_EQ(message.content, "ok");
  }
}

TEST(OutputParser, StringsStreamBeforeTheyEnd) {
  OutputParser parser(false);
  std::vector<OutputEvent> events;
  parser.push("<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">hel",
              events);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].text, "f");
  EXPECT_EQ(events[1].text, "{\"a\": \"hel");
}

TEST(OutputParser, CutCallIsIncomplete) {  // case 54
  const std::string text = "x" + kOpen + invoke("f", parameter("a", true, "hello") + parameter("n", false, "[1, 2]"));
  const std::size_t end_of_call = text.find("</｜DSML｜invoke>") + std::string_view("</｜DSML｜invoke>").size();
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const AssistantMessage message = parse_output(text.substr(0, cut), false, false);
    EXPECT_EQ(message.content.find(kDsmlText), std::string::npos) << message.content;
    for (const ToolCall& call : message.tool_calls) {
      EXPECT_EQ(call.complete, cut >= end_of_call) << cut;
      EXPECT_TRUE(!call.complete || is_valid_json(call.arguments));
    }
    // The model's own end, wherever it stands, never leaves invalid JSON in a complete call.
    for (const ToolCall& call : parse_output(text.substr(0, cut) + kEos, false, true).tool_calls) {
      EXPECT_TRUE(call.complete);
      EXPECT_TRUE(is_valid_json(call.arguments)) << cut << ": " << call.arguments;
    }
  }
}

TEST(OutputParser, CallsAreTextWhereNoneIsLookedFor) {
  const std::string call = kOpen + invoke("f", parameter("n", false, "5")) + kClose;
  const std::string text = "r" + call + "</think>a <" + call + kEos + "never";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    OutputParser parser(true, CallMarkup::kText);
    Collected collected;
    for (const std::string& part : {text.substr(0, cut), text.substr(cut)}) {
      std::vector<OutputEvent> events;
      parser.push(part, events);
      collected.take(events);
    }
    EXPECT_EQ(collected.message, plain("r" + call, "a <" + call)) << "cut at " << cut;
    EXPECT_EQ(parser.message(), collected.message);
    EXPECT_TRUE(parser.saw_eos());
  }
  // Cut off, it is there as far as it came.
  for (std::size_t end = 0; end <= call.size(); ++end) {
    OutputParser parser(false, CallMarkup::kText);
    std::vector<OutputEvent> events;
    std::size_t whole = end;
    while (whole > 0 && whole < call.size() && (static_cast<unsigned char>(call[whole]) & 0xc0) == 0x80) --whole;
    parser.push(call.substr(0, whole), events);
    parser.finish(false, events);
    EXPECT_EQ(parser.message(), plain("", call.substr(0, whole)));
  }
}

TEST(OutputParser, LenientOnMalformedCalls) {
  const auto one_call = [](const std::string& text, const std::string& arguments, const std::string& content = "") {
    const AssistantMessage message = parse_every_way(text, false, true);
    ASSERT_EQ(message.tool_calls.size(), 1u) << text;
    EXPECT_EQ(message.tool_calls[0], (ToolCall{"", "f", arguments, true})) << text;
    EXPECT_EQ(message.content, content) << text;
  };
  const std::string a = parameter("a", true, "x");
  const std::string inner = "<｜DSML｜invoke name=\"f\">" + a + "</｜DSML｜invoke>";
  one_call("<｜DSML｜tool_calls>" + inner + kClose, "{\"a\": \"x\"}");               // no newlines
  one_call("hi\n" + inner, "{\"a\": \"x\"}", "hi");                                  // no block
  one_call(kOpen + inner, "{\"a\": \"x\"}");                                         // block not closed
  one_call(kOpen + "<｜DSML｜invoke name=\"f\">\n" + a + kClose, "{\"a\": \"x\"}");  // invoke not closed
  one_call(kOpen + invoke("f", "<｜DSML｜parameter name=\"a\" string=\"true\">x\n") + kClose, "{\"a\": \"x\"}");
  one_call(kOpen + "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">x" + kEos,
           "{\"a\": \"x\"}");
  one_call(kOpen + invoke("f", a + a + parameter("a", false, "7")) + kClose, "{\"a\": \"x\"}");  // repeated name
  one_call(kOpen + invoke("f", parameter("a", false, "Beijing")) + kClose, "{\"a\": \"Beijing\"}");
  one_call(kOpen + invoke("f", parameter("a", false, "")) + kClose, "{\"a\": \"\"}");
  one_call(kOpen + invoke("f", "<｜DSML｜parameter name=\"a\">5</｜DSML｜parameter>") + kClose, "{\"a\": 5}");
  one_call(kOpen + invoke("f", "noise " + a + " noise") + kClose, "{\"a\": \"x\"}");
  one_call("before" + kOpen + inner + kClose + "\n\nafter", "{\"a\": \"x\"}", "before\n\nafter");
  one_call(kOpen + inner + "between\n" + kClose, "{\"a\": \"x\"}", "between");
  one_call(kOpen + invoke("f", "") + kClose, "{}");

  const AssistantMessage message = parse_every_way("no end of thought" + kOpen + inner + kClose + kEos, true, true);
  EXPECT_EQ(message.reasoning_content, "no end of thought");
  EXPECT_EQ(message.tool_calls.size(), 1u);
}

TEST(OutputParser, IllFormedBytesBecomeReplacements) {
  EXPECT_EQ(parse_every_way("a\xFF\xE4\xBDz", false, true), plain("", "a\uFFFD\uFFFDz"));
  EXPECT_EQ(parse_every_way("a\xF0\x9F\x98", false, true), plain("", "a\uFFFD"));
}

// The assistant turns of the vendor's example prompts parse back into what they were written from.
TEST(OutputParser, VendorExamplesBothWays) {
  for (const char* number : {"1", "2"}) {
    const std::string json = read_text_file(test_data("encoding/test_input_" + std::string(number) + ".json")).value();
    const std::string prompt =
        read_text_file(test_data("encoding/test_output_" + std::string(number) + ".txt")).value();
    const ChatConversation chat = parse_chat(json).value();
    std::size_t at = 0;
    std::size_t num_answers = 0;
    for (const ChatMessage& message : chat.messages) {
      if (message.role != Role::kAssistant) continue;
      at = prompt.find(kAssistantText, at) + kAssistantText.size();
      const bool thinking = prompt.compare(at, kThinkOpenText.size(), kThinkOpenText) == 0;
      at += thinking ? kThinkOpenText.size() : kThinkCloseText.size();
      const std::string answer = prompt.substr(at, prompt.find(kEosText, at) + kEosText.size() - at);
      const AssistantMessage parsed = parse_every_way(answer, thinking, true);
      EXPECT_EQ(parsed.reasoning_content, thinking ? message.reasoning_content : "");
      EXPECT_EQ(parsed.content, message.content);
      ASSERT_EQ(parsed.tool_calls.size(), message.tool_calls.size());
      for (std::size_t i = 0; i < parsed.tool_calls.size(); ++i) {
        EXPECT_EQ(parsed.tool_calls[i].name, message.tool_calls[i].name);
        EXPECT_EQ(parsed.tool_calls[i].arguments, message.tool_calls[i].arguments);
      }
      EXPECT_EQ(parse_in_parts(token_parts(mini_tokenizer(), answer), thinking, true), parsed);
      ++num_answers;
    }
    EXPECT_EQ(num_answers, 2u);
  }
}

// Random messages: encoded by the encoder, parsed by the parser, at byte and token cuts.
TEST(OutputParser, RandomMessagesComeBack) {
  std::mt19937 random(5);
  const std::vector<std::string> words = {"a",    " b",         "\n",    "<",       "</",  "\"",     "\\",
                                          "é",    "你",         "😀",    "｜",      "<｜", "2>&1",   "{\"x\"}",
                                          "\n\n", "tool_calls", "thin>", "</｜",    "\t",  "invoke", "\x01",
                                          "1.5",  "null",       "}",     "string=", "> ",  "\r\n"};
  const auto text = [&](std::size_t most) {
    std::string out;
    for (std::size_t n = random() % (most + 1); n > 0; --n) out += words[random() % words.size()];
    return out;
  };
  const std::vector<std::string> values = {"1", "-2.5", "true", "null", "[1, \"é\"]", "{\"k\": {}}", "100000.0"};
  for (int round = 0; round < 400; ++round) {
    ChatConversation chat;
    chat.messages.resize(2);
    chat.messages[0].content = "q";
    ChatMessage& answer = chat.messages[1];
    answer.role = Role::kAssistant;
    answer.reasoning_content = text(6);
    answer.content = text(6);
    for (std::size_t c = random() % 3; c > 0; --c) {
      std::string arguments = "{";
      for (std::size_t p = random() % 4; p > 0; --p) {
        if (arguments.size() > 1) arguments += ", ";
        append_json_quoted("k" + std::to_string(p) + words[random() % 3], arguments);
        arguments += ": ";
        if (random() % 2 == 0) {
          append_json_quoted(text(5), arguments);
        } else {
          arguments += values[random() % values.size()];
        }
      }
      answer.tool_calls.push_back({"", "f" + std::to_string(c), arguments + "}", true});
    }
    for (const bool thinking : {false, true}) {
      ChatEncodingOptions options;
      options.thinking = thinking;
      const std::string prompt = encode_chat(chat, options).value().text;
      const std::string opening = "q<｜Assistant｜>" + std::string(thinking ? kThinkOpenText : kThinkCloseText);
      const std::string completion = prompt.substr(prompt.find(opening) + opening.size());
      const AssistantMessage expected{thinking ? answer.reasoning_content : "", answer.content, answer.tool_calls};
      ASSERT_EQ(parse_output(completion, thinking, true), expected) << completion;
      ASSERT_EQ(parse_every_way(completion, thinking, true), expected);
      ASSERT_EQ(parse_in_parts(token_parts(mini_tokenizer(), completion), thinking, true), expected);
    }
  }
}

// Answers of the embedded model, as stored with its golden values.
TEST(OutputParser, StoredCompletions) {
  const std::string json = read_text_file(test_data("completions.json")).value();
  const JsonValue root = parse_json(json).value();
  EXPECT_GE(root.items.size(), 5u);
  for (const JsonValue& item : root.items) {
    const std::string& text = item.find("text")->text;
    const bool thinking = item.find("thinking")->is(JsonValue::Kind::kTrue);
    const AssistantMessage whole = parse_every_way(text, thinking, false);
    EXPECT_EQ(parse_in_parts(token_parts(mini_tokenizer(), text), thinking, false), whole);
    // What was not markup is there, once.
    std::string expected = text.substr(0, text.find(kEosText));
    const std::size_t close = thinking ? expected.find(kThinkCloseText) : std::string::npos;
    if (close != std::string::npos) expected.erase(close, kThinkCloseText.size());
    EXPECT_EQ(whole.reasoning_content + whole.content, expected);
  }
}

TEST(OutputParser, KnowsWhetherItReasons) {
  OutputParser parser(true);
  std::vector<OutputEvent> events;
  EXPECT_TRUE(parser.in_reasoning());
  parser.push("thought</thi", events);
  EXPECT_TRUE(parser.in_reasoning());
  parser.push("nk>", events);
  EXPECT_FALSE(parser.in_reasoning());
  EXPECT_FALSE(parser.saw_eos());
  parser.push("x" + kEos, events);
  EXPECT_TRUE(parser.saw_eos());
  EXPECT_FALSE(OutputParser(false).in_reasoning());
}

TEST(OutputParser, LinearInTheAnswer) {
  std::string text = kOpen;
  while (text.size() < megabyte()) text += invoke("f", parameter("a" + std::to_string(text.size()), true, "x\n\n<"));
  std::string one_call = kOpen + "<｜DSML｜invoke name=\"f\">\n";
  while (one_call.size() < megabyte()) one_call += parameter("a" + std::to_string(one_call.size()), false, "1");
  const std::string open_head = kOpen + "<｜DSML｜invoke name=\"" + std::string(megabyte(), 'n');
  for (const std::string& answer :
       {text, one_call, open_head, std::string(megabyte(), '<'), std::string(megabyte(), '\n')}) {
    const double begin_us = thread_time_us();
    const AssistantMessage whole = parse_output(answer, false, true);
    OutputParser parser(false);
    std::vector<OutputEvent> events;
    for (const char c : answer) {
      events.clear();
      parser.push({&c, 1}, events);
    }
    parser.finish(true, events);
    EXPECT_EQ(parser.message(), whole);
    const double seconds = 1e-6 * (thread_time_us() - begin_us);
    EXPECT_LT(seconds, 5.0) << answer.substr(0, 80);
  }
}

TEST(OutputParser, JsonOfAMessage) {
  AssistantMessage message{"r", "c\n", {{"", "f", "{\"n\": 5}", true}, {"", "g", "{\"x", false}}};
  EXPECT_EQ(message_to_json(message),
            "{\"role\": \"assistant\", \"reasoning_content\": \"r\", \"content\": \"c\\n\", \"tool_calls\": "
            "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"n\\\": 5}\"}}], "
            "\"incomplete_tool_call\": {\"type\": \"function\", \"function\": {\"name\": \"g\", \"arguments\": "
            "\"{\\\"x\"}}}");
}

}  // namespace
}  // namespace fathom
