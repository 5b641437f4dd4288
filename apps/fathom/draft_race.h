// Engines that answer the same requests at unlike draft depths, by turns of a few milliseconds: what disturbs the
// machine disturbs all alike, and each run is compared with the others of its own repeat.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "draft_choice.h"
#include "engine/engine.h"
#include "engine/load_model.h"

namespace fathom::app {

// What the steps of one kind took, by part (StepTrace).
struct StepParts {
  std::int64_t num_steps = 0;
  double num_drafts = 0;
  double turn_us = 0, schedule_us = 0, prepare_us = 0, forward_us = 0, sample_us = 0, draft_us = 0, commit_us = 0,
         answer_us = 0;
  void add(const StepTrace& trace);
  double total_us() const {
    return turn_us + schedule_us + prepare_us + forward_us + sample_us + draft_us + commit_us + answer_us;
  }
};

// Steps of decodes of the whole batch, of decodes of fewer, and those with rows of prompts.
enum StepKind : std::uint8_t { kWhole, kFewer, kMixed, kNumStepKinds };
inline constexpr const char* kStepKinds[] = {"whole batch", "fewer", "with prompts"};

// Behind an engine's on_step: lets it make steps while it is its turn, times those turns, and sums up what the steps
// took.
class StepGate {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StepGate(std::int32_t batch) : batch_(batch) {}

  // Before the first request of a run: one step, in which not all may have come.
  void begin_run();
  // Steps may be made for so long; one that has begun is ended.
  void open(std::chrono::microseconds time);
  // No turn ends before the next open() or begin_run().
  void stay_open();
  // Steps of the run.
  void wait_until_seen(std::int64_t num_steps);
  // True: the engine is between two steps and stays there. False: not within `patience`.
  bool wait_until_closed(std::chrono::microseconds patience);
  double run_seconds() const;  // of the steps since begin_run()

  void clear_parts();
  std::array<StepParts, kNumStepKinds> parts() const;

  void see(const StepTrace& trace);

 private:
  const std::int32_t batch_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  Clock::time_point until_, mark_;
  Clock::duration run_time_{};
  std::int64_t num_steps_ = 0;  // of the run
  std::array<StepParts, kNumStepKinds> parts_;
};

struct DraftRunFigures {
  double tokens_per_s = 0;
  double steps_per_s = 0;
  double acceptance = 0;
  double tokens_per_step = 0;  // of a verified step of one sequence
};

struct DraftWork {
  std::int64_t num_answers = 0;
  std::int64_t answer_tokens = 0;  // most of one
};

// One depth of one batch: an engine of its own over the shared model.
class DraftRacer {
 public:
  static Result<std::unique_ptr<DraftRacer>> make(LoadedModel& loaded, std::int32_t batch, const DraftChoice& drafts,
                                                  bool graphs);
  ~DraftRacer() { gate_->stay_open(); }

  // All requests are with the engine, which stands behind its first step.
  Status start(const std::vector<std::vector<TokenId>>& prompts, const DraftWork& work);
  // Returns whether all is answered.
  bool advance(std::chrono::microseconds time);
  // Behind the last advance(). The figures are kept where `counts`.
  Status finish(bool counts);

  const std::string& name() const { return name_; }
  const StepGate& gate() const { return *gate_; }
  double middle(double DraftRunFigures::* field) const;
  double run_seconds() const { return gate_->run_seconds(); }
  std::int64_t num_steps() const { return engine_->stats().num_steps; }  // of all runs
  // Few of the last run's steps had a shape that was new.
  bool is_steady() const;
  void clear_parts() { gate_->clear_parts(); }
  const std::vector<DraftRunFigures>& figures() const { return figures_; }  // of each counted run
  std::int64_t num_measured_first() const { return num_measured_first_; }

 private:
  explicit DraftRacer(std::int32_t batch) : gate_(std::make_unique<StepGate>(batch)) {}
  std::int64_t num_finished() const;

  std::string name_;
  std::vector<DraftRunFigures> figures_;
  std::int64_t num_steps_ = 0, num_first_ = 0;  // of the last run; those whose shape was new
  std::int64_t num_measured_first_ = 0;         // of all counted runs
  EngineStats before_;
  std::int64_t num_finished_before_ = 0;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::unique_ptr<StepGate> gate_;
  std::unique_ptr<Engine> engine_;
};

// Each answers the work once, by turns in an order that changes; `first` has the first one.
Status race(std::span<DraftRacer* const> racers, std::size_t first, const std::vector<std::vector<TokenId>>& prompts,
            const DraftWork& work, bool counts);

// The median of some ratios, and the interval that holds the true one at 95 % by the order of what was measured alone.
struct RatioInterval {
  double ratio = 1;
  double least = 0;  // of fewer than six ratios nothing is known: 0 and the largest number
  double most = 0;
};
RatioInterval interval_of(std::vector<double> ratios);
// Of the speeds of the runs that both made.
RatioInterval ratio_of(const DraftRacer& a, const DraftRacer& b);

}  // namespace fathom::app
