#include "backend/emulated_device_api.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "base/units.h"

namespace fathom {
namespace {

class EmulatedDeviceApi final : public DeviceApi {
 public:
  explicit EmulatedDeviceApi(std::int64_t total_bytes) : total_bytes_(total_bytes) {}

  Result<DeviceCard> open() override {
    DeviceCard card;
    card.name = "an emulated device";
    card.driver = "none";
    card.is_emulated = true;
    card.replays_graphs = false;
    return card;
  }
  Result<DeviceMemoryInfo> memory_info() override {
    const std::lock_guard lock(mutex_);
    return DeviceMemoryInfo{total_bytes_ - used_bytes_, total_bytes_};
  }
  Result<void*> allocate(std::int64_t num_bytes) override {
    const std::lock_guard lock(mutex_);
    if (used_bytes_ + num_bytes > total_bytes_) return resource_exhausted("out of emulated memory");
    // calloc: pages that nothing touches cost nothing.
    const std::int64_t size = round_up(num_bytes, 256) + 256;
    void* block = std::calloc(1, static_cast<std::size_t>(size));
    if (block == nullptr) return resource_exhausted("out of host memory");
    const auto address = reinterpret_cast<std::uintptr_t>(block);
    auto* data = reinterpret_cast<void*>((address + 255) / 256 * 256);
    used_bytes_ += num_bytes;
    blocks_[data] = {block, num_bytes};
    return data;
  }
  void free(void* data) override {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(data);
    FATHOM_CHECK(found != blocks_.end(), "freed memory was allocated");
    used_bytes_ -= found->second.num_bytes;
    std::free(found->second.block);
    blocks_.erase(found);
  }
  Result<void*> allocate_pinned(std::int64_t num_bytes) override { return allocate(num_bytes); }
  void free_pinned(void* data) override { free(data); }

  Result<void*> create_stream() override { return static_cast<void*>(nullptr); }
  void destroy_stream(void*) override {}
  Status copy(void* to, const void* from, std::int64_t num_bytes, CopyKind, void*) override {
    if (to != from) std::memcpy(to, from, static_cast<std::size_t>(num_bytes));
    return {};
  }
  Status copy_rows(const RowCopies& copies, void*) override {
    for (std::int32_t i = 0; i < copies.count; ++i) {
      const std::int32_t to = copies.to_rows != nullptr ? copies.to_rows[i] : i, from = copies.from_rows[i];
      if (to < 0) continue;
      const std::byte* source =
          from >= 0 ? copies.from + from * copies.row_bytes : copies.also_from + (-1 - from) * copies.row_bytes;
      std::memcpy(copies.to + to * copies.row_bytes, source, static_cast<std::size_t>(copies.row_bytes));
    }
    return {};
  }
  Status synchronise(void*, std::int64_t) override { return {}; }
  Status take_launch_error() override { return {}; }

  // An event is the time at which it was recorded.
  Result<void*> create_event() override { return static_cast<void*>(new std::int64_t(0)); }
  void destroy_event(void* event) override { delete static_cast<std::int64_t*>(event); }
  Status record_event(void* event, void*) override {
    *static_cast<std::int64_t*>(event) = std::chrono::steady_clock::now().time_since_epoch().count();
    return {};
  }
  Result<double> elapsed_us(void* begin, void* end) override {
    const std::chrono::steady_clock::duration time(*static_cast<std::int64_t*>(end) -
                                                   *static_cast<std::int64_t*>(begin));
    return std::chrono::duration<double, std::micro>(time).count();
  }

  Status begin_capture(void*) override { return no_graphs(); }
  Result<NodeHandle> newest_node(void*) override { return no_graphs(); }
  Result<DeviceGraph> end_capture(void*) override { return no_graphs(); }
  Status launch_graph(void*, void*) override { return no_graphs(); }
  void destroy_graph(void*) override {}

 private:
  struct Block {
    void* block = nullptr;
    std::int64_t num_bytes = 0;
  };
  static Status no_graphs() { return failed_precondition("an emulated device replays no graphs"); }

  const std::int64_t total_bytes_;
  std::mutex mutex_;
  std::int64_t used_bytes_ = 0;
  std::unordered_map<void*, Block> blocks_;
};

}  // namespace

std::unique_ptr<DeviceApi> make_emulated_device_api(std::int64_t total_bytes) {
  return std::make_unique<EmulatedDeviceApi>(total_bytes);
}

}  // namespace fathom
