// The safetensors file format: 8-byte little-endian header length, JSON header, tensor bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace fathom {

constexpr std::int64_t kSafetensorsLengthBytes = 8;
constexpr std::int64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // as other readers limit it

struct HeaderTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::int64_t begin = 0;  // data_offsets, relative to the end of the header
  std::int64_t end = 0;
};

// One tensor of a header that cannot be used; the others can.
struct HeaderProblem {
  std::string kind;  // "dtype", "shape", "extent", "truncated", "overlap", "duplicate", "gap" (harmless)
  std::string name;  // empty for "gap", which concerns the file
  std::string found;
  std::string expected;
};

struct SafetensorsHeader {
  std::int64_t data_offset_bytes = 0;  // 8 + header length
  std::vector<HeaderTensor> tensors;   // in order of `begin`
  std::vector<HeaderProblem> problems;
  std::vector<std::pair<std::string, std::string>> metadata;
};

// "F8_E4M3 [256, 128]"
std::string describe_tensor(DType dtype, const Shape& shape);

// True for the text a Git LFS checkout leaves in place of a large file.
bool is_lfs_pointer(std::span<const std::byte> file);

// `file` is the whole file, or its first bytes as long as they hold the header; extents are checked against
// `file_bytes`. Fails when the header itself cannot be read (length, JSON, structure).
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> file, std::int64_t file_bytes,
                                                   const std::string& origin);

struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};

// Streams one file: the header first, then every tensor's bytes in the order given to open(). The file
// appears under its name only when finish() succeeded; until then, and after any failure, there is at most
// a temporary beside it that the destructor removes.
class SafetensorsWriter {
 public:
  static Result<std::unique_ptr<SafetensorsWriter>> open(const std::string& path, std::vector<TensorToWrite> tensors);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next bytes of tensor data, any split.
  Status append(std::span<const std::byte> bytes);
  // Leaves the remaining data as a hole: reads as zeros, takes no disk.
  Status append_hole(std::int64_t num_bytes);
  // Checks that exactly the announced bytes were appended.
  Status finish();

  std::int64_t file_bytes() const { return data_offset_bytes_ + data_bytes_; }

 private:
  SafetensorsWriter() = default;
  Status flush();
  Status io_failure(const char* action) const;

  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  std::int64_t data_offset_bytes_ = 0;
  std::int64_t data_bytes_ = 0;
  std::int64_t appended_bytes_ = 0;  // tensor data taken
  std::int64_t written_bytes_ = 0;   // of the file, handed to the system
  std::vector<std::byte> pending_;
};

// All at once, for small files (logits, taps).
struct NamedTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::span<const std::byte> bytes;
};
Status write_safetensors(const std::string& path, std::span<const NamedTensor> tensors);

}  // namespace fathom
