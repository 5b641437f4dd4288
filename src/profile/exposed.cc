#include "profile/exposed.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "profile/categories.h"

namespace fathom {
namespace {

constexpr double kWantedShare = 0.04;  // of the step: what the extra repeats together should take
constexpr std::int32_t kMostExtra = 8;
constexpr double kQuiet = 1.08;  // of the plain steps' first decile: beyond, a plain step was disturbed
constexpr std::size_t kLeastQuiet = 6;

// P(at most k of n fair coins).
double binomial_cdf(int k, int n) {
  double sum = 0, term = std::pow(0.5, n);
  for (int i = 0; i <= k; ++i) {
    sum += term;
    term = term * (n - i) / (i + 1);
  }
  return sum;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

// A target measured one way.
struct Trial {
  const ExposedTarget* target = nullptr;
  std::int32_t num_repeats = 2;  // 0: left out
  struct Sample {
    double change_us = 0;
    double slower_base_us = 0;  // of the two plain steps around it
  };
  std::vector<Sample> samples;

  std::vector<double> quiet(double bound_us) const {
    std::vector<double> out;
    for (const Sample& sample : samples) {
      if (sample.slower_base_us <= bound_us) out.push_back(sample.change_us);
    }
    return out;
  }
};

class Measurement {
 public:
  Measurement(RepeatableStep& step, const ExposedOptions& options) : step_(step), options_(options) {}

  Result<ExposedResult> run(std::span<const ExposedTarget> targets) {
    for (int i = 0; i < 3; ++i) FATHOM_RETURN_IF_ERROR(base().status());
    for (const ExposedTarget& target : targets) FATHOM_RETURN_IF_ERROR(plan(target));
    FATHOM_RETURN_IF_ERROR(measure());
    const double bound = quiet_bound();
    std::size_t num_samples = 0, num_disturbed = 0, num_loud = 0;
    for (const Trial& trial : trials_) {
      std::vector<double> samples = trial.quiet(bound);
      num_samples += trial.samples.size();
      num_disturbed += trial.samples.size() - samples.size();
      if (samples.size() < kLeastQuiet) {
        ++num_loud;
        samples = trial.quiet(1e30);
      }
      ExposedEntry entry{trial.target->category, trial.target->operation,
                         median_interval(std::move(samples), options_.confidence)};
      entry.exposed.method = trial.num_repeats == 0 ? "left out" : "repeated";
      entry.exposed.output_unchanged = true;
      result_.entries.push_back(std::move(entry));
    }
    result_.base_us = median(base_us_);
    if (4 * num_disturbed > num_samples) {
      result_.notes.push_back("exposed time: other load disturbed " + std::to_string(num_disturbed) + " of " +
                              std::to_string(num_samples) + " samples; " + std::to_string(num_loud) + " of " +
                              std::to_string(trials_.size()) + " figures had to use them");
    }
    return std::move(result_);
  }

 private:
  Result<double> base() {
    FATHOM_ASSIGN_OR_RETURN(const RepeatableStep::Run run, step_.run({}, 1));
    if (!base_us_.empty() && run.output_hash != output_hash_) {
      return failed_precondition(
          "exposed time: two runs of the same step differ in their outputs, so no repeat can "
          "be checked; the step is not repeatable");
    }
    output_hash_ = run.output_hash;
    base_us_.push_back(run.step_us);
    return run.step_us;
  }

  // Tries the target once each way; what changes the outputs is not measured.
  Status plan(const ExposedTarget& target) {
    const std::string name = target.operation.empty() ? "category " + target.category : target.operation;
    const double wanted = kWantedShare * median(base_us_) / std::max(0.1, target.summed_us);
    const std::int32_t extra = static_cast<std::int32_t>(std::clamp(std::ceil(wanted), 1.0, double{kMostExtra}));
    // The first runs of a kind may build what later ones replay.
    for (int i = 0; i < 2; ++i) FATHOM_RETURN_IF_ERROR(step_.run(target.operations, 1 + extra).status());
    FATHOM_ASSIGN_OR_RETURN(const RepeatableStep::Run repeated, step_.run(target.operations, 1 + extra));
    if (repeated.output_hash == output_hash_) {
      trials_.push_back({&target, 1 + extra, {}});
    } else {
      result_.notes.push_back("exposed time of " + name + ": not measured, a repeat changes the outputs");
    }
    if (!target.may_leave_out) return {};
    // The plain step before it leaves the same intermediate values, so some work may be missing unnoticed.
    FATHOM_RETURN_IF_ERROR(base().status());
    FATHOM_ASSIGN_OR_RETURN(const RepeatableStep::Run without, step_.run(target.operations, 0));
    if (without.output_hash == output_hash_) trials_.push_back({&target, 0, {}});
    return base().status();
  }

  Status measure() {
    std::mt19937_64 random(options_.seed);
    std::vector<std::size_t> order(trials_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(options_.max_seconds);
    while (true) {
      const double bound = quiet_bound();
      std::erase_if(order, [&](std::size_t i) {
        return std::cmp_greater_equal(trials_[i].quiet(bound).size(), options_.num_rounds);
      });
      if (order.empty()) return {};
      std::shuffle(order.begin(), order.end(), random);
      FATHOM_ASSIGN_OR_RETURN(double before, base());
      for (const std::size_t i : order) {
        Trial& trial = trials_[i];
        FATHOM_ASSIGN_OR_RETURN(const RepeatableStep::Run run, step_.run(trial.target->operations, trial.num_repeats));
        if (run.output_hash != output_hash_) {
          return failed_precondition("exposed time of " + trial.target->category + " " + trial.target->operation +
                                     ": a repeat left the outputs unchanged before and changes them now");
        }
        FATHOM_ASSIGN_OR_RETURN(const double behind, base());
        const double change = run.step_us - 0.5 * (before + behind);
        trial.samples.push_back(
            {trial.num_repeats == 0 ? -change : change / (trial.num_repeats - 1), std::max(before, behind)});
        before = behind;
        if (std::chrono::steady_clock::now() > deadline) return {};
      }
    }
  }

  double quiet_bound() const {
    std::vector<double> sorted = base_us_;
    const auto decile = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 10);
    std::nth_element(sorted.begin(), decile, sorted.end());
    return kQuiet * *decile;
  }

  RepeatableStep& step_;
  const ExposedOptions& options_;
  std::uint64_t output_hash_ = 0;
  std::vector<double> base_us_;
  std::vector<Trial> trials_;
  ExposedResult result_;
};

}  // namespace

Result<ExposedResult> measure_exposed(RepeatableStep& step, std::span<const ExposedTarget> targets,
                                      const ExposedOptions& options) {
  return Measurement(step, options).run(targets);
}

bool is_resolved(const ExposedTime& exposed) {
  return !exposed.method.empty() && std::fabs(exposed.us) >= 1.5 * (exposed.high_us - exposed.low_us);
}

ExposedTime median_interval(std::vector<double> samples, double confidence) {
  ExposedTime out;
  out.confidence = confidence;
  out.num_samples = static_cast<std::int64_t>(samples.size());
  if (samples.empty()) return out;
  std::sort(samples.begin(), samples.end());
  out.us = median(samples);
  const int n = static_cast<int>(samples.size());
  int rank = 0;  // the interval leaves out this many samples at each end
  while (rank + 1 < (n + 1) / 2 && binomial_cdf(rank, n) <= 0.5 * (1 - confidence)) ++rank;
  if (rank > 0) --rank;
  out.low_us = samples[static_cast<std::size_t>(rank)];
  out.high_us = samples[static_cast<std::size_t>(n - 1 - rank)];
  return out;
}

namespace {

struct WhatIfQuestion {
  std::string name;  // operation or category
  double factor = 0;
};

Result<WhatIfQuestion> parse_what_if(std::string_view text) {
  const std::size_t equals = text.find('=');
  double factor = -1;
  if (equals != std::string_view::npos) {
    std::string_view number = text.substr(equals + 1);
    if (number.ends_with('x')) number.remove_suffix(1);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), factor);
    if (error != std::errc{} || end != number.data() + number.size()) factor = -1;
  }
  if (!(factor >= 0 && factor <= 1000) || equals == 0) {
    return invalid_argument("--what-if: found \"" + std::string(text) +
                            "\", expected operation=FACTORx, for example moe_experts=0.5x");
  }
  return WhatIfQuestion{std::string(text.substr(0, equals)), factor};
}

}  // namespace

Status check_what_if(std::string_view text) {
  FATHOM_ASSIGN_OR_RETURN(const WhatIfQuestion question, parse_what_if(text));
  std::string categories, operations;
  for (const OperationCategory& entry : operation_categories()) {
    if (question.name == entry.operation || question.name == entry.category) return {};
    operations += ", " + std::string(entry.operation);
    if (categories.find(", " + std::string(entry.category)) == std::string::npos) {
      categories += ", " + std::string(entry.category);
    }
  }
  return invalid_argument("--what-if: found \"" + question.name + "\", expected an operation (" + operations.substr(2) +
                          ") or a category (" + categories.substr(2) + ")");
}

Result<WhatIf> predict_what_if(const ProfileReport& report, std::string_view text) {
  FATHOM_ASSIGN_OR_RETURN(const WhatIfQuestion question, parse_what_if(text));
  const std::string& name = question.name;
  const double factor = question.factor;
  const ExposedTime* exposed = nullptr;
  std::string known;
  for (const ExposedEntry& entry : report.exposed) {
    const std::string& own = entry.operation.empty() ? entry.category : entry.operation;
    if (own == name) {
      // Leaving out has no bias, so it wins where there are both.
      if (exposed == nullptr || entry.exposed.method == "left out") exposed = &entry.exposed;
    } else if (known.find(own) == std::string::npos) {
      known += (known.empty() ? "" : ", ") + own;
    }
  }
  if (exposed == nullptr) {
    return not_found("--what-if: no exposed time was measured for \"" + name + "\"; expected " +
                     (known.empty() ? "a profile with exposed times" : "one of: " + known));
  }
  const double step_us = report.mean_step_us();
  const auto tokens_per_s = [&](double exposed_us) {
    return 1e6 * report.committed_tokens_per_step / std::max(1e-3, step_us - (1 - factor) * exposed_us);
  };
  WhatIf out;
  out.now_tokens_per_s = report.tokens_per_s();
  out.tokens_per_s = tokens_per_s(exposed->us);
  out.low = std::min(tokens_per_s(exposed->low_us), tokens_per_s(exposed->high_us));
  out.high = std::max(tokens_per_s(exposed->low_us), tokens_per_s(exposed->high_us));
  out.saved_us = (1 - factor) * exposed->us;
  out.resolved = is_resolved(*exposed);
  return out;
}

}  // namespace fathom
