#include "server/thinking_signature.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(ThinkingSignature, CarriesAnyText) {
  for (const std::string text : {"", "a", "ab", "abc", "abcd", "Grüße, 世界 \U0001F468\n\"\\\x01", "?>?>?>~~~"}) {
    EXPECT_EQ(thinking_of_signature(thinking_signature(text)), text);
  }
  EXPECT_EQ(thinking_signature("Man"), "fathom1.TWFu");
  EXPECT_EQ(thinking_signature("M"), "fathom1.TQ==");
}

TEST(ThinkingSignature, OthersAreNone) {
  for (const char* signature : {"", "EqQBCkYIBRgC", "fathom2.TWFu", "fathom1.T!Fu", "fathom1./w=="}) {
    EXPECT_EQ(thinking_of_signature(signature), std::nullopt) << signature;
  }
}

}  // namespace
}  // namespace fathom
