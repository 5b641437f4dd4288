// A captured step as data: every node of its graph, in launch order, with the operation call that launched it.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "telemetry/step_trace.h"

namespace fathom {

// Steps that launch the same kernels with the same grids: one captured graph serves them all.
struct CaptureKey {
  std::int32_t owner = 0;  // whose arrays the launches name; the caller's own numbering
  std::int32_t num_tokens = 0;
  std::int32_t num_sequences = 0;
  std::int32_t num_logit_rows = 0;
  bool draws = false;            // with the drawing of tokens
  bool short_sequences = false;  // StepRows::short_sequences
  auto operator<=>(const CaptureKey&) const = default;
};

enum class NodeKind : std::uint8_t { kKernel, kCopy, kSet, kEvent, kOther };

struct CapturedNode {
  NodeKind kind = NodeKind::kOther;
  std::string kernel;           // the device function's name, demangled; empty where kind is no kernel
  std::int64_t num_blocks = 0;  // of its grid
  std::int32_t block_threads = 0;
  std::int32_t call = -1;  // index in CapturedStep::calls; -1: launched outside an operation
};

// One call of an operation, its repeats included.
struct CapturedCall {
  OpScope scope;
  std::int32_t num_repeats = 1;
  OpCost cost;                  // of one repeat, at the lengths of the step that was captured
  std::int32_t first_node = 0;  // nodes [first_node, first_node + num_nodes), in launch order
  std::int32_t num_nodes = 0;
};

// A stretch of the step between two events: one layer or one operation call.
struct CapturedSegment {
  std::int32_t layer = -1;  // as in OpScope; -1: before the layers, or the head behind them
  std::int32_t first_call = 0;
  std::int32_t num_calls = 0;
};

struct CapturedStep {
  CaptureKey key;
  std::int64_t id = 0;                    // unlike that of any other captured step of its backend
  std::vector<CapturedCall> calls;        // in launch order
  std::vector<CapturedNode> nodes;        // in launch order
  std::vector<CapturedSegment> segments;  // empty unless ExecutionContext::segments asked for them
  std::string fault;                      // why `nodes` is empty though kernels were captured; else empty
};

// Handles of a graph's nodes, as far as this needs them: unlike for unlike nodes, 0 for none.
using NodeHandle = std::uintptr_t;

// What a capture notes at a call's two ends: the newest node then.
struct CallMarks {
  NodeHandle before = 0;  // 0: none yet
  NodeHandle after = 0;
};

// Node ranges for `calls` (as many as `marks`) and calls for `nodes` (as many as `chain`, the nodes in launch order).
// Launch order is the check: the marks must meet the chain in the order of the calls, and every kernel must end in
// a call. Failure: a mark that is not in the chain or lies behind a later one, or a kernel outside all calls.
Status attribute_nodes(std::span<const NodeHandle> chain, std::span<const CallMarks> marks,
                       std::vector<CapturedCall>& calls, std::vector<CapturedNode>& nodes);

}  // namespace fathom
