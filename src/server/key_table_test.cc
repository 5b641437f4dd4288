#include "server/key_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(KeyFile, LabelsSecretsAndLimits) {
  const auto keys = parse_key_file("# comment\n\na s1\nb s2 max_concurrent=3 max_per_minute=0 # more\n");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  ASSERT_EQ(keys->size(), 2u);
  EXPECT_EQ((*keys)[0].label, "a");
  EXPECT_EQ((*keys)[0].max_concurrent, 0);
  EXPECT_EQ((*keys)[1].secret, "s2");
  EXPECT_EQ((*keys)[1].max_concurrent, 3);
  const auto odd = parse_key_file("a s#1#\t# s2\n#b\nc #d e\r\n");
  EXPECT_FALSE(odd.ok());  // c has no secret
  const auto whole = parse_key_file("a s#1#\t# s2\r\n#b s3\r\nb#1 s3 #x\r\n");
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  ASSERT_EQ(whole->size(), 2u);
  EXPECT_EQ((*whole)[0].secret, "s#1#");
  EXPECT_EQ((*whole)[1].label, "b#1");
}

// A limit that cannot be read is no limit that may be left out.
TEST(KeyFile, WhatIsWrongIsNamedWithItsLine) {
  for (const char* line :
       {"a", "a s max_concurrent", "a s max_concurrent=", "a s max_concurrent=x", "a s max_concurrent=1x",
        "a s max_concurrent=-1", "a s max_concurrent=99999999999", "a s max=1", "a s\na t", "a s\nb s"}) {
    const auto keys = parse_key_file(line);
    ASSERT_FALSE(keys.ok()) << line;
    EXPECT_THAT(keys.status().message(), testing::HasSubstr("key file, line ")) << line;
  }
}

TEST(KeyFile, KeysAreToldApart) {
  EXPECT_TRUE(check_keys({}).ok());
  EXPECT_TRUE(check_keys({{"a", "s", 0, 0}, {"b", "t", 0, 0}}).ok());
  EXPECT_FALSE(check_keys({{"a", "s", 0, 0}, {"a", "t", 0, 0}}).ok());
  const Status same = check_keys({{"a", "secret", 0, 0}, {"b", "t", 0, 0}, {"c", "secret", 0, 0}});
  ASSERT_FALSE(same.ok());
  EXPECT_THAT(same.message(), testing::HasSubstr("'a' and 'c'"));
  EXPECT_THAT(same.message(), testing::Not(testing::HasSubstr("secret'")));  // it is not shown
}

}  // namespace
}  // namespace fathom
