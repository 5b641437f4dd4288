// What the tests of this room read: committed files, the mini tokenizer, and ../shared where it is present.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/mapped_file.h"
#include "text/tokenizer.h"

namespace fathom {

inline std::string test_data(const std::string& name) {
  return std::string(FATHOM_SOURCE_DIR) + "/tests/data/text/" + name;
}

inline std::string shared_path(const std::string& name) {
  const char* folder = std::getenv("FATHOM_SHARED");
  return (folder != nullptr ? std::string(folder) : std::string(FATHOM_SOURCE_DIR) + "/../shared") + "/" + name;
}

// Sanitizers make everything some 10 times slower: tests of speed then take a shorter text, at the same limit.
inline std::size_t megabyte() { return std::getenv("FATHOM_SLOW_BUILD") != nullptr ? 1 << 16 : 1 << 20; }

inline const Tokenizer& mini_tokenizer() {
  static const Tokenizer tokenizer = open_tokenizer(std::string(FATHOM_SOURCE_DIR) + "/models/mini-v4").value();
  return tokenizer;
}

// The tokenizer of the published checkpoints, or null where ../shared is absent.
inline const Tokenizer* real_tokenizer() {
  static const auto tokenizer = open_tokenizer(shared_path("data/tokenizer/tokenizer.json"));
  return tokenizer.ok() ? &*tokenizer : nullptr;
}

// Declares `name`, or skips the test. A file that is there but does not load is a failure, not a skip.
#define FATHOM_REAL_TOKENIZER(name)                                                  \
  if (!std::filesystem::exists(shared_path("data/tokenizer/tokenizer.json"))) {      \
    GTEST_SKIP() << "../shared is absent: the tests on the real vocabulary need it"; \
  }                                                                                  \
  const Tokenizer* name = real_tokenizer();                                          \
  ASSERT_NE(name, nullptr)

}  // namespace fathom
