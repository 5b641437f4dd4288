// Strong ids: a BlockId is not a SequenceId, whatever the bits.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace fathom {

template <typename Tag, typename Integer>
struct Id {
  using integer_type = Integer;
  Integer value{};

  constexpr Id() = default;
  constexpr explicit Id(Integer v) : value(v) {}
  constexpr auto operator<=>(const Id&) const = default;
};

using TokenId = std::int32_t;                       // plain: ids travel through arrays, JSON and tensors everywhere
using BlockId = Id<struct BlockTag, std::int32_t>;  // context block in its pool
using WindowBlockId = Id<struct WindowBlockTag, std::int32_t>;  // window block in its pool
using SequenceId = Id<struct SequenceTag, std::int64_t>;        // never reused in a process
using StateSlot = Id<struct StateSlotTag, std::int32_t>;        // compressor-state slab in its pool
using ResumeSlot = Id<struct ResumeSlotTag, std::int32_t>;      // saved state rows of a resume point, in their pool
using LayerIndex = Id<struct LayerTag, std::int32_t>;
using Rank = Id<struct RankTag, std::int32_t>;

}  // namespace fathom

template <typename Tag, typename Integer>
struct std::hash<fathom::Id<Tag, Integer>> {
  std::size_t operator()(const fathom::Id<Tag, Integer>& id) const noexcept { return std::hash<Integer>{}(id.value); }
};
