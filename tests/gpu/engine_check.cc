// The engine on the GPU: whose node is whose in a captured step, repeats and segment times, one answer whatever the
// batch, drafts, and what a fault does.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "device.h"
#include "engine/model_determinism.h"

namespace fathom::gpu {
namespace {

std::string model_path() {
  const char* path = std::getenv("FATHOM_MINI_MODEL");
  return path != nullptr ? path : std::string(FATHOM_SOURCE_DIR) + "/models/mini-v4";
}

ModelBench& bench() {
  static ModelBench instance(DeviceChoice::kCuda, model_path());
  return instance;
}

const std::vector<ModelCase>& cases() {
  static const std::vector<ModelCase> made = bench().make_cases(64, 48);
  return made;
}

std::vector<TokenId> greedy(Session& session, int num_tokens) {
  SampleSpec spec;
  spec.temperature = 0.0f;
  session.reset();
  std::vector<TokenId> tokens;
  Result<SampledToken> token = session.prefill(scripted_prompt(3, 200, 0, 4000), spec);
  while (token.ok()) {
    tokens.push_back(token->token);
    if (std::cmp_equal(tokens.size(), num_tokens)) break;
    token = session.decode(token->token, spec);
  }
  EXPECT_TRUE(token.ok()) << token.status().message();
  return tokens;
}

double total(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

TEST(Model, every_node_of_a_captured_step_has_its_operation) {
  FATHOM_NEEDS_GPU();
  Model& model = bench().model();
  SessionOptions options;
  options.max_context_tokens = 4096;
  const std::unique_ptr<Session> session = *Session::make(model, options);
  const std::vector<TokenId> want = greedy(*session, 24);
  const auto captured = model.backend().last_captured();
  ASSERT_NE(captured, nullptr);
  ASSERT_EQ(captured->fault, "");
  // What the same step launches without a graph, by its trace.
  StepTrace trace;
  session->executor().context().trace = &trace;
  session->executor().context().capture_max_position = options.max_context_tokens - 1;  // as the graph was made for
  SampleSpec spec;
  spec.temperature = 0.0f;
  ASSERT_TRUE(session->decode(want.back(), spec).ok());
  session->executor().context().trace = nullptr;
  session->executor().context().capture_max_position = 0;
  ASSERT_EQ(trace.samples.size(), captured->calls.size());
  std::map<std::int32_t, int> launches;
  std::map<std::string, int> by_operation;
  int num_kernels = 0, num_others = 0;
  for (std::size_t i = 0; i < captured->calls.size(); ++i) {
    const CapturedCall& call = captured->calls[i];
    EXPECT_EQ(call.scope.layer, trace.samples[i].scope.layer) << i;
    EXPECT_EQ(call.scope.operation, trace.samples[i].scope.operation) << i;
    EXPECT_EQ(call.scope.variant, trace.samples[i].scope.variant) << i;
    EXPECT_GE(call.num_nodes, 1) << call.scope.operation;
    // Below index_topk entries there is nothing to score.
    EXPECT_TRUE(call.cost.bytes > 0 || call.scope.operation == "index_scores") << call.scope.operation;
  }
  for (const CapturedNode& node : captured->nodes) {
    if (node.kind != NodeKind::kKernel) {
      ++num_others;
      continue;
    }
    ++num_kernels;
    ASSERT_GE(node.call, 0);
    const OpScope& scope = captured->calls[static_cast<std::size_t>(node.call)].scope;
    ++launches[scope.layer];
    ++by_operation[std::string(scope.operation)];
    EXPECT_NE(node.kernel, "");
    EXPECT_GT(node.num_blocks, 0);
  }
  int most = 0;
  for (const auto& [layer, count] : launches) most = layer >= 0 ? std::max(most, count) : most;
  char text[200];
  std::snprintf(text, sizeof(text),
                "  captured step: %d kernels, %d other nodes, %zu calls, each node attributed; <= %d a layer",
                num_kernels, num_others, captured->calls.size(), most);
  report(text);
  for (const auto& [operation, count] : by_operation) {
    std::snprintf(text, sizeof(text), "    %-18s %d kernels", operation.c_str(), count);
    report(text);
  }
  EXPECT_LE(most, 20);

  // Repeated operations: the same tokens, that many more nodes, and the time that an operation adds.
  const auto timed = [&](OpKind op, int repeats) {
    session->executor().context().repeats[static_cast<std::size_t>(op)] = repeats;
    session->executor().context().segments = SegmentTiming::kLayers;
    EXPECT_EQ(greedy(*session, 24), want) << op_name(op) << " x " << repeats;
    const auto step = model.backend().last_captured();
    const Result<std::vector<double>> times = model.backend().segment_times_us(*step);
    EXPECT_TRUE(times.ok()) << times.status().message();
    EXPECT_EQ(times->size(), step->segments.size());
    int kernels = 0;
    for (const CapturedNode& node : step->nodes) kernels += node.kind == NodeKind::kKernel ? 1 : 0;
    session->executor().context().repeats[static_cast<std::size_t>(op)] = 1;
    return std::pair(times.ok() ? total(*times) : 0.0, kernels);
  };
  const auto [once_us, once_kernels] = timed(OpKind::kLinear, 1);
  EXPECT_EQ(once_kernels, num_kernels);
  for (const OpKind op : {OpKind::kLinear, OpKind::kMoeExperts, OpKind::kSparseAttention, OpKind::kHyperConnection,
                          OpKind::kAttentionRows, OpKind::kSelectTopk, OpKind::kSample}) {
    const auto [us, kernels] = timed(op, 3);
    EXPECT_EQ(kernels, num_kernels + 2 * by_operation[std::string(op_name(op))]) << op_name(op);
    std::snprintf(text, sizeof(text), "    step %.1f us by its segments; %s twice more: %.1f us, so it adds %.1f us",
                  once_us, std::string(op_name(op)).c_str(), us, (us - once_us) / 2);
    report(text);
  }
  session->executor().context().segments = SegmentTiming::kNone;
}

TEST(Model, one_answer_at_every_batch) {
  FATHOM_NEEDS_GPU();
  for (const std::int32_t batch : {1, 16, 64}) {
    ModelBench::Run run;
    run.together = batch > 1;
    run.num_sequences = batch;
    run.num_context_blocks = 512;
    const std::vector<ModelCase> some(cases().begin(), cases().begin() + std::min(64, std::max(8, batch)));
    const EngineStats stats = bench().expect_answers(some, run);
    std::int64_t num_tokens = 0;
    for (const ModelCase& one : some) num_tokens += static_cast<std::int64_t>(one.expected.size());
    char text[160];
    std::snprintf(text, sizeof(text), "  C = %-2d %zu answers, %lld tokens, as computed alone token by token%s", batch,
                  some.size(), static_cast<long long>(num_tokens), HasFailure() ? "  FAILED" : "");
    report(text);
    EXPECT_GT(stats.prefill_tokens, 0);
  }
}

TEST(Model, drafts_change_no_token) {
  FATHOM_NEEDS_GPU();
  const auto expect = [](std::int32_t depth, bool adaptive, std::int32_t batch) {
    ModelBench::Run run;
    run.num_drafts = depth;
    run.adaptive = adaptive;
    run.num_sequences = batch;
    run.num_context_blocks = 512;
    const EngineStats stats = bench().expect_answers({cases().begin(), cases().begin() + std::min(64, 8 + batch)}, run);
    EXPECT_GT(stats.drafted_tokens, adaptive ? 0 : 50);
    char text[160];
    std::snprintf(text, sizeof(text), "  C = %-2d drafts %s %d: %lld drafted, %lld accepted, answers unchanged%s",
                  batch, adaptive ? "adaptive to" : "to depth", depth, static_cast<long long>(stats.drafted_tokens),
                  static_cast<long long>(stats.accepted_tokens), HasFailure() ? "  FAILED" : "");
    report(text);
  };
  for (const std::int32_t depth : {1, 2, 4}) expect(depth, false, 16);
  expect(1, false, 64);
  expect(5, false, 64);
  expect(5, true, 64);
}

// Replayed draft passes propose what launched ones do; both fill up nothing of anybody's cache.
TEST(Model, captured_drafts_are_the_launched_ones) {
  FATHOM_NEEDS_GPU();
  Backend& backend = bench().model().backend();
  for (const std::int32_t depth : {1, 3, 5}) {
    EngineStats stats[2];
    for (const bool capture : {false, true}) {
      ModelBench::Run run;
      run.num_drafts = depth;
      run.together = false;
      run.num_sequences = 16;
      run.num_context_blocks = 512;
      run.capture = capture;
      stats[capture ? 1 : 0] = bench().expect_answers({cases().begin(), cases().begin() + 12}, run);
    }
    EXPECT_EQ(stats[0].drafted_tokens, stats[1].drafted_tokens) << depth;
    EXPECT_EQ(stats[0].accepted_tokens, stats[1].accepted_tokens) << depth;
    int num_passes = 0, num_kernels = 0;
    for (const auto& step : backend.captured_steps()) {
      EXPECT_EQ(step->fault, "");
      bool drafts = false;
      for (const CapturedCall& call : step->calls)
        drafts = drafts || call.scope.operation == "draft_input" || call.scope.operation == "markov_head";
      if (drafts) ++num_passes, num_kernels = static_cast<int>(step->nodes.size());
    }
    EXPECT_GT(num_passes, 0);
    char text[160];
    std::snprintf(text, sizeof(text),
                  "  depth %d: %lld drafted, %lld accepted, launched and replayed; %d draft passes captured, the last "
                  "of %d nodes",
                  depth, static_cast<long long>(stats[1].drafted_tokens),
                  static_cast<long long>(stats[1].accepted_tokens), num_passes, num_kernels);
    report(text);
  }
}

TEST(Model, more_memory_than_there_is) {
  FATHOM_NEEDS_GPU();
  Backend& backend = bench().model().backend();
  const auto refused = backend.allocate(std::int64_t{1} << 46, "a test");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  report("  out of memory: " + refused.status().message());
  EXPECT_TRUE(backend.allocate(1 << 20, "a test").ok());
  EXPECT_TRUE(backend.finish().ok());
}

// Injected into the thin layer over the real run-time: the session's calls fail with the reason, and return.
TEST(Model, faults_of_the_device) {
  FATHOM_NEEDS_GPU();
  for (const char* fault : {"sticky:40", "hang:40", "out-of-memory:30"}) {
    ::setenv("FATHOM_DEVICE_FAULT", fault, 1);
    LoadOptions load;
    load.device = DeviceChoice::kCuda;
    load.device_timeout_us = 300'000;
    Result<LoadedModel> loaded = load_model(model_path(), load);
    Status status = loaded.status();
    if (loaded.ok()) {
      SessionOptions options;
      options.max_context_tokens = 1024;
      Result<std::unique_ptr<Session>> session = Session::make(*loaded->model, options);
      status = session.status();
      SampleSpec spec;
      if (session.ok()) {
        Result<SampledToken> token = (*session)->prefill(scripted_prompt(3, 50, 0, 4000), spec);
        for (int i = 0; i < 400 && token.ok(); ++i) token = (*session)->decode(token->token, spec);
        status = token.status();
      }
    }
    ::unsetenv("FATHOM_DEVICE_FAULT");
    EXPECT_FALSE(status.ok()) << fault;
    report(std::string("  ") + fault + ": " + status.message());
  }
}

}  // namespace
}  // namespace fathom::gpu
