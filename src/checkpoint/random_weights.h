// Seeded random bytes of one tensor, in its stored dtype.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "base/status.h"
#include "checkpoint/config.h"
#include "checkpoint/expected_tensors.h"

namespace fathom {

using ByteSink = std::function<Status(std::span<const std::byte>)>;

// Streams the tensor's bytes to `sink` in pieces of at most 1 MiB. The values depend on (seed, name, shape,
// dtype) alone.
Status write_random_tensor(const ExpectedTensor& tensor, const ModelConfig& config, std::uint64_t seed,
                           const ByteSink& sink);

}  // namespace fathom
