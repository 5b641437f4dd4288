#include "ops/numerics.h"

namespace fathom {

std::string_view numerics_name(NumericsMode mode) {
  switch (mode) {
    case NumericsMode::kPlain: return "plain";
    case NumericsMode::kVendor: return "vendor";
    case NumericsMode::kServe: return "serve";
  }
  return "?";
}

std::optional<Numerics> parse_numerics(std::string_view name) {
  if (name == "plain") return Numerics::plain();
  if (name == "vendor") return Numerics::vendor();
  if (name == "serve") return Numerics::serve();
  return std::nullopt;
}

}  // namespace fathom
