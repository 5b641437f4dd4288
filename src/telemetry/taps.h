// Named taps: intermediate values handed to whoever asked, under the goldens' names. Free when off.
//
// Names: layerL (streams after layer L, [tokens, hc_mult, hidden]), attnL (attention output after wo_b),
// mlpL (MoE output with the shared expert), topkL (selected entries), routeL (experts; both i32), hc_head, norm,
// logits; L is the layer's index. Draft blocks use mtp.K in place of the number.
#pragma once

#include <string_view>

#include "tensor/view.h"

namespace fathom {

class TapSink {
 public:
  virtual ~TapSink() = default;
  // Asked once per point and step; a sink that answers false costs one virtual call.
  virtual bool wants(std::string_view name) = 0;
  // `value` is host memory that is valid during the call.
  virtual void write(std::string_view name, View value) = 0;
};

}  // namespace fathom
