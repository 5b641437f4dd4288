// A file's bytes as a safetensors header: refused with a reason or parsed into tensors that lie inside the file.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto header = fathom::parse_safetensors_header(bytes, static_cast<std::int64_t>(size), "fuzz");
  if (!header.ok()) {
    if (header.status().message().empty()) std::abort();
    return 0;
  }
  for (const auto& tensor : header->tensors) {
    if (tensor.begin < 0 || tensor.end < tensor.begin) std::abort();
    if (tensor.end > static_cast<std::int64_t>(size) - header->data_offset_bytes) std::abort();
    if (tensor.shape.num_elements() * fathom::dtype_bytes(tensor.dtype) != tensor.end - tensor.begin) std::abort();
  }
  return 0;
}
