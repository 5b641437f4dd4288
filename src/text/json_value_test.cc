#include "text/json_value.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

std::string round_trip(std::string_view json) {
  const auto value = parse_json(json);
  return value.ok() ? dump_python_json(*value) : value.status().message();
}

// Expected texts: json.dumps(json.loads(text), ensure_ascii=False) of CPython 3.11.
TEST(JsonValue, NumbersAsPythonPrintsThem) {
  const std::pair<const char*, const char*> cases[] = {
      {"1.0", "1.0"},
      {"1e5", "100000.0"},
      {"1E+2", "100.0"},
      {"0.1", "0.1"},
      {"1e16", "1e+16"},
      {"1e15", "1000000000000000.0"},
      {"123456789012345680.0", "1.2345678901234568e+17"},
      {"1e-5", "1e-05"},
      {"0.0001", "0.0001"},
      {"0.00012345", "0.00012345"},
      {"1.5e300", "1.5e+300"},
      {"5e-324", "5e-324"},
      {"-0.0", "-0.0"},
      {"-0", "0"},
      {"0", "0"},
      {"-12", "-12"},
      {"3.14159265358979311600", "3.141592653589793"},
      {"18446744073709551615", "18446744073709551615"},
      {"-9223372036854775808", "-9223372036854775808"},
      {"-9223372036854775809", "-9223372036854775809"},
      {"123456789012345678901234567890", "123456789012345678901234567890"},
      {"9007199254740993.0", "9007199254740992.0"},
  };
  for (const auto& [json, expected] : cases) EXPECT_EQ(round_trip(json), expected) << json;
}

TEST(JsonValue, OrderSeparatorsAndEscapes) {
  EXPECT_EQ(round_trip("{\"b\":1,\"a\":[true,false,null,{}],\"c\":[]}"),
            "{\"b\": 1, \"a\": [true, false, null, {}], \"c\": []}");
  EXPECT_EQ(round_trip("\"\\u00e9\\u0001\\u007f\\/\\\"\\\\\\n\\r\\t\\b\\f\\ud83d\\ude00\""),
            "\"é\\u0001\x7f/\\\"\\\\\\n\\r\\t\\b\\f😀\"");
  EXPECT_EQ(round_trip("{\"a\":1,\"b\":2,\"a\":3}"), "{\"a\": 3, \"b\": 2}");
  EXPECT_EQ(round_trip("{\"a\":1,\"a\":2,\"b\":3,\"a\":4,\"c\":5}"), "{\"a\": 4, \"b\": 3, \"c\": 5}");
}

TEST(JsonValue, RefusesWhatIsNoJson) {
  for (const char* json : {"", "{", "[1,]", "{\"a\" 1}", "\"\\ud83d\"", "\"\\ud83d\\u0041\"", "\"\n\"", "01", "1 2",
                           "nul", "\"\xC0\x80\"", "NaN", "1e999"}) {
    EXPECT_FALSE(parse_json(json).ok()) << json;
    EXPECT_FALSE(is_valid_json(json)) << json;
  }
  EXPECT_FALSE(parse_json(std::string(100000, '[')).ok());
  EXPECT_TRUE(parse_json(std::string(256, '[') + std::string(256, ']')).ok());
  EXPECT_FALSE(parse_json(std::string(257, '[') + std::string(257, ']')).ok());
}

// Found by fuzzing: a zero byte is not the end of the text.
TEST(JsonValue, RefusesAZeroByte) {
  using std::string_view_literals::operator""sv;
  EXPECT_FALSE(is_valid_json("5\0\0"sv));
  const auto parsed = parse_json("{\"a\": 1}\0x"sv);
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.status().message().find("zero byte at offset 8"), std::string::npos) << parsed.status().message();
}

TEST(JsonValue, Accessors) {
  const JsonValue value = parse_json("{\"i\": 5, \"f\": 5.0, \"big\": 99999999999999999999}").value();
  EXPECT_EQ(value.find("i")->as_integer(), 5);
  EXPECT_FALSE(value.find("f")->as_integer());
  EXPECT_EQ(value.find("f")->as_double(), 5.0);
  EXPECT_FALSE(value.find("big")->as_integer());
  EXPECT_EQ(value.find("none"), nullptr);
}

}  // namespace
}  // namespace fathom
