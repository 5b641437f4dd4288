// Planted truths on the card: kernels that spin for a known time, in a captured graph of two streams, through the
// profiler's own records, attribution, exposed time and comparison.
#include <cuda_runtime.h>
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <vector>

#include "device.h"
#include "profile/attribute.h"
#include "profile/compare.h"
#include "profile/device_timeline.h"
#include "profile/exposed.h"

namespace fathom::gpu {
namespace {

// The planted operations, each a kernel of its own: template argument is the place in this list.
constexpr const char* kOperations[] = {"sparse_attention", "index_scores", "moe_experts", "linear", "cast"};

template <int kOperation>
__global__ void spin(std::int64_t cycles, float* out) {
  const std::int64_t begin = clock64();
  while (clock64() - begin < cycles) {
  }
  if (threadIdx.x == 0) out[kOperation] = 1.5f * static_cast<float>(kOperation) + 1.0f;
}

struct Work {
  int operation = 0;
  double us = 0;
  bool parallel = false;  // on the second stream, from here to the step's end
};

void ok(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

class SpinningStep final : public RepeatableStep {
 public:
  explicit SpinningStep(std::vector<Work> work) : work_(std::move(work)) {
    ok(cudaStreamCreateWithFlags(&main_, cudaStreamNonBlocking));
    ok(cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking));
    for (cudaEvent_t& event : events_) ok(cudaEventCreate(&event));
    ok(cudaMalloc(&out_, sizeof host_));
    launch(work_[0].operation, 1'000'000);
    ok(cudaEventRecord(events_[0], main_));
    launch(work_[0].operation, 4'000'000);
    ok(cudaEventRecord(events_[1], main_));
    cycles_per_us_ = 4e6 / elapsed_us();
  }
  ~SpinningStep() override {
    for (auto& [key, graph] : graphs_) cudaGraphExecDestroy(graph);
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    cudaFree(out_);
    cudaStreamDestroy(main_);
    cudaStreamDestroy(side_);
  }

  Result<Run> run(std::span<const std::string> operations, std::int32_t num_repeats) override {
    const double us = replay(operations, num_repeats);
    std::uint64_t hash = 0;
    for (const float value : host_) hash = hash * 31 + static_cast<std::uint64_t>(value * 2);
    return Run{us, hash};
  }

  // With the records of what ran.
  TimelineStep next() {
    EXPECT_TRUE(recorder_->take().ok());
    const double us = replay({}, 1);
    TimelineStep step;
    step.num_tokens = step.num_sequences = 4;
    step.committed_tokens = 4;
    step.on_device = true;
    double first_us = 1e30, last_us = 0;
    const auto records = recorder_->take();
    EXPECT_TRUE(records.ok());
    for (const DeviceRecord& record : *records) {
      if (record.kind != NodeKind::kKernel) continue;
      first_us = std::min(first_us, record.begin_us);
      last_us = std::max(last_us, record.end_us);
    }
    for (const DeviceRecord& record : *records) {
      if (record.kind != NodeKind::kKernel) continue;
      const std::size_t digit = record.kernel.find_first_of("0123456789", record.kernel.find("spin"));
      TimelineCall call;
      call.operation = kOperations[record.kernel.at(digit) - '0'];
      call.variant = "planted";
      call.kernel = bare_kernel_name(record.kernel);
      call.lane = record.stream;
      call.layer = 0;
      call.begin_us = record.begin_us - first_us;
      call.time_us = record.end_us - record.begin_us;
      call.bytes = 1e6;
      step.calls.push_back(std::move(call));
    }
    std::sort(step.calls.begin(), step.calls.end(),
              [](const TimelineCall& a, const TimelineCall& b) { return a.begin_us < b.begin_us; });
    EXPECT_EQ(step.calls.size(), work_.size());
    step.total_us = std::max(us, last_us - first_us);
    step.phases.push_back({"forward", 0, step.total_us, true});
    return step;
  }

  ProfileReport report(std::int32_t num_repeats, std::int32_t num_steps) {
    replay({}, 1);  // captures it
    Result<std::unique_ptr<DeviceRecorder>> opened = open_cupti();
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    recorder_ = std::move(*opened);
    for (int i = 0; i < 3; ++i) next();
    std::vector<std::vector<TimelineStep>> repeats(static_cast<std::size_t>(num_repeats));
    for (auto& repeat : repeats) {
      for (std::int32_t i = 0; i < num_steps; ++i) repeat.push_back(next());
    }
    recorder_.reset();
    ProfileReport made;
    made.run.backend = "cuda";
    made.run.device = device_name();
    made.run.numerics = "serve";
    made.run.batch_sequences = 4;
    made.run.num_repeats = num_repeats;
    made.run.num_steps = num_steps;
    attribute_repeats(repeats, {}, made);
    return made;
  }

 private:
  void launch(int operation, std::int64_t cycles, cudaStream_t stream = nullptr) {
    if (stream == nullptr) stream = main_;
    switch (operation) {
      case 0: spin<0><<<1, 32, 0, stream>>>(cycles, out_); break;
      case 1: spin<1><<<1, 32, 0, stream>>>(cycles, out_); break;
      case 2: spin<2><<<1, 32, 0, stream>>>(cycles, out_); break;
      case 3: spin<3><<<1, 32, 0, stream>>>(cycles, out_); break;
      default: spin<4><<<1, 32, 0, stream>>>(cycles, out_); break;
    }
  }
  double elapsed_us() {
    ok(cudaStreamSynchronize(main_));
    float ms = 0;
    ok(cudaEventElapsedTime(&ms, events_[0], events_[1]));
    return 1000.0 * static_cast<double>(ms);
  }
  double replay(std::span<const std::string> operations, std::int32_t num_repeats) {
    std::vector<std::int32_t> counts;
    for (const Work& work : work_) {
      const bool named =
          std::find(operations.begin(), operations.end(), kOperations[work.operation]) != operations.end();
      counts.push_back(named ? num_repeats : 1);
    }
    cudaGraphExec_t& graph = graphs_[counts];
    if (graph == nullptr) graph = capture(counts);
    ok(cudaMemsetAsync(out_, 0, sizeof host_, main_));
    ok(cudaEventRecord(events_[0], main_));
    ok(cudaGraphLaunch(graph, main_));
    ok(cudaEventRecord(events_[1], main_));
    const double us = elapsed_us();
    ok(cudaMemcpy(host_, out_, sizeof host_, cudaMemcpyDeviceToHost));
    return us;
  }
  cudaGraphExec_t capture(const std::vector<std::int32_t>& counts) {
    for (const Work& work : work_) launch(work.operation, 1);  // loads it
    ok(cudaStreamBeginCapture(main_, cudaStreamCaptureModeThreadLocal));
    bool forked = false;
    for (std::size_t i = 0; i < work_.size(); ++i) {
      if (work_[i].parallel) {
        ok(cudaEventRecord(events_[2], main_));
        ok(cudaStreamWaitEvent(side_, events_[2], 0));
        forked = true;
      }
      for (std::int32_t n = 0; n < counts[i]; ++n) {
        launch(work_[i].operation, static_cast<std::int64_t>(work_[i].us * cycles_per_us_),
               work_[i].parallel ? side_ : main_);
      }
    }
    if (forked) {
      ok(cudaEventRecord(events_[3], side_));
      ok(cudaStreamWaitEvent(main_, events_[3], 0));
    }
    cudaGraph_t graph = nullptr;
    ok(cudaStreamEndCapture(main_, &graph));
    cudaGraphExec_t exec = nullptr;
    ok(cudaGraphInstantiate(&exec, graph, 0));
    cudaGraphDestroy(graph);
    return exec;
  }

  std::vector<Work> work_;
  cudaStream_t main_ = nullptr, side_ = nullptr;
  cudaEvent_t events_[4] = {};
  float* out_ = nullptr;
  float host_[8] = {};
  double cycles_per_us_ = 1000;
  std::map<std::vector<std::int32_t>, cudaGraphExec_t> graphs_;
  std::unique_ptr<DeviceRecorder> recorder_;
};

constexpr double kPlanted_us = 300;

std::vector<Work> plain_work() { return {{0, 300}, {3, 200}, {2, 400}}; }

double share(const ProfileReport& report, const std::string& operation, bool critical) {
  double own = 0, all = 0;
  for (const ReportRow& row : report.rows) {
    const double us = critical ? row.total_critical_us() : row.total_us();
    all += us;
    own += row.operation == operation ? us : 0;
  }
  return own / all;
}

ExposedTime exposed_of(SpinningStep& step) {
  const std::vector<ExposedTarget> targets = {{"planted", "index_scores", {"index_scores"}, kPlanted_us, false}};
  ExposedOptions options;
  options.num_rounds = 25;
  options.max_seconds = 5;
  const Result<ExposedResult> result = measure_exposed(step, targets, options);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result->entries.at(0).exposed;
}

void print(const char* what, const ExposedTime& exposed, double share_of_summed, double share_of_path) {
  std::printf("%s: %.1f %% of the summed time, %.1f %% of the critical path, exposed %.2f [%.2f, %.2f] us\n", what,
              100 * share_of_summed, 100 * share_of_path, exposed.us, exposed.low_us, exposed.high_us);
}

TEST(Planted, a_kernel_on_a_parallel_stream_has_a_large_share_and_no_exposed_time) {
  FATHOM_NEEDS_GPU();
  std::vector<Work> work = plain_work();
  work.insert(work.begin(), {1, kPlanted_us, true});
  SpinningStep step(work);
  const ProfileReport report = step.report(3, 10);
  const double summed = share(report, "index_scores", false), path = share(report, "index_scores", true);
  const ExposedTime exposed = exposed_of(step);
  print("beside 900 us", exposed, summed, path);
  EXPECT_NEAR(summed, kPlanted_us / 1200, 0.02);
  EXPECT_LT(path, 0.005);
  EXPECT_LT(std::fabs(exposed.us), 0.02 * kPlanted_us);
  EXPECT_NEAR(report.accounted_us(), report.total_step_us(), 0.01 * report.total_step_us());
}

TEST(Planted, the_same_kernel_on_the_critical_path_is_predicted_within_a_tenth) {
  FATHOM_NEEDS_GPU();
  std::vector<Work> work = plain_work();
  work.insert(work.begin(), {1, kPlanted_us, false});
  SpinningStep with(work), without(plain_work());
  const ExposedTime exposed = exposed_of(with);
  const ProfileReport report = with.report(3, 10);
  std::vector<double> saved;
  for (int i = 0; i < 40; ++i) {
    saved.push_back(with.run({}, 1)->step_us - without.run({}, 1)->step_us);
  }
  const double measured = median_interval(saved, 0.95).us;
  print("on the path", exposed, share(report, "index_scores", false), share(report, "index_scores", true));
  std::printf("measured saving without it: %.2f us\n", measured);
  EXPECT_TRUE(is_resolved(exposed));
  EXPECT_NEAR(exposed.us, measured, 0.1 * measured);
  EXPECT_NEAR(measured, kPlanted_us, 0.1 * kPlanted_us);
}

TEST(Planted, a_cast_before_a_gemm_is_named_as_what_rose) {
  FATHOM_NEEDS_GPU();
  SpinningStep before({{0, 300}, {3, 400}, {2, 400}}), after({{0, 300}, {4, 124}, {3, 200}, {2, 400}});
  const Comparison c = compare_reports(before.report(4, 10), after.report(4, 10), "before", "after");
  std::fputs(comparison_text(c, 10).c_str(), stdout);
  EXPECT_EQ(c.verdict, Verdict::kFaster);
  ASSERT_FALSE(c.risen().empty());
  EXPECT_EQ(c.risen().front()->label(), "cast");
  ASSERT_FALSE(c.fallen().empty());
  EXPECT_EQ(c.fallen().front()->label(), "linear");
}

}  // namespace
}  // namespace fathom::gpu
