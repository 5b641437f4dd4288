#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/mapped_file.h"
#include "base/units.h"
#include "checkpoint/safetensors.h"

namespace fathom {
namespace {

constexpr std::size_t kPendingBytes = 1 << 20;

std::string header_text(const std::vector<TensorToWrite>& tensors) {
  // Built by hand around escaped names: an ordered JSON document of 70,000 tensors would cost seconds.
  std::string text = R"({"__metadata__":{"format":"pt"})";
  std::int64_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    const std::int64_t end = offset + tensor.shape.num_elements() * dtype_bytes(tensor.dtype);
    text += ',';
    text += nlohmann::json(tensor.name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    text += R"(:{"dtype":")";
    text += dtype_name(tensor.dtype);
    text += R"(","shape":[)";
    for (int i = 0; i < tensor.shape.rank(); ++i) text += (i == 0 ? "" : ",") + std::to_string(tensor.shape[i]);
    text += "],\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(end) + "]}";
    offset = end;
  }
  text += '}';
  text.append(static_cast<std::size_t>(round_up(static_cast<std::int64_t>(text.size()), 8)) - text.size(), ' ');
  return text;
}

}  // namespace

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::open(const std::string& path,
                                                                   std::vector<TensorToWrite> tensors) {
  const std::string text = header_text(tensors);
  if (static_cast<std::int64_t>(text.size()) > kMaxSafetensorsHeaderBytes) {
    return invalid_argument(path + ": a header of " + std::to_string(text.size()) + " bytes, expected at most " +
                            std::to_string(kMaxSafetensorsHeaderBytes));
  }
  FATHOM_RETURN_IF_ERROR(check_replaceable(path));
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter());
  writer->path_ = path;
  writer->temporary_ = path + ".partial." + std::to_string(getpid());
  writer->fd_ = ::open(writer->temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (writer->fd_ < 0) return writer->io_failure("create");
  writer->data_offset_bytes_ = kSafetensorsLengthBytes + static_cast<std::int64_t>(text.size());
  for (const TensorToWrite& tensor : tensors) {
    writer->data_bytes_ += tensor.shape.num_elements() * dtype_bytes(tensor.dtype);
  }
  const std::uint64_t length = text.size();
  writer->pending_.reserve(kPendingBytes);
  writer->pending_.resize(sizeof length + text.size());
  std::memcpy(writer->pending_.data(), &length, sizeof length);
  std::memcpy(writer->pending_.data() + sizeof length, text.data(), text.size());
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(temporary_.c_str());
}

Status SafetensorsWriter::io_failure(const char* action) const {
  return io_error("cannot " + std::string(action) + " " + path_ + ": " + std::strerror(errno) + " (" +
                  std::to_string(written_bytes_) + " of " + std::to_string(file_bytes()) + " bytes written)");
}

Status SafetensorsWriter::flush() {
  std::size_t written = 0;
  while (written < pending_.size()) {
    const ssize_t n = ::write(fd_, pending_.data() + written, pending_.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return io_failure("write");
    written += static_cast<std::size_t>(n);
    written_bytes_ += n;
  }
  pending_.clear();
  return {};
}

Status SafetensorsWriter::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t room = kPendingBytes > pending_.size() ? kPendingBytes - pending_.size() : 0;
    const std::size_t n = bytes.size() < room ? bytes.size() : room;
    pending_.insert(pending_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    appended_bytes_ += static_cast<std::int64_t>(n);
    bytes = bytes.subspan(n);
    if (pending_.size() >= kPendingBytes) FATHOM_RETURN_IF_ERROR(flush());
  }
  return {};
}

Status SafetensorsWriter::append_hole(std::int64_t num_bytes) {
  FATHOM_RETURN_IF_ERROR(flush());
  appended_bytes_ += num_bytes;
  written_bytes_ += num_bytes;
  if (lseek(fd_, data_offset_bytes_ + appended_bytes_, SEEK_SET) < 0) return io_failure("seek in");
  return {};
}

Status SafetensorsWriter::finish() {
  FATHOM_RETURN_IF_ERROR(flush());
  if (appended_bytes_ != data_bytes_) {
    return internal_error(path_ + ": " + std::to_string(appended_bytes_) + " data bytes appended, expected " +
                          std::to_string(data_bytes_));
  }
  // A hole at the end has moved the file position, not the size.
  if (ftruncate(fd_, file_bytes()) != 0) return io_failure("size");
  const int fd = std::exchange(fd_, -1);
  if (close(fd) != 0 || rename(temporary_.c_str(), path_.c_str()) != 0) {
    Status status = io_failure("finish");
    unlink(temporary_.c_str());
    return status;
  }
  return {};
}

Status write_safetensors(const std::string& path, std::span<const NamedTensor> tensors) {
  std::vector<TensorToWrite> layout;
  for (const NamedTensor& tensor : tensors) {
    const std::int64_t expected = tensor.shape.num_elements() * dtype_bytes(tensor.dtype);
    if (static_cast<std::int64_t>(tensor.bytes.size()) != expected) {
      return internal_error(path + ": tensor " + tensor.name + " has " + std::to_string(tensor.bytes.size()) +
                            " bytes, expected " + std::to_string(expected));
    }
    layout.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                          SafetensorsWriter::open(path, std::move(layout)));
  for (const NamedTensor& tensor : tensors) FATHOM_RETURN_IF_ERROR(writer->append(tensor.bytes));
  return writer->finish();
}

}  // namespace fathom
