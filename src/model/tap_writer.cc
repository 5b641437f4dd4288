#include "model/tap_writer.h"

#include <string>

#include "base/log.h"
#include "tensor/buffer.h"

namespace fathom {

void TapWriter::write_value(const ExecutionContext& context, std::string_view point, std::int32_t layer,
                            const View& value) const {
  std::string name(point);
  if (layer >= num_trunk_layers_) {
    name += "mtp." + std::to_string(layer - num_trunk_layers_);
  } else if (layer >= 0) {
    name += std::to_string(layer);
  }
  if (!context.taps->wants(name)) return;
  if (backend_.is_host_memory()) {
    context.taps->write(name, value);
    return;
  }
  const Buffer host(value.num_bytes());
  const Status copied = backend_.download(host.data(), value.data, value.num_bytes());
  if (!copied.ok()) {
    log_error("tap " + name + ": " + copied.message());
    return;
  }
  context.taps->write(name, make_view(host.data(), value.dtype, value.shape));
}

}  // namespace fathom
