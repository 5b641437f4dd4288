// The three numerics (architecture: Pinned 1) and what each means at an operation's boundary.
#pragma once

#include <optional>
#include <string_view>

#include "tensor/scalar_formats.h"

namespace fathom {

enum class NumericsMode {
  kPlain,   // fp32 between operations, no quantiser: what fp32 goldens are held to
  kVendor,  // the vendor's quantisers (spec 2.1, 2.4.5, 2.5.5, 2.6), fp32 between operations
  kServe,   // kVendor, and each result rounded to bf16 where spec section 2 says bf16 (the default)
};

struct Numerics {
  NumericsMode mode = NumericsMode::kServe;
  // Each quantiser on its own, so that a test can show that leaving it out is seen.
  bool quantise_linear_input = true;  // AQ 1x128 before F8 and FP4 linears
  bool quantise_kv = true;            // AQ 64 on channels [0, head_dim - rope) of keys
  bool quantise_index = true;         // FQ 32 on indexer queries and keys, after Hadamard128

  static constexpr Numerics plain() { return {NumericsMode::kPlain, false, false, false}; }
  static constexpr Numerics vendor() { return {NumericsMode::kVendor, true, true, true}; }
  static constexpr Numerics serve() { return {NumericsMode::kServe, true, true, true}; }
  bool operator==(const Numerics&) const = default;

  bool rounds_to_bf16() const { return mode == NumericsMode::kServe; }
  // A result that the spec stores as bf16.
  float store(float value) const { return rounds_to_bf16() ? round_to_bf16(value) : value; }
  // `serve` keeps keys in the packed records of spec 10; the others keep fp32 records.
  bool packs_cache() const { return mode == NumericsMode::kServe; }
};

// "plain", "vendor", "serve".
std::string_view numerics_name(NumericsMode mode);
std::optional<Numerics> parse_numerics(std::string_view name);

}  // namespace fathom
