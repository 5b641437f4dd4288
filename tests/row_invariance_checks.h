// Row invariance (architecture: Pinned 2): the same bits in any cut, on any threads, beside anything.
#pragma once

#include "cache_rig.h"

namespace fathom::testing {

struct Picture {
  std::vector<float> logits;
  std::vector<std::byte> cache;
  // Bitwise: NaN would equal NaN, and 0 would not equal -0.
  bool operator==(const Picture& other) const {
    return logits.size() == other.logits.size() && cache == other.cache &&
           std::memcmp(logits.data(), other.logits.data(), logits.size() * sizeof(float)) == 0;
  }
};

inline Picture picture_of(CacheRig& rig, const std::vector<TokenId>& ids, std::int64_t chunk) {
  Picture picture;
  picture.logits = rig.run({ids}, {chunk})[0];
  picture.cache = rig.cache_bytes(0);
  return picture;
}

inline void check_chunk_sizes(const std::string& model_path, const Numerics& numerics, std::int64_t num_tokens,
                              const std::vector<std::int64_t>& chunks) {
  SCOPED_TRACE(numerics_name(numerics.mode));
  Runner runner(model_path, numerics, kCpu, num_tokens);
  const std::vector<TokenId> ids = make_ids(num_tokens, runner.vocab_size(), 7);
  CacheRig rig(runner.model(), num_tokens, 1);
  const Picture whole = picture_of(rig, ids, num_tokens);
  for (const float logit : whole.logits) ASSERT_TRUE(std::isfinite(logit));
  for (const std::int64_t chunk : chunks) {
    EXPECT_TRUE(picture_of(rig, ids, chunk) == whole) << "chunks of " << chunk;
  }
}

inline void check_threads_and_neighbours(const std::string& model_path, const Numerics& numerics,
                                         std::int64_t num_tokens) {
  SCOPED_TRACE(numerics_name(numerics.mode));
  Runner two(model_path, numerics, kCpu, 3 * num_tokens, 2);
  Runner one(model_path, numerics, kCpu, num_tokens, 1);
  const std::vector<TokenId> ids = make_ids(num_tokens, two.vocab_size(), 7);
  CacheRig alone_on_one(one.model(), num_tokens, 1);
  const Picture expected = picture_of(alone_on_one, ids, num_tokens);
  CacheRig alone_on_two(two.model(), num_tokens, 1);
  EXPECT_TRUE(picture_of(alone_on_two, ids, num_tokens) == expected) << "two threads";

  CacheRig beside(two.model(), num_tokens, 3);
  const std::vector<TokenId> shorter = make_ids(num_tokens / 3, two.vocab_size(), 8);
  const std::vector<TokenId> other = make_ids(num_tokens, two.vocab_size(), 9);
  for (const std::int32_t shift : {0, 1, 2}) {
    Picture picture;
    picture.logits = beside.run({other, ids, shorter}, {num_tokens, 64, 1}, shift)[1];
    picture.cache = beside.cache_bytes(1);
    EXPECT_TRUE(picture == expected) << "beside others, blocks shifted by " << shift;
  }
}

}  // namespace fathom::testing
