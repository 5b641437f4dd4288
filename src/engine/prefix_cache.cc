#include "engine/prefix_cache.h"

#include <algorithm>

#include "base/check.h"
#include "engine/hash.h"
#include "ops/cache_view.h"

namespace fathom {
namespace {

constexpr std::size_t kBlock = kBlockTokens;

std::uint64_t root_hash(std::uint64_t fingerprint, const std::string& salt) {
  std::uint64_t hash = mix_hash(fingerprint, salt.size());
  for (char c : salt) hash = mix_hash(hash, static_cast<unsigned char>(c));
  return hash;
}

std::uint64_t chain_hash(std::uint64_t parent, std::span<const TokenId> ids) {
  std::uint64_t hash = parent;
  for (TokenId id : ids) hash = mix_hash(hash, static_cast<std::uint32_t>(id));
  return hash;
}

}  // namespace

PrefixCache::PrefixCache(BlockPool<BlockId>& context, BlockPool<WindowBlockId>& window, std::int32_t num_resume_slots,
                         std::uint64_t fingerprint)
    : context_(context), window_(window), fingerprint_(fingerprint) {
  entries_.resize(static_cast<std::size_t>(context.num_blocks()));
  entry_of_window_.assign(static_cast<std::size_t>(window.num_blocks()), -1);
  for (std::int32_t i = num_resume_slots; i-- > 0;) free_slots_.push_back(ResumeSlot(i));
}

PrefixCache::EntryRef PrefixCache::lookup(std::uint64_t hash, std::int64_t parent, std::span<const TokenId> ids) const {
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const Entry& entry = entries_[static_cast<std::size_t>(it->second)];
    if (entry.parent == parent && std::equal(ids.begin(), ids.end(), entry.ids.begin(), entry.ids.end())) {
      return {it->second, entry.serial};
    }
  }
  return {};
}

PrefixCache::Hit PrefixCache::find(std::span<const TokenId> tokens, std::int64_t max_length, const std::string& salt) {
  Hit hit;
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return hit;
  std::uint64_t hash = root_hash(fingerprint_, salt);
  std::int64_t parent = root->second.serial;
  std::vector<EntryRef> path;
  std::size_t depth = 0;  // of the deepest resume point
  const std::size_t limit = std::min(tokens.size(), static_cast<std::size_t>(std::max<std::int64_t>(max_length, 0)));
  for (std::size_t end = kBlock; end <= limit; end += kBlock) {
    const std::span<const TokenId> ids = tokens.subspan(end - kBlock, kBlock);
    hash = chain_hash(hash, ids);
    const EntryRef entry = lookup(hash, parent, ids);
    if (entry.index < 0) break;
    path.push_back(entry);
    parent = entry.serial;
    if (entries_[static_cast<std::size_t>(entry.index)].resume) depth = path.size();
  }
  if (path.size() > depth && entries_[static_cast<std::size_t>(path.back().index)].has_more) {
    hit.fork = static_cast<std::int64_t>(path.size() * kBlock);
  }
  if (depth == 0) return hit;
  path.resize(depth);
  for (const EntryRef& entry : path) {
    hit.context.push_back(BlockId(entry.index));
    context_.hold(BlockId(entry.index));
  }
  ResumePoint& resume = *entries_[static_cast<std::size_t>(path.back().index)].resume;
  resume_order_.splice(resume_order_.end(), resume_order_, resume.order);
  window_.hold(resume.window);
  hit.window = resume.window;
  hit.resume_slot = resume.slot;
  hit.length = static_cast<std::int64_t>(depth * kBlock);
  hit.entries = std::move(path);
  return hit;
}

PrefixCache::EntryRef PrefixCache::insert(std::uint64_t hash, std::int64_t parent, std::int64_t root,
                                          std::span<const TokenId> ids, BlockId block) {
  Entry& entry = entries_[static_cast<std::size_t>(block.value)];
  FATHOM_CHECK(entry.serial == 0, "a block that is not findable has no entry");
  entry.serial = next_serial_++;
  entry.parent = parent;
  entry.hash = hash;
  entry.root = root;
  entry.ids.assign(ids.begin(), ids.end());
  entry.has_more = false;
  context_.set_findable(block);
  by_hash_.emplace(hash, block.value);
  ++roots_.at(salt_of_root_.at(root)).num_entries;
  return {block.value, entry.serial};
}

void PrefixCache::publish(std::span<const TokenId> tokens, std::span<const BlockId> context, const std::string& salt,
                          std::vector<EntryRef>& entries) {
  FATHOM_CHECK(tokens.size() >= context.size() * kBlock, "published blocks are full");
  if (context.empty()) return;
  // An entry may have been given up while the sequence lived, where the sequence's own block was private: from there
  // on its blocks are published again.
  std::size_t first = 0;
  while (first < entries.size() && alive(entries[first])) ++first;
  if (first < entries.size()) entries.resize(first);
  if (first == context.size()) return;

  const auto [root, is_new] = roots_.try_emplace(salt);
  if (is_new) {
    root->second.serial = next_serial_++;
    root->second.salt = salt;
    salt_of_root_.emplace(root->second.serial, salt);
  }
  const std::int64_t root_serial = root->second.serial;
  ++root->second.num_entries;  // so that it outlives the entries replaced below
  std::uint64_t hash =
      first == 0 ? root_hash(fingerprint_, salt) : entries_[static_cast<std::size_t>(entries.back().index)].hash;
  std::int64_t parent = first == 0 ? root_serial : entries.back().serial;
  for (std::size_t i = first; i < context.size(); ++i) {
    const std::span<const TokenId> ids = tokens.subspan(i * kBlock, kBlock);
    hash = chain_hash(hash, ids);
    EntryRef entry = lookup(hash, parent, ids);
    const bool is_own = entry.index == context[i].value;
    const bool stays = entry.index >= 0 && (is_own || context_.num_holders(BlockId(entry.index)) > 0);
    if (!stays) {
      if (context_.findable(context[i])) remove_entry(context[i].value);  // its parent is gone: nothing finds it
      if (entry.index < 0) {
        entry = insert(hash, parent, root_serial, ids, context[i]);
      } else {
        move_entry(entry.index, context[i]);
        entry.index = context[i].value;
      }
    }
    if (i > 0) entries_[static_cast<std::size_t>(entries.back().index)].has_more = true;
    entries.push_back(entry);
    parent = entry.serial;
  }
  --root->second.num_entries;  // at least the last block's entry stands
}

void PrefixCache::release(std::span<const BlockId> context, std::span<const EntryRef> entries) {
  for (std::size_t i = context.size(); i-- > 0;) {
    context_.drop(context[i]);
    if (i >= entries.size() || !alive(entries[i])) continue;
    const BlockId block(entries[i].index);
    if (block == context[i] || context_.num_holders(block) > 0) continue;
    context_.hold(block);
    context_.drop(block);
  }
}

std::optional<ResumeSlot> PrefixCache::add_resume_point(EntryRef ref, WindowBlockId window) {
  if (!alive(ref)) return std::nullopt;
  Entry& entry = entries_[static_cast<std::size_t>(ref.index)];
  if (entry.resume) {
    resume_order_.splice(resume_order_.end(), resume_order_, entry.resume->order);
    return std::nullopt;
  }
  if (entry_of_window_[static_cast<std::size_t>(window.value)] >= 0) return std::nullopt;
  if (free_slots_.empty()) {
    if (resume_order_.empty()) return std::nullopt;
    remove_resume_point(resume_order_.front());
    ++evicted_resume_points_;
  }
  const ResumeSlot slot = free_slots_.back();
  free_slots_.pop_back();
  window_.set_findable(window);
  entry_of_window_[static_cast<std::size_t>(window.value)] = ref.index;
  entry.resume = ResumePoint{window, slot, resume_order_.insert(resume_order_.end(), ref.index)};
  return slot;
}

// The same content, now in a block that someone holds: one copy less, and not the next to be given up.
void PrefixCache::move_entry(std::int32_t index, BlockId block) {
  Entry& from = entries_[static_cast<std::size_t>(index)];
  Entry& to = entries_[static_cast<std::size_t>(block.value)];
  FATHOM_CHECK(to.serial == 0, "a block that is not findable has no entry");
  std::swap(from, to);
  const auto [begin, end] = by_hash_.equal_range(to.hash);
  std::find_if(begin, end, [index](const auto& item) { return item.second == index; })->second = block.value;
  if (to.resume) {
    *to.resume->order = block.value;
    entry_of_window_[static_cast<std::size_t>(to.resume->window.value)] = block.value;
  }
  context_.forget(BlockId(index));
  context_.set_findable(block);
}

void PrefixCache::remove_resume_point(std::int32_t index) {
  Entry& entry = entries_[static_cast<std::size_t>(index)];
  entry_of_window_[static_cast<std::size_t>(entry.resume->window.value)] = -1;
  window_.forget(entry.resume->window);
  free_slots_.push_back(entry.resume->slot);
  resume_order_.erase(entry.resume->order);
  entry.resume.reset();
}

void PrefixCache::remove_entry(std::int32_t index) {
  Entry& entry = entries_[static_cast<std::size_t>(index)];
  if (entry.resume) remove_resume_point(index);
  const auto [begin, end] = by_hash_.equal_range(entry.hash);
  by_hash_.erase(std::find_if(begin, end, [index](const auto& item) { return item.second == index; }));
  const auto salt = salt_of_root_.find(entry.root);
  FATHOM_CHECK(salt != salt_of_root_.end(), "a root lives as long as its entries");
  const auto root = roots_.find(salt->second);
  if (--root->second.num_entries == 0) {
    roots_.erase(root);
    salt_of_root_.erase(salt);
  }
  entry.serial = 0;
  context_.forget(BlockId(index));
}

bool PrefixCache::evict_context_block() {
  const std::optional<BlockId> block = context_.oldest_cached();
  if (!block) return false;
  remove_entry(block->value);
  ++evicted_blocks_;
  return true;
}

bool PrefixCache::evict_window_block() {
  const std::optional<WindowBlockId> block = window_.oldest_cached();
  if (!block) return false;
  remove_resume_point(entry_of_window_[static_cast<std::size_t>(block->value)]);
  ++evicted_resume_points_;
  return true;
}

void PrefixCache::clear() {
  while (evict_context_block()) {
  }
  while (evict_window_block()) {
  }
}

}  // namespace fathom
