// Exposed time (campaign S14), measured: what a step changes by when some of its work runs once more inside it, or is
// left out where that leaves the outputs the same.
//
// Steps with extra repeats alternate with plain ones, in an order drawn anew each round; a sample is a step less the
// mean of the plain steps before and behind it, divided by the extra repeats. A sample is disturbed where one of those
// two plain steps is slow: other load on the machine, by a criterion that does not look at the step itself. Rounds go
// on until each target has enough undisturbed samples. The figure is their median, the interval that of the sign test:
// order statistics, so that what disturbs only the step itself moves neither much. Work that hides behind a parallel
// stream changes nothing and has an exposed time of zero, however much of the summed time it takes.
//
// A repeat finds its operands in caches that the first run filled: for work that waits for memory the figure is a
// lower bound. Leaving out has no such bias.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "profile/report.h"

namespace fathom {

// One step that can be run over and over from the same state.
class RepeatableStep {
 public:
  struct Run {
    double step_us = 0;
    std::uint64_t output_hash = 0;  // of every output bit
  };
  virtual ~RepeatableStep() = default;
  // The step, each call of the named operations run `num_repeats` times; 0 leaves them out.
  virtual Result<Run> run(std::span<const std::string> operations, std::int32_t num_repeats) = 0;
};

struct ExposedTarget {
  std::string category;
  std::string operation;                // empty: the whole category
  std::vector<std::string> operations;  // what is repeated
  double summed_us = 0;                 // per step: short work is repeated more often, to stand out of the noise
  // Whether a step without it can run at all: work that leaves the addresses others read (selected entries, expert
  // ids) must not be missing. Whether the outputs then stay is tried.
  bool may_leave_out = false;
};

struct ExposedOptions {
  std::int32_t num_rounds = 15;  // undisturbed samples of each target
  double max_seconds = 60;       // when other load disturbs too many, what there is must do
  double confidence = 0.95;
  std::uint64_t seed = 1;
};

struct ExposedResult {
  std::vector<ExposedEntry> entries;  // in the targets' order; one that was also left out follows itself
  double base_us = 0;                 // median plain step
  std::vector<std::string> notes;     // targets that changed the outputs, and why they have no figure
};

// Failure: the step failed, or its plain runs differ from each other in their outputs.
Result<ExposedResult> measure_exposed(RepeatableStep& step, std::span<const ExposedTarget> targets,
                                      const ExposedOptions& options);

// A figure counts where it exceeds three times its interval's half width.
bool is_resolved(const ExposedTime& exposed);

// Median and the sign test's interval of its value; the interval is the samples' range where they are too few for
// `confidence` (under 6 for 95 %).
ExposedTime median_interval(std::vector<double> samples, double confidence);

// tok/s when `operation` (or category) takes `factor` of its time: from exposed time, never from shares.
struct WhatIf {
  double tokens_per_s = 0, low = 0, high = 0;  // predicted
  double now_tokens_per_s = 0;
  double saved_us = 0;  // per step
  bool resolved = false;
};
// Before anything is measured: whether `text` has the form below and names a known operation or category.
Status check_what_if(std::string_view text);
// `text`: "sparse_attention=0.5x", "experts=0". Failure: not that form, or nothing measured under that name.
Result<WhatIf> predict_what_if(const ProfileReport& report, std::string_view text);

}  // namespace fathom
