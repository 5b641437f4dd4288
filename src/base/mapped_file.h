// A read-only memory map that notices when the file behind it shrinks or is replaced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace fathom {

// Reading a page that a truncated file no longer has raises SIGBUS. open_mapped_file installs one
// process-wide handler that looks the address up among the live maps, prints which file shrank and
// by how much, and exits with kMappedFileLostExitCode; other SIGBUS go to the previous handler.
constexpr int kMappedFileLostExitCode = 74;  // EX_IOERR

class MappedFile {
 public:
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  // Failure when the file under the map was truncated, grown, or replaced since it was opened
  // (size, mtime, inode): names the file and what changed.
  Status check_unchanged() const;

 private:
  friend Result<std::shared_ptr<const MappedFile>> open_mapped_file(const std::string& path);
  MappedFile() = default;

  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;
  std::int64_t modified_ns_ = 0;
};

// Follows symlinks (Hugging Face cache layout). Errors name the path: missing, a directory, no permission.
Result<std::shared_ptr<const MappedFile>> open_mapped_file(const std::string& path);

// The whole file as text; for configs and tokenizers. Refuses files over `limit_bytes`.
Result<std::string> read_text_file(const std::string& path, std::int64_t limit_bytes = 1LL << 30);

// Whether a rename may put a file at `path`: nothing is there yet, or a regular file. Refuses a device, a pipe,
// a directory and a symbolic link: the rename would replace the node itself (/dev/full, /dev/stdout).
Status check_replaceable(const std::string& path);

// Writes to a temporary beside `path`, then renames: a full disk or a crash leaves no half file.
Status write_file_atomically(const std::string& path, std::span<const std::byte> contents);

}  // namespace fathom
