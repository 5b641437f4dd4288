#include "backend/captured_step.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

std::vector<CapturedNode> kernels(std::size_t count) {
  std::vector<CapturedNode> nodes(count);
  for (CapturedNode& node : nodes) node.kind = NodeKind::kKernel, node.kernel = "k";
  return nodes;
}

std::vector<CapturedCall> three_calls() {
  std::vector<CapturedCall> calls(3);
  calls[0].scope = {-1, "embed", "simt"};
  calls[1].scope = {0, "linear", "mma"};
  calls[2].scope = {0, "all_reduce", "identity"};
  return calls;
}

TEST(CapturedStep, nodes_belong_to_the_call_that_launched_them) {
  const std::vector<NodeHandle> chain{70, 50, 60, 40};
  const std::vector<CallMarks> marks{{0, 70}, {50, 40}, {40, 40}};
  std::vector<CapturedCall> calls = three_calls();
  std::vector<CapturedNode> nodes = kernels(4);
  nodes[1].kind = NodeKind::kEvent;  // between the calls
  ASSERT_TRUE(attribute_nodes(chain, marks, calls, nodes).ok());
  EXPECT_EQ(calls[0].first_node, 0);
  EXPECT_EQ(calls[0].num_nodes, 1);
  EXPECT_EQ(calls[1].first_node, 2);
  EXPECT_EQ(calls[1].num_nodes, 2);
  EXPECT_EQ(calls[2].num_nodes, 0);
  const std::vector<std::int32_t> want{0, -1, 1, 1};
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_EQ(nodes[i].call, want[i]) << i;
}

TEST(CapturedStep, launch_order_is_the_check) {
  const std::vector<NodeHandle> chain{70, 50, 60, 40};
  std::vector<CapturedCall> calls = three_calls();
  std::vector<CapturedNode> nodes = kernels(4);
  // Two calls exchanged; a node of another graph; a kernel between two calls.
  EXPECT_FALSE(attribute_nodes(chain, std::vector<CallMarks>{{50, 40}, {0, 50}, {40, 40}}, calls, nodes).ok());
  EXPECT_FALSE(attribute_nodes(chain, std::vector<CallMarks>{{0, 70}, {70, 99}, {40, 40}}, calls, nodes).ok());
  nodes = kernels(4);
  EXPECT_FALSE(attribute_nodes(chain, std::vector<CallMarks>{{0, 70}, {50, 40}, {40, 40}}, calls, nodes).ok());
}

}  // namespace
}  // namespace fathom
