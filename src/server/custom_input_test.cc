#include "server/custom_input.h"

#include <gtest/gtest.h>

#include "text/json_value.h"
#include "text/output_parser.h"

namespace fathom {
namespace {

// A call's markup through the parser, cut into pieces of `size` bytes; the input's deltas put together, and how many
// came before the end.
std::pair<std::string, int> read_call(const std::string& parameters, std::size_t size) {
  const std::string markup = "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"patch\">\n" + parameters +
                             "\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  OutputParser parser(false);
  CustomInput input;
  std::string text;
  int num_early = 0;
  std::vector<OutputEvent> events;
  for (std::size_t at = 0; at < markup.size(); at += size) parser.push(markup.substr(at, size), events);
  parser.finish(true, events);
  for (const OutputEvent& event : events) {
    std::string more;
    if (event.kind == OutputEvent::Kind::kToolArguments) more = input.push(event.text);
    num_early += more.empty() ? 0 : 1;
    if (event.kind == OutputEvent::Kind::kToolCallEnd) more = input.finish();
    text += more;
  }
  return {text, num_early};
}

std::string parameter(const std::string& name, const std::string& value, bool is_string = true) {
  return "<｜DSML｜parameter name=\"" + name + "\" string=\"" + (is_string ? "true" : "false") + "\">" + value +
         "</｜DSML｜parameter>";
}

TEST(CustomInput, IsTheTextAsTheModelWroteIt) {
  for (const std::string value :
       {"x", "*** Begin Patch\n+a \"quoted\" \\n \\\\ \t 世界 \U0001F468\x01\n*** End Patch\n", "\\", "\"", "",
        "{\"input\": \"y\"}"}) {
    for (std::size_t size : {1u, 2u, 3u, 7u, 1000u}) {
      const auto [text, num_early] = read_call(parameter("input", value), size);
      EXPECT_EQ(text, value) << size;
      EXPECT_EQ(num_early > 0, !value.empty());
    }
  }
}

TEST(CustomInput, WhereTheModelCallsOtherwise) {
  for (std::size_t size : {1u, 5u, 1000u}) {
    EXPECT_EQ(read_call(parameter("patch", "a\nb"), size).first, "a\nb");
    EXPECT_EQ(read_call(parameter("input", "[1, 2]", false), size).first, "[1, 2]");
    EXPECT_EQ(read_call(parameter("path", "p") + "\n" + parameter("input", "i"), size).first, "i");
    EXPECT_EQ(read_call(parameter("input", "i") + "\n" + parameter("path", "p"), size).first, "i");
    EXPECT_EQ(read_call(parameter("a", "1") + "\n" + parameter("b", "2"), size).first, "{\"a\": \"1\", \"b\": \"2\"}");
    EXPECT_EQ(read_call("", size).first, "");
  }
}

// Deltas may join escapes of several pieces, and a call may be cut off.
TEST(CustomInput, AnyCutBetweenCharacters) {
  std::string escaped;
  const std::string value = "a\n\"\\b\u00e9\x02";
  append_json_quoted(value, escaped);
  const std::string arguments = "{\"input\": " + escaped + "}";
  CustomInput whole;
  EXPECT_EQ(whole.push(arguments), value);
  EXPECT_EQ(whole.finish(), "");
  CustomInput cut;
  EXPECT_EQ(cut.push("{\"input\": \"ab\\n"), "ab\n");
  EXPECT_EQ(cut.push("c"), "c");
}

}  // namespace
}  // namespace fathom
