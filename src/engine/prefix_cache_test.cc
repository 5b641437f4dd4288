#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>

#include "ops/cache_view.h"

namespace fathom {
namespace {

TEST(BlockPool, StatesOfABlock) {
  BlockPool<BlockId> pool(3);
  const BlockId a = *pool.take(), b = *pool.take(), c = *pool.take();
  EXPECT_FALSE(pool.take());
  pool.hold(a);
  pool.drop(a);
  EXPECT_EQ(pool.num_held(), 3);
  pool.set_findable(a);
  pool.set_findable(b);
  pool.drop(b);
  pool.drop(a);
  pool.drop(c);  // not findable: free at once
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.num_cached(), 2);
  EXPECT_EQ(pool.oldest_cached(), b);
  pool.hold(b);
  EXPECT_EQ(pool.oldest_cached(), a);
  pool.drop(b);
  EXPECT_EQ(pool.oldest_cached(), a);
  pool.forget(a);
  EXPECT_EQ(pool.num_free(), 2);
  pool.hold(b);
  pool.forget(b);  // held: stays, but is free afterwards
  pool.drop(b);
  EXPECT_EQ(pool.num_free(), 3);
  EXPECT_FALSE(pool.oldest_cached());
}

TEST(BlockPoolDeathTest, WrongUseIsABug) {
  BlockPool<BlockId> pool(1);
  EXPECT_DEATH(pool.hold(BlockId(0)), "taken, not held");
  EXPECT_DEATH(pool.drop(BlockId(0)), "only a held block");
  EXPECT_DEATH(pool.take() && (pool.drop(BlockId(0)), pool.drop(BlockId(0)), true), "only a held block");
}

std::vector<TokenId> ids(std::int64_t num, TokenId first = 0) {
  std::vector<TokenId> result(static_cast<std::size_t>(num));
  std::iota(result.begin(), result.end(), first);
  return result;
}

struct Holder {
  std::vector<BlockId> context;
  std::vector<WindowBlockId> window;  // one per block
  std::vector<PrefixCache::EntryRef> entries;
};

class PrefixCacheTest : public ::testing::Test {
 protected:
  Holder compute(const std::vector<TokenId>& tokens, const std::string& salt = "") {
    Holder holder;
    for (std::size_t i = 0; i < tokens.size() / kBlockTokens; ++i) {
      holder.context.push_back(*context_.take());
      holder.window.push_back(*window_.take());
    }
    cache_.publish(tokens, holder.context, salt, holder.entries);
    return holder;
  }
  void leave(const Holder& holder) {
    cache_.release(holder.context, holder.entries);
    for (WindowBlockId block : holder.window) window_.drop(block);
  }
  void leave(const PrefixCache::Hit& hit) {
    cache_.release(hit.context, hit.entries);
    if (hit.length > 0) window_.drop(hit.window);
  }
  std::int64_t hit_length(const std::vector<TokenId>& tokens, const std::string& salt = "") {
    const auto hit = cache_.find(tokens, static_cast<std::int64_t>(tokens.size()), salt);
    leave(hit);
    return hit.length;
  }

  BlockPool<BlockId> context_{8};
  BlockPool<WindowBlockId> window_{8};
  PrefixCache cache_{context_, window_, 2, 42};
};

TEST_F(PrefixCacheTest, AHitEndsAtAResumePoint) {
  const auto tokens = ids(3 * 128);
  const Holder holder = compute(tokens);
  EXPECT_EQ(hit_length(tokens), 0);
  ASSERT_TRUE(cache_.add_resume_point(holder.entries[1], holder.window[1]));
  EXPECT_EQ(hit_length(tokens), 256);
  EXPECT_EQ(hit_length(ids(256)), 256);
  EXPECT_EQ(hit_length(ids(255)), 0);
  const auto hit = cache_.find(tokens, 255, "");
  EXPECT_EQ(hit.length, 0);
  leave(holder);
  EXPECT_EQ(context_.num_held(), 0);
  const auto warm = cache_.find(tokens, 384, "");
  EXPECT_EQ(warm.context, (std::vector<BlockId>{holder.context[0], holder.context[1]}));
  EXPECT_EQ(warm.window, holder.window[1]);
  EXPECT_EQ(context_.num_held(), 2);
  leave(warm);
}

TEST_F(PrefixCacheTest, OtherIdsSaltsAndParentsDoNotHit) {
  const auto tokens = ids(256);
  const Holder holder = compute(tokens, "key a");
  cache_.add_resume_point(holder.entries[1], holder.window[1]);
  EXPECT_EQ(hit_length(tokens, "key a"), 256);
  EXPECT_EQ(hit_length(tokens, "key b"), 0);
  EXPECT_EQ(hit_length(tokens), 0);
  auto other = tokens;
  other[200] ^= 1;
  EXPECT_EQ(hit_length(other, "key a"), 0);
  other = tokens;
  other[0] ^= 1;  // the second block is the same, after another first one
  EXPECT_EQ(hit_length(other, "key a"), 0);
  leave(holder);
}

TEST_F(PrefixCacheTest, TheSameContentTwiceIsOneEntry) {
  const auto tokens = ids(256);
  const Holder first = compute(tokens);
  const Holder second = compute(tokens);
  EXPECT_EQ(first.entries[1].serial, second.entries[1].serial);
  EXPECT_TRUE(cache_.add_resume_point(second.entries[1], second.window[1]));
  EXPECT_FALSE(cache_.add_resume_point(first.entries[1], first.window[1]));
  leave(second);  // its context blocks were private
  EXPECT_EQ(context_.num_cached(), 0);
  leave(first);
  EXPECT_EQ(context_.num_cached(), 2);
  EXPECT_EQ(hit_length(tokens), 256);
}

TEST_F(PrefixCacheTest, AnUnheldBlockGivesItsPlaceToTheSameContent) {
  const auto tokens = ids(384);
  const Holder first = compute(tokens);
  ASSERT_TRUE(cache_.add_resume_point(first.entries[1], first.window[1]));
  leave(first);
  EXPECT_EQ(context_.num_cached(), 3);
  Holder second = compute({tokens.begin(), tokens.begin() + 256});
  EXPECT_EQ(context_.num_cached(), 1);  // the third block; the others lie in the second's blocks now
  EXPECT_EQ(context_.num_free(), 5);
  EXPECT_EQ(second.entries[1].serial, first.entries[1].serial);
  const auto hit = cache_.find(tokens, 384, "");
  EXPECT_EQ(hit.length, 256);
  EXPECT_EQ(hit.context, second.context);
  EXPECT_EQ(hit.window, first.window[1]);
  leave(hit);
  // What stood behind the moved content is found there still, and the second's blocks go on from it.
  second.context.push_back(*context_.take());
  second.window.push_back(*window_.take());
  cache_.publish(tokens, second.context, "", second.entries);
  EXPECT_EQ(second.entries[2].serial, first.entries[2].serial);
  EXPECT_EQ(context_.num_cached(), 0);
  // Its resume point goes with the moved content.
  leave(second);
  EXPECT_EQ(hit_length(tokens), 256);
  EXPECT_TRUE(cache_.evict_context_block());
  EXPECT_TRUE(cache_.evict_context_block());
  EXPECT_EQ(cache_.num_resume_points(), 0);
  EXPECT_EQ(hit_length(tokens), 0);
  cache_.clear();
  EXPECT_EQ(context_.num_free(), 8);
  EXPECT_EQ(window_.num_free(), 8);
}

TEST_F(PrefixCacheTest, WhatACopyLeavesBehindIsYoung) {
  const auto tokens = ids(256);
  const Holder first = compute(tokens), copy = compute(tokens);
  leave(first);
  const Holder other = compute(ids(256, 1000));
  leave(other);
  leave(copy);  // its own blocks are free, the content's are used last
  EXPECT_TRUE(cache_.evict_context_block());
  EXPECT_TRUE(cache_.evict_context_block());
  const Holder third = compute(tokens);
  EXPECT_EQ(third.entries[0].serial, first.entries[0].serial);
  EXPECT_EQ(third.entries[1].serial, first.entries[1].serial);
  leave(third);
}

TEST_F(PrefixCacheTest, AForkIsWhereKnownContentGoesOnOtherwise) {
  const auto tokens = ids(3 * 128);
  const Holder holder = compute(tokens, "key a");
  auto other = tokens;
  other[300] ^= 1;
  const auto fork = [&](std::int64_t max_length, const std::string& salt = "key a") {
    const auto hit = cache_.find(other, max_length, salt);
    leave(hit);
    return hit.fork;
  };
  EXPECT_EQ(fork(384), 256);
  EXPECT_EQ(fork(256), 256);
  EXPECT_EQ(fork(255), 128);
  EXPECT_EQ(fork(127), 0);
  EXPECT_EQ(fork(384, "key b"), 0);
  EXPECT_EQ(fork(384, ""), 0);
  ASSERT_TRUE(cache_.add_resume_point(holder.entries[0], holder.window[0]));
  auto hit = cache_.find(other, 384, "key a");
  EXPECT_EQ(hit.length, 128);
  EXPECT_EQ(hit.fork, 256);
  leave(hit);
  ASSERT_TRUE(cache_.add_resume_point(holder.entries[1], holder.window[1]));
  hit = cache_.find(other, 384, "key a");
  EXPECT_EQ(hit.length, 256);
  EXPECT_EQ(hit.fork, 0);  // there is nothing to make any more
  leave(hit);
  leave(holder);
}

TEST_F(PrefixCacheTest, TheEndOfKnownContentIsNoFork) {
  const auto conversation = ids(4 * 128);
  const Holder holder = compute({conversation.begin(), conversation.begin() + 256});
  auto hit = cache_.find(conversation, 512, "");
  EXPECT_EQ(hit.length, 0);
  EXPECT_EQ(hit.fork, 0);  // who goes on from there keeps a point at its own end
  const Holder next = compute(conversation);
  hit = cache_.find({conversation.begin(), conversation.begin() + 300}, 300, "");
  EXPECT_EQ(hit.fork, 256);
  // What went on there is given up; that prompts part there is still known.
  leave(holder);
  leave(next);
  EXPECT_TRUE(cache_.evict_context_block());
  EXPECT_TRUE(cache_.evict_context_block());
  EXPECT_EQ(context_.num_cached(), 2);
  EXPECT_EQ(cache_.find(conversation, 512, "").fork, 256);
  // New content in the same block is a place of its own.
  cache_.clear();
  const Holder again = compute({conversation.begin(), conversation.begin() + 256});
  EXPECT_EQ(cache_.find(conversation, 512, "").fork, 0);
  leave(again);
}

TEST_F(PrefixCacheTest, EvictionGivesUpTheEndsFirst) {
  const auto tokens = ids(3 * 128);
  const Holder holder = compute(tokens);
  cache_.add_resume_point(holder.entries[0], holder.window[0]);
  cache_.add_resume_point(holder.entries[2], holder.window[2]);
  leave(holder);
  EXPECT_EQ(hit_length(tokens), 384);
  EXPECT_TRUE(cache_.evict_context_block());
  EXPECT_EQ(hit_length(tokens), 128);
  EXPECT_EQ(cache_.num_resume_points(), 1);
  EXPECT_TRUE(cache_.evict_context_block());
  EXPECT_EQ(hit_length(tokens), 128);
  EXPECT_TRUE(cache_.evict_context_block());
  EXPECT_EQ(hit_length(tokens), 0);
  EXPECT_FALSE(cache_.evict_context_block());
  EXPECT_EQ(context_.num_free(), 8);
  EXPECT_EQ(window_.num_free(), 8);
}

TEST_F(PrefixCacheTest, ResumePointsHaveTheirOwnAge) {
  const Holder a = compute(ids(128, 0)), b = compute(ids(128, 1000)), c = compute(ids(128, 2000));
  cache_.add_resume_point(a.entries[0], a.window[0]);
  cache_.add_resume_point(b.entries[0], b.window[0]);
  EXPECT_EQ(hit_length(ids(128, 0)), 128);  // now b is the oldest of two
  ASSERT_TRUE(cache_.add_resume_point(c.entries[0], c.window[0]));
  EXPECT_EQ(hit_length(ids(128, 0)), 128);
  EXPECT_EQ(hit_length(ids(128, 1000)), 0);
  EXPECT_EQ(hit_length(ids(128, 2000)), 128);
  EXPECT_EQ(cache_.evicted_resume_points(), 1);
  leave(a);
  leave(b);
  leave(c);
  EXPECT_TRUE(cache_.evict_window_block());
  EXPECT_EQ(hit_length(ids(128, 0)), 0);
}

TEST_F(PrefixCacheTest, PublishesAgainWhereAForeignEntryIsGone) {
  const auto tokens = ids(256);
  const Holder first = compute({tokens.begin(), tokens.begin() + 128});
  Holder second;
  for (int i = 0; i < 2; ++i) {
    second.context.push_back(*context_.take());
    second.window.push_back(*window_.take());
  }
  cache_.publish(std::span(tokens).first(128), std::span(second.context).first(1), "", second.entries);
  leave(first);
  EXPECT_TRUE(cache_.evict_context_block());  // the entry that `second` built upon
  cache_.publish(tokens, second.context, "", second.entries);
  ASSERT_TRUE(cache_.add_resume_point(second.entries[1], second.window[1]));
  EXPECT_EQ(hit_length(tokens), 256);
  leave(second);
  cache_.clear();
  EXPECT_EQ(context_.num_free(), 8);
  EXPECT_EQ(window_.num_free(), 8);
}

}  // namespace
}  // namespace fathom
