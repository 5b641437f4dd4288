// One line of a verify report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fathom {

enum class Severity : std::uint8_t {
  kWarning,  // the model loads and is right; something beside it (a stray shard, the draft block) is not
  kError,    // the model must not be loaded
};

struct Finding {
  Severity severity = Severity::kError;
  std::string kind;      // stable short name: "missing", "dtype", "shape", "extent", "duplicate", ...
  std::string name;      // the tensor, file or config key
  std::string found;     // what is there
  std::string expected;  // what should be there, or what to do; empty: `found` is a whole message

  // "error: missing: layers.3.attn.wkv.weight: found nothing, expected F8_E4M3 [512, 4096]"
  std::string to_string() const;
};

bool has_errors(const std::vector<Finding>& findings);

}  // namespace fathom
