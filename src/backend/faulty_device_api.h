// A DeviceApi that lets one call of another fail as a broken device would (architecture: Pinned 11).
#pragma once

#include <memory>
#include <string_view>

#include "backend/device_api.h"

namespace fathom {

enum class DeviceFaultKind : std::uint8_t {
  kNoDevice,     // open() finds nothing
  kOldDriver,    // open() finds a driver that is too old
  kOutOfMemory,  // the allocation or launch fails, the device goes on
  kSticky,       // the call and every later one fail
  kHang,         // no wait is answered any more: each ends by its own timeout, or never
};

struct DeviceFault {
  DeviceFaultKind kind = DeviceFaultKind::kSticky;
  // Which of the calls of its site: open (no-device, old-driver), allocate (out-of-memory), synchronise (others).
  std::int64_t call = 1;
};

// "sticky:40": the kind, a colon, the number of the call from 1 on. Kinds: no-device, old-driver, out-of-memory,
// sticky, hang.
Result<DeviceFault> parse_device_fault(std::string_view text);

std::unique_ptr<DeviceApi> make_faulty_device_api(std::unique_ptr<DeviceApi> inner, const DeviceFault& fault);

}  // namespace fathom
