// Steps whose work is known, so that what a profile says of them can be held to it. Two doubles of one plan:
// VirtualStep computes its times (the logic, with noise that is drawn), ThreadedStep runs planted variants on the CPU
// backend's two threads through run_operation. Both hand over a timeline and can be repeated, as the model's step does.
#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/thread_time.h"
#include "ops/op_kind.h"
#include "ops/registry.h"
#include "profile/attribute.h"
#include "profile/exposed.h"
#include "profile/timeline.h"

namespace fathom {

struct PlantedWork {
  std::string operation;
  double us = 0;
  std::int32_t lane = 0;  // 0: the main one; 1: a parallel thread or stream
  bool joins = false;     // begins when every lane has ended
  std::string kernel = "planted";
  double bytes = 1e6;
};

struct PlantedPlan {
  std::vector<PlantedWork> work;  // in launch order
  double schedule_us = 20, sample_us = 30, detokenise_us = 5;

  PlantedPlan& add(PlantedWork added) {
    work.push_back(std::move(added));
    return *this;
  }
};

inline std::int32_t planted_count(std::span<const std::string> operations, const std::string& name,
                                  std::int32_t num_repeats) {
  return std::find(operations.begin(), operations.end(), name) != operations.end() ? num_repeats : 1;
}

// Host phases around the forward pass, which takes `forward_us` and holds the calls (begins relative to it).
inline TimelineStep planted_timeline(const PlantedPlan& plan, double forward_us, std::vector<TimelineCall> calls,
                                     bool on_device) {
  TimelineStep step;
  step.num_tokens = step.num_sequences = 4;
  step.committed_tokens = 4;
  step.on_device = on_device;
  double at = 0;
  const auto phase = [&](const char* name, double us, bool container) {
    step.phases.push_back({name, at, us, container});
    at += us;
  };
  phase("schedule", plan.schedule_us, false);
  for (TimelineCall& call : calls) call.begin_us += at;
  phase("forward", forward_us, true);
  phase("sample", plan.sample_us, false);
  phase("detokenise", plan.detokenise_us, false);
  step.total_us = at;
  step.calls = std::move(calls);
  return step;
}

class VirtualStep final : public RepeatableStep {
 public:
  // Each call takes up to `noise` of its time more, drawn anew.
  VirtualStep(PlantedPlan plan, double noise, std::uint64_t seed)
      : plan_(std::move(plan)), noise_(noise), random_(seed) {}

  Result<Run> run(std::span<const std::string> operations, std::int32_t num_repeats) override {
    const TimelineStep step = next(operations, num_repeats);
    // Work that is left out is missing from the outputs.
    return Run{step.total_us, num_repeats == 0 ? 2u : 1u};
  }
  TimelineStep next(std::span<const std::string> operations = {}, std::int32_t num_repeats = 1) {
    std::map<std::int32_t, double> lane_ends;
    std::vector<TimelineCall> calls;
    double last = 0;
    for (const PlantedWork& work : plan_.work) {
      double& end = lane_ends[work.lane];
      if (work.joins) end = last;
      TimelineCall call;
      call.begin_us = end;
      call.time_us =
          planted_count(operations, work.operation, num_repeats) * work.us * (1 + noise_ * uniform_(random_));
      call.lane = work.lane;
      call.layer = 0;
      call.operation = work.operation;
      call.variant = call.kernel = work.kernel;
      call.bytes = work.bytes;
      end = call.end_us();
      last = std::max(last, end);
      calls.push_back(std::move(call));
    }
    return planted_timeline(plan_, last, std::move(calls), /*on_device=*/true);
  }

 private:
  PlantedPlan plan_;
  double noise_;
  std::mt19937_64 random_;
  std::uniform_real_distribution<double> uniform_{0, 1};
};

// What a planted operation spends and a ThreadedStep counts. kThreadCpu: the thread's own time, which other programs on
// the machine do not stretch. kWall: the wall's, most of it slept away as one who waits for a device.
enum class PlantedClock : std::uint8_t { kThreadCpu, kWall };

inline double planted_now_us(PlantedClock clock) {
  if (clock == PlantedClock::kThreadCpu) return thread_time_us();
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

struct PlantedOpPlan {
  std::int64_t workspace_bytes = 0;
};
struct PlantedOpArgs {
  double us = 0;
  PlantedClock clock = PlantedClock::kThreadCpu;
  std::uint64_t* out = nullptr;
};

// Takes `us` by its clock, and writes the same bits each time.
inline void run_planted(ExecutionContext&, const PlantedOpPlan&, const PlantedOpArgs& args) {
  constexpr double kWatched_us = 150;
  const double end = planted_now_us(args.clock) + args.us;
  if (args.clock == PlantedClock::kWall && args.us > kWatched_us) {
    std::this_thread::sleep_for(std::chrono::microseconds(static_cast<std::int64_t>(args.us - kWatched_us)));
  }
  while (planted_now_us(args.clock) < end) {
  }
  *args.out = static_cast<std::uint64_t>(args.us) * 0x9e3779b97f4a7c15ull + 1;
}

// Lanes 0 and 1 on the two threads of the CPU backend. No joins: the step ends when both have. By kThreadCpu the times
// of run_operation are replaced by the thread's own, counted from the lane's begin.
class ThreadedStep final : public RepeatableStep {
 public:
  ThreadedStep(PlantedPlan plan, PlantedClock clock)
      : plan_(std::move(plan)), clock_(clock), backend_(2), outputs_(plan_.work.size()) {
    OpRegistry registry;
    for (const PlantedWork& work : plan_.work) {
      registry.add(make_variant(*parse_op_name(work.operation), "planted", BackendKind::kCpu, run_planted));
    }
    variants_ = *VariantTable::choose(registry, BackendKind::kCpu);
  }

  Result<Run> run(std::span<const std::string> operations, std::int32_t num_repeats) override {
    const TimelineStep step = next(operations, num_repeats);
    std::uint64_t hash = 0;
    for (const std::uint64_t output : outputs_) hash = hash * 31 + output;
    return Run{step.total_us, hash};
  }
  TimelineStep next(std::span<const std::string> operations = {}, std::int32_t num_repeats = 1) {
    std::fill(outputs_.begin(), outputs_.end(), 0);
    Lane lanes[2];
    ExecutionContext context = backend_.make_context();
    context.variants = &variants_;
    for (const std::string& name : operations) {
      context.repeats[static_cast<std::size_t>(*parse_op_name(name))] = num_repeats;
    }
    const double begin = planted_now_us(PlantedClock::kWall);
    const auto origin = std::chrono::steady_clock::now();
    context.threads->run(2, [&](std::int64_t lane) {
      lanes[lane].trace.origin = origin;
      run_lane(context, static_cast<std::int32_t>(lane), lanes[lane]);
    });
    double forward_us = planted_now_us(PlantedClock::kWall) - begin;
    if (clock_ == PlantedClock::kThreadCpu) forward_us = std::max(lanes[0].cpu_us, lanes[1].cpu_us);
    std::vector<TimelineCall> calls;
    for (std::int32_t lane = 0; lane < 2; ++lane) {
      for (TimelineCall& call : step_of_trace(lanes[lane].trace).calls) {
        call.lane = lane;
        calls.push_back(std::move(call));
      }
    }
    return planted_timeline(plan_, forward_us, std::move(calls), /*on_device=*/false);
  }

 private:
  struct Lane {
    StepTrace trace;
    double cpu_us = 0;
  };
  void run_lane(ExecutionContext context, std::int32_t number, Lane& lane) {
    context.trace = &lane.trace;
    const double begin = planted_now_us(PlantedClock::kThreadCpu);
    double at = begin;
    for (std::size_t i = 0; i < plan_.work.size(); ++i) {
      const PlantedWork& work = plan_.work[i];
      if (work.lane != number) continue;
      run_operation(context, *parse_op_name(work.operation), PlantedOpPlan{},
                    PlantedOpArgs{work.us, clock_, &outputs_[i]}, [&] { return OpCost{work.bytes, 0}; });
      const double end = planted_now_us(PlantedClock::kThreadCpu);
      if (clock_ == PlantedClock::kThreadCpu) {
        OpSample& sample = lane.trace.samples.back();
        sample.begin_us = at - begin;
        sample.time_us = end - at;
      }
      at = end;
    }
    lane.cpu_us = at - begin;
  }

  PlantedPlan plan_;
  PlantedClock clock_;
  CpuBackend backend_;
  VariantTable variants_;
  std::vector<std::uint64_t> outputs_;
};

// A report as `fathom profile` makes it, from `num_repeats` times `num_steps` timelines.
template <typename Step>
ProfileReport planted_report(Step& step, std::int32_t num_repeats, std::int32_t num_steps) {
  std::vector<std::vector<TimelineStep>> repeats(static_cast<std::size_t>(num_repeats));
  for (auto& repeat : repeats) {
    for (std::int32_t i = 0; i < num_steps; ++i) repeat.push_back(step.next());
  }
  ProfileReport report;
  report.run.backend = "cpu";
  report.run.device = "planted";
  report.run.numerics = "serve";
  report.run.num_threads = 2;
  report.run.batch_sequences = 4;
  report.run.num_repeats = num_repeats;
  report.run.num_steps = num_steps;
  attribute_repeats(repeats, {}, report);
  return report;
}

}  // namespace fathom
