#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace fathom {
namespace {

std::string describe_errno(const std::string& path, const char* action) {
  return "cannot " + std::string(action) + " " + path + ": " + std::strerror(errno);
}

std::int64_t modified_ns(const struct stat& info) {
  return static_cast<std::int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec;
}

// Live maps for the signal handler: fixed slots, atomics only (a handler may take no lock). A map that
// finds no slot still works; a truncation under it then ends in the plain SIGBUS.
struct MapSlot {
  std::atomic<const std::byte*> begin{nullptr};
  std::atomic<std::size_t> size{0};
  std::atomic<const char*> path{nullptr};
};
constexpr int kNumSlots = 512;
std::array<MapSlot, kNumSlots> g_slots;
struct sigaction g_previous_action;

void write_text(const char* text) {
  const auto ignored = ::write(STDERR_FILENO, text, std::strlen(text));
  (void)ignored;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const auto* address = static_cast<const std::byte*>(info->si_addr);
  for (const MapSlot& slot : g_slots) {
    const std::byte* begin = slot.begin.load();
    if (begin == nullptr || address < begin || address >= begin + slot.size.load()) continue;
    write_text("fathom: error: ");
    write_text(slot.path.load());
    write_text(
        ": the file was truncated or replaced while it was mapped; expected the size it had when it was opened. "
        "Restore the file and start again.\n");
    _exit(kMappedFileLostExitCode);
  }
  if (g_previous_action.sa_flags & SA_SIGINFO && g_previous_action.sa_sigaction != nullptr) {
    g_previous_action.sa_sigaction(signal, info, context);
    return;
  }
  std::signal(SIGBUS, SIG_DFL);
  std::raise(SIGBUS);
}

void install_handler_once() {
  static const bool installed = [] {
    struct sigaction action{};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, &g_previous_action) == 0;
  }();
  (void)installed;
}

}  // namespace

MappedFile::~MappedFile() {
  for (MapSlot& slot : g_slots) {
    if (slot.begin.load() == data_ && data_ != nullptr) slot.begin.store(nullptr);
  }
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

Status MappedFile::check_unchanged() const {
  struct stat info{};
  if (stat(path_.c_str(), &info) != 0) return data_loss(describe_errno(path_, "stat mapped file"));
  if (static_cast<std::size_t>(info.st_size) != size_) {
    return data_loss(path_ + " changed while it was mapped: it has " + std::to_string(info.st_size) +
                     " bytes, expected the " + std::to_string(size_) + " it had when it was opened");
  }
  if (info.st_dev != device_ || info.st_ino != inode_) {
    return data_loss(path_ + " was replaced by another file while it was mapped");
  }
  if (modified_ns(info) != modified_ns_) {
    return data_loss(path_ + " was written to while it was mapped");
  }
  return {};
}

Result<std::shared_ptr<const MappedFile>> open_mapped_file(const std::string& path) {
  // O_NONBLOCK: a FIFO in place of a file is refused below instead of waited for.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    std::string message = describe_errno(path, "open");
    return missing ? not_found(std::move(message)) : io_error(std::move(message));
  }
  struct stat info{};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return invalid_argument(path + " is not a regular file");
  }
  std::shared_ptr<MappedFile> file(new MappedFile());
  file->path_ = path;
  file->size_ = static_cast<std::size_t>(info.st_size);
  file->device_ = info.st_dev;
  file->inode_ = info.st_ino;
  file->modified_ns_ = modified_ns(info);
  if (file->size_ > 0) {
    void* mapped = mmap(nullptr, file->size_, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) {
      Status status = io_error(describe_errno(path, "map"));
      close(fd);
      return status;
    }
    file->data_ = static_cast<const std::byte*>(mapped);
    install_handler_once();
    for (MapSlot& slot : g_slots) {
      const std::byte* expected = nullptr;
      if (!slot.begin.compare_exchange_strong(expected, file->data_)) continue;
      slot.size.store(file->size_);
      slot.path.store(file->path_.c_str());
      break;
    }
  }
  close(fd);
  return std::shared_ptr<const MappedFile>(std::move(file));
}

Result<std::string> read_text_file(const std::string& path, std::int64_t limit_bytes) {
  FATHOM_ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, open_mapped_file(path));
  const std::span<const std::byte> bytes = file->bytes();
  if (static_cast<std::int64_t>(bytes.size()) > limit_bytes) {
    return invalid_argument(path + " has " + std::to_string(bytes.size()) + " bytes, expected at most " +
                            std::to_string(limit_bytes));
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Status check_replaceable(const std::string& path) {
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return {};
  const char* found = S_ISDIR(info.st_mode)   ? "a directory"
                      : S_ISLNK(info.st_mode) ? "a symbolic link"
                                              : "a device, pipe or socket";
  return invalid_argument("cannot write " + path + ": found " + found +
                          ", expected a regular file or a path that does not exist yet");
}

Status write_file_atomically(const std::string& path, std::span<const std::byte> contents) {
  FATHOM_RETURN_IF_ERROR(check_replaceable(path));
  const std::string temporary = path + ".partial." + std::to_string(getpid());
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return io_error(describe_errno(path, "create"));
  std::size_t written = 0;
  while (written < contents.size()) {
    const ssize_t n = ::write(fd, contents.data() + written, contents.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      Status status = io_error(describe_errno(path, "write") + " (" + std::to_string(written) + " of " +
                               std::to_string(contents.size()) + " bytes written)");
      close(fd);
      unlink(temporary.c_str());
      return status;
    }
    written += static_cast<std::size_t>(n);
  }
  if (close(fd) != 0 || rename(temporary.c_str(), path.c_str()) != 0) {
    Status status = io_error(describe_errno(path, "finish writing"));
    unlink(temporary.c_str());
    return status;
  }
  return {};
}

}  // namespace fathom
