#include "grammar/json_in_calls.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(JsonInCalls, KnowsJsonAndItsStrings) {
  // What stands under each byte: '.' no JSON, 'j' JSON, 's' a string of it.
  const std::string text = R"(x string="true">"a" </x string="false">["a\"</",5]</x>"b" string="false">{"k":"\\"}</)";
  const std::string want = R"(......................................jjssssssjjjjj.....................jjssjjsssjjj.)";
  // One byte a token, and all in tokens of seven.
  for (const std::size_t size : {std::size_t{1}, std::size_t{7}}) {
    JsonInCalls places;
    for (std::size_t at = 0; at < text.size(); at += size) {
      places.push(std::string_view(text).substr(at, size));
      const char place = places.in_string() ? 's' : places.in_json() ? 'j' : '.';
      const std::size_t last = std::min(at + size, text.size()) - 1;
      EXPECT_EQ(place, want[last]) << text.substr(0, last + 1);
    }
  }
}

TEST(JsonInCalls, TokensAreTakenBack) {
  JsonInCalls places;
  places.push("<p string=\"fal");
  places.push("se\">[\"");
  EXPECT_TRUE(places.in_string());
  places.push("a\"]</");
  EXPECT_FALSE(places.in_json());
  places.pop(1);
  EXPECT_TRUE(places.in_string());
  places.pop(2);
  EXPECT_FALSE(places.in_json());
  places.push("<p string=\"true\">\"");
  EXPECT_FALSE(places.in_json());
}

}  // namespace
}  // namespace fathom
