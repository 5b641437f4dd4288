#include "text/added_tokens.h"

#include <algorithm>

namespace fathom {
namespace {

template <typename Children>
auto find_child(Children& children, unsigned char byte) {
  return std::lower_bound(children.begin(), children.end(), byte,
                          [](const auto& child, unsigned char b) { return child.first < b; });
}

}  // namespace

AddedTokens::AddedTokens() : nodes_(1) {}

void AddedTokens::insert(std::string_view content, TokenId id) {
  std::uint32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<unsigned char>(c);
    const auto child = find_child(nodes_[node].children, byte);
    if (child != nodes_[node].children.end() && child->first == byte) {
      node = child->second;
      continue;
    }
    const auto added = static_cast<std::uint32_t>(nodes_.size());
    nodes_[node].children.insert(child, {byte, added});
    nodes_.emplace_back();
    node = added;
  }
  nodes_[node].id = id;
  starts_[static_cast<unsigned char>(content[0])] = true;
}

AddedTokens::Match AddedTokens::match(std::string_view text) const {
  Match longest;
  std::uint32_t node = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto child = find_child(nodes_[node].children, byte);
    if (child == nodes_[node].children.end() || child->first != byte) break;
    node = child->second;
    if (nodes_[node].id >= 0) longest = {nodes_[node].id, i + 1};
  }
  return longest;
}

}  // namespace fathom
