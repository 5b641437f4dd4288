#include "backend/device_backend.h"

#include <gtest/gtest.h>

#include <cstring>

#include "backend/emulated_device_api.h"
#include "backend/faulty_device_api.h"
#include "ops/registry.h"

namespace fathom {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

// An emulated device whose captures record what launch() names: a stand-in for kernels.
class GraphApi final : public DeviceApi {
 public:
  explicit GraphApi(std::vector<std::string>* ran) : ran_(ran), inner_(make_emulated_device_api(64 * kMiB)) {}

  void launch(const std::string& kernel) {
    if (!capturing_) {
      ran_->push_back(kernel);
      return;
    }
    CapturedNode node;
    node.kind = NodeKind::kKernel;
    node.kernel = kernel;
    add(std::move(node));
  }

  Result<DeviceCard> open() override {
    Result<DeviceCard> card = inner_->open();
    card->replays_graphs = true;
    return card;
  }
  Result<DeviceMemoryInfo> memory_info() override { return inner_->memory_info(); }
  Result<void*> allocate(std::int64_t num_bytes) override { return inner_->allocate(num_bytes); }
  void free(void* data) override { inner_->free(data); }
  Result<void*> allocate_pinned(std::int64_t num_bytes) override { return inner_->allocate_pinned(num_bytes); }
  void free_pinned(void* data) override { inner_->free_pinned(data); }
  Result<void*> create_stream() override { return inner_->create_stream(); }
  void destroy_stream(void* stream) override { inner_->destroy_stream(stream); }
  Status copy(void* to, const void* from, std::int64_t num_bytes, CopyKind kind, void* stream) override {
    return inner_->copy(to, from, num_bytes, kind, stream);
  }
  Status copy_rows(const RowCopies& copies, void* stream) override { return inner_->copy_rows(copies, stream); }
  Status synchronise(void* stream, std::int64_t timeout_us) override { return inner_->synchronise(stream, timeout_us); }
  Status take_launch_error() override { return {}; }
  Result<void*> create_event() override { return inner_->create_event(); }
  void destroy_event(void* event) override { inner_->destroy_event(event); }
  Status record_event(void* event, void* stream) override {
    CapturedNode node;
    node.kind = NodeKind::kEvent;
    if (capturing_) add(std::move(node));
    return inner_->record_event(event, stream);
  }
  Result<double> elapsed_us(void* begin, void* end) override { return inner_->elapsed_us(begin, end); }
  Status begin_capture(void*) override {
    capturing_ = true;
    graph_ = {};
    return {};
  }
  Result<NodeHandle> newest_node(void*) override { return graph_.chain.empty() ? NodeHandle{0} : graph_.chain.back(); }
  Result<DeviceGraph> end_capture(void*) override {
    capturing_ = false;
    if (exchange_nodes) std::swap(graph_.chain[0], graph_.chain[2]);
    graph_.exec = new std::vector<CapturedNode>(graph_.nodes);
    return graph_;
  }
  Status launch_graph(void* exec, void*) override {
    for (const CapturedNode& node : *static_cast<std::vector<CapturedNode>*>(exec)) {
      if (node.kind == NodeKind::kKernel) ran_->push_back(node.kernel);
    }
    return {};
  }
  void destroy_graph(void* exec) override { delete static_cast<std::vector<CapturedNode>*>(exec); }

  bool exchange_nodes = false;

 private:
  void add(CapturedNode node) {
    graph_.chain.push_back(1000 - graph_.chain.size());
    graph_.nodes.push_back(std::move(node));
  }

  std::vector<std::string>* ran_;
  std::unique_ptr<DeviceApi> inner_;
  bool capturing_ = false;
  DeviceGraph graph_;
};

struct NoPlan {
  std::int64_t workspace_bytes = 0;
};
struct Kernels {
  GraphApi* api;
  std::vector<std::string> names;
};
void run_kernels(ExecutionContext&, const NoPlan&, const Kernels& args) {
  for (const std::string& name : args.names) args.api->launch(name);
}

struct Step {
  std::vector<std::string> ran;
  GraphApi* api = nullptr;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<VariantTable> variants;
  ExecutionContext context;

  Step() {
    auto owned = std::make_unique<GraphApi>(&ran);
    api = owned.get();
    backend = *DeviceBackend::open(std::move(owned), {});
    OpRegistry registry;
    registry.add(make_variant(OpKind::kEmbed, "one", BackendKind::kCpu, run_kernels));
    registry.add(make_variant(OpKind::kLinear, "two", BackendKind::kCpu, run_kernels));
    variants = std::make_unique<VariantTable>(*VariantTable::choose(registry, BackendKind::kCpu));
    context = backend->make_context();
    context.variants = variants.get();
  }
  // embed, then in each of two layers a linear of two kernels.
  Status run() {
    return backend->launch_captured({}, context, [this](ExecutionContext& now) {
      const auto cost = [] { return OpCost{7, 9}; };
      now.layer = -1;
      run_operation(now, OpKind::kEmbed, NoPlan{}, Kernels{api, {"e"}}, cost);
      for (now.layer = 0; now.layer < 2; ++now.layer) {
        run_operation(now, OpKind::kLinear, NoPlan{}, Kernels{api, {"a", "b"}}, cost);
      }
    });
  }
};

TEST(DeviceBackend, a_captured_step_names_the_call_of_every_kernel) {
  Step step;
  ASSERT_TRUE(step.run().ok());
  EXPECT_EQ(step.backend->last_captured(), nullptr);  // a key's first step is not captured
  ASSERT_TRUE(step.run().ok());
  const auto captured = step.backend->last_captured();
  ASSERT_NE(captured, nullptr);
  EXPECT_EQ(captured->fault, "");
  ASSERT_EQ(captured->calls.size(), 3u);
  ASSERT_EQ(captured->nodes.size(), 5u);
  EXPECT_EQ(captured->calls[2].scope.layer, 1);
  EXPECT_EQ(captured->calls[2].scope.operation, "linear");
  EXPECT_EQ(captured->calls[2].scope.variant, "two");
  EXPECT_EQ(captured->calls[2].first_node, 3);
  EXPECT_EQ(captured->calls[2].num_nodes, 2);
  EXPECT_EQ(captured->calls[0].cost.bytes, 7);
  EXPECT_EQ(captured->nodes[4].kernel, "b");
  EXPECT_EQ(captured->nodes[4].call, 2);
  step.ran.clear();
  ASSERT_TRUE(step.run().ok());
  EXPECT_EQ(step.ran, (std::vector<std::string>{"e", "a", "b", "a", "b"}));
  EXPECT_EQ(step.backend->last_captured(), captured);
  EXPECT_FALSE(step.backend->segment_times_us(*captured).ok());
  step.backend->drop_captured();
  EXPECT_TRUE(step.backend->captured_steps().empty());
}

TEST(DeviceBackend, repeats_and_segments_are_captured_apart) {
  Step step;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(step.run().ok());
  step.context.repeats[static_cast<std::size_t>(OpKind::kLinear)] = 3;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(step.run().ok());
  const auto repeated = step.backend->last_captured();
  EXPECT_EQ(repeated->calls[1].num_repeats, 3);
  EXPECT_EQ(repeated->calls[1].num_nodes, 6);
  EXPECT_EQ(repeated->nodes.size(), 13u);
  step.context.segments = SegmentTiming::kLayers;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(step.run().ok());
  const auto timed = step.backend->last_captured();
  EXPECT_EQ(timed->fault, "");
  ASSERT_EQ(timed->segments.size(), 3u);
  EXPECT_EQ(timed->segments[2].layer, 1);
  EXPECT_EQ(timed->segments[2].first_call, 2);
  EXPECT_EQ(timed->nodes.size(), 17u);
  const Result<std::vector<double>> times = step.backend->segment_times_us(*timed);
  ASSERT_TRUE(times.ok()) << times.status().message();
  EXPECT_EQ(times->size(), 3u);
  EXPECT_EQ(step.backend->captured_steps().size(), 3u);
}

TEST(DeviceBackend, a_graph_in_another_order_has_no_map) {
  Step step;
  step.api->exchange_nodes = true;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(step.run().ok());
  EXPECT_NE(step.backend->last_captured()->fault, "");
  EXPECT_TRUE(step.backend->last_captured()->nodes.empty());
}

TEST(DeviceBackend, what_ran_as_a_graph_is_captured_with_segments_at_once) {
  Step step;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(step.run().ok());
  const auto plain = step.backend->last_captured();
  ASSERT_NE(plain, nullptr);
  step.context.segments = SegmentTiming::kLayers;
  ASSERT_TRUE(step.run().ok());
  const auto timed = step.backend->last_captured();
  ASSERT_NE(timed, nullptr);
  EXPECT_NE(timed->id, plain->id);
  EXPECT_EQ(step.backend->segment_times_us(*timed)->size(), 3u);
}

TEST(DeviceBackend, rows_move_by_lists_on_the_device) {
  const auto backend = *DeviceBackend::open(make_emulated_device_api(64 * kMiB), {});
  const auto place = [&](std::vector<std::int32_t> values) {
    DeviceMemory memory = *backend->allocate(std::ssize(values) * 4, "a test");
    EXPECT_TRUE(
        backend->upload(memory.data, reinterpret_cast<const std::byte*>(values.data()), std::ssize(values) * 4).ok());
    return memory;
  };
  const auto row = [](std::int32_t value) { return std::vector<std::int32_t>(4, value); };
  const auto rows = [&](std::vector<std::int32_t> firsts) {
    std::vector<std::int32_t> all;
    for (const std::int32_t first : firsts) all.insert(all.end(), 4, first);
    return place(all);
  };
  const DeviceMemory from = rows({10, 11, 12}), also = rows({20, 21}), to = rows({0, 0, 0, 0});
  const DeviceMemory from_rows = place({2, -1, -2, 0}), to_rows = place({3, 0, -1, 1});
  const auto list = [](const DeviceMemory& memory) { return reinterpret_cast<const std::int32_t*>(memory.data); };
  RowCopies copies{to.data, from.data, also.data, list(from_rows), list(to_rows), 4, 16};
  ASSERT_TRUE(backend->copy_rows(copies).ok());
  std::vector<std::int32_t> got(16);
  const auto fetch = [&] {
    EXPECT_TRUE(backend->download(reinterpret_cast<std::byte*>(got.data()), to.data, 64).ok());
    return std::vector<std::int32_t>{got[0], got[4], got[8], got[15]};
  };
  EXPECT_EQ(fetch(), (std::vector<std::int32_t>{20, 10, 0, 12}));
  EXPECT_EQ(std::vector<std::int32_t>(got.begin(), got.begin() + 4), row(20));
  copies.to_rows = nullptr;
  ASSERT_TRUE(backend->copy_rows(copies).ok());
  EXPECT_EQ(fetch(), (std::vector<std::int32_t>{12, 20, 21, 10}));
}

std::unique_ptr<Backend> faulty(const char* text, std::int64_t timeout_us = 1000) {
  return *DeviceBackend::open(make_faulty_device_api(make_emulated_device_api(64 * kMiB), *parse_device_fault(text)),
                              {timeout_us, 1});
}

TEST(DeviceBackend, faults_arrive_as_statuses) {
  for (const char* kind : {"no-device", "old-driver"}) {
    const auto opened =
        DeviceBackend::open(make_faulty_device_api(make_emulated_device_api(64 * kMiB), *parse_device_fault(kind)), {});
    EXPECT_EQ(opened.status().code(), StatusCode::kUnavailable) << kind;
  }
  std::unique_ptr<Backend> backend = faulty("out-of-memory:2");
  EXPECT_TRUE(backend->allocate(10, "a").ok());
  const auto refused = backend->allocate(10, "the pools");
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("the pools"), std::string::npos);
  EXPECT_TRUE(backend->allocate(10, "c").ok());  // the device goes on

  backend = faulty("sticky:2");
  EXPECT_TRUE(backend->finish().ok());
  EXPECT_EQ(backend->finish().code(), StatusCode::kUnavailable);
  EXPECT_FALSE(backend->finish().ok());
  EXPECT_FALSE(backend->allocate(10, "d").ok());

  backend = faulty("hang:1");
  const Status hung = backend->finish();
  EXPECT_EQ(hung.code(), StatusCode::kUnavailable);
  EXPECT_NE(hung.message().find("has not answered"), std::string::npos);
}

TEST(DeviceBackend, memory_of_its_own_has_an_end) {
  auto opened = DeviceBackend::open(make_emulated_device_api(kMiB), {});
  ASSERT_TRUE(opened.ok());
  Backend& backend = **opened;
  EXPECT_FALSE(backend.allocate(2 * kMiB, "too much").ok());
  {
    auto memory = backend.allocate(kMiB / 2, "half");
    ASSERT_TRUE(memory.ok());
    EXPECT_EQ(*backend.free_memory_bytes(), kMiB / 2);
  }
  EXPECT_EQ(*backend.free_memory_bytes(), kMiB);
}

TEST(DeviceFault, texts) {
  EXPECT_EQ(parse_device_fault("sticky:40")->call, 40);
  EXPECT_EQ(parse_device_fault("hang")->kind, DeviceFaultKind::kHang);
  for (const char* bad : {"", "sticky:", "sticky:0", "sticky:4x", "fire:1"}) {
    EXPECT_FALSE(parse_device_fault(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace fathom
