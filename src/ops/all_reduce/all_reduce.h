// all_reduce: the sharding seam (architecture: Pinned 9). It stands after wo_b, the routed experts, the
// index scores, the embedding and the head; with one rank it is the identity and is not launched.
#pragma once

#include "tensor/view.h"

namespace fathom {

// Ranks that add. Threads of one process, or NCCL.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world() const = 0;
  // In place, fp32, ascending rank order; every rank gets the same bits.
  virtual void all_reduce_sum(View values) = 0;
};

struct ExecutionContext;
// No communicator, or one rank: returns at once.
void run_all_reduce(ExecutionContext& context, View values);

}  // namespace fathom
