#include "backend/captured_step.h"

#include <unordered_map>

namespace fathom {

Status attribute_nodes(std::span<const NodeHandle> chain, std::span<const CallMarks> marks,
                       std::vector<CapturedCall>& calls, std::vector<CapturedNode>& nodes) {
  FATHOM_CHECK(calls.size() == marks.size() && nodes.size() == chain.size(),
               "marks of each call, a place of each node");
  std::unordered_map<NodeHandle, std::int32_t> ends{{0, 0}};  // handle -> nodes up to and including it
  for (std::size_t i = 0; i < chain.size(); ++i) ends[chain[i]] = static_cast<std::int32_t>(i) + 1;
  const auto name_of = [&](std::size_t call) {
    return std::string(calls[call].scope.operation) + " of layer " + std::to_string(calls[call].scope.layer);
  };
  std::int32_t reached = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto before = ends.find(marks[i].before), after = ends.find(marks[i].after);
    if (before == ends.end() || after == ends.end()) {
      return internal_error("a node that " + name_of(i) + " was captured with is not in its graph");
    }
    if (before->second < reached || after->second < before->second) {
      return internal_error("the graph does not run " + name_of(i) + " where it was launched: node " +
                            std::to_string(before->second) + " after node " + std::to_string(reached));
    }
    calls[i].first_node = before->second;
    calls[i].num_nodes = after->second - before->second;
    for (std::int32_t n = before->second; n < after->second; ++n) {
      nodes[static_cast<std::size_t>(n)].call = static_cast<std::int32_t>(i);
    }
    reached = after->second;
  }
  for (const CapturedNode& node : nodes) {
    if (node.kind == NodeKind::kKernel && node.call < 0) {
      return internal_error("kernel " + node.kernel + " was launched outside every operation");
    }
  }
  return {};
}

}  // namespace fathom
