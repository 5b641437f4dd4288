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
}

// A limit that cannot be read is no limit that may be left out.
TEST(KeyFile, WhatIsWrongIsNamedWithItsLine) {
  for (const char* line :
       {"a", "a s max_concurrent", "a s max_concurrent=", "a s max_concurrent=x", "a s max_concurrent=1x",
        "a s max_concurrent=-1", "a s max_concurrent=99999999999", "a s max=1", "a s\na t"}) {
    const auto keys = parse_key_file(line);
    ASSERT_FALSE(keys.ok()) << line;
    EXPECT_THAT(keys.status().message(), testing::HasSubstr("key file, line ")) << line;
  }
}

}  // namespace
}  // namespace fathom
