// For tests: decode steps on a virtual clock, without an engine. A world says how long steps take, a profile how often
// drafts are right, a load how many requests run.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/filled_batch.h"
#include "engine/speculation.h"

namespace fathom {

struct DraftWorld {
  std::string name;
  std::function<double(std::int32_t batch, double rows)> verify_us;
  std::function<double(std::int32_t batch, std::int32_t depth)> propose_us;
  // What the first use of a shape takes longer, launched one by one, and its second, captured: of verifying steps and
  // of draft passes; 0: shapes are all alike.
  double launched_us = 0, captured_us = 0;
};
struct DraftProfile {
  std::string name;
  // The chance that the draft at `place` of a block is right, of a request's token at `position`.
  std::function<double(std::int64_t request, std::int64_t position, std::int32_t place)> rate;
};
struct DraftLoad {
  struct Phase {
    std::int32_t batch = 1;
    std::int64_t num_tokens = 0;
  };
  std::string name;
  std::vector<Phase> phases;
  bool steady() const { return phases.size() == 1; }
};

// A number in [0, 1) made of `value` alone.
inline double draft_share(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15ull;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return static_cast<double>((value ^ (value >> 31)) >> 11) / 9007199254740992.0;
}
// How many of a request's drafts are right, from its position on.
template <class Running>
std::int32_t num_right_drafts(const Running& request, const DraftProfile& profile) {
  std::int32_t right = 0;
  while (right < request.num_drafts) {
    const std::int64_t position = request.position + right;
    const double draw = draft_share(static_cast<std::uint64_t>(request.id * 1000003 + position * 31 + 7));
    if (draw >= profile.rate(request.id, position, right)) break;
    ++right;
  }
  return right;
}

inline std::vector<DraftWorld> draft_worlds() {
  return {
      {"memory bound", [](std::int32_t, double rows) { return 10000 + 10 * rows; },
       [](std::int32_t, std::int32_t depth) { return 300.0 * depth; }},
      {"a CPU", [](std::int32_t, double rows) { return 1000 + 400 * rows; },
       [](std::int32_t batch, std::int32_t depth) { return depth * (100 + 50.0 * batch); }},
      {"rows only", [](std::int32_t, double rows) { return 100 + 1000 * rows; },
       [](std::int32_t batch, std::int32_t depth) { return depth * (20 + 150.0 * batch); }},
      {"tiles of 16 rows", [](std::int32_t, double rows) { return 2000 + 1500 * std::ceil(rows / 16); },
       [](std::int32_t, std::int32_t depth) { return 250.0 * depth; }},
      {"experts", [](std::int32_t, double rows) { return 1000 + 4000 * (1 - std::exp(-rows / 40)) + 20 * rows; },
       [](std::int32_t batch, std::int32_t depth) { return depth * (100 + 200 * (1 - std::exp(-batch / 40.0))); }},
      {"one block", [](std::int32_t, double rows) { return 1000 + 300 * rows; },
       [](std::int32_t batch, std::int32_t depth) { return depth > 0 ? 400 + 100.0 * batch : 20.0 * batch; }},
  };
}

// The mini model on two machines, as `fathom bench draft` measured them: a CPU's two threads, where drafts pay at some
// batches only, and an H200, where each shape is launched and captured first.
inline std::vector<DraftWorld> measured_draft_worlds() {
  struct Point {
    double rows, us;
  };
  const auto line = [](std::vector<Point> points) {
    return [points = std::move(points)](std::int32_t, double rows) {
      std::size_t i = 1;
      while (i + 1 < points.size() && rows > points[i].rows) ++i;
      const Point &from = points[i - 1], &to = points[i];
      return from.us + (rows - from.rows) / (to.rows - from.rows) * (to.us - from.us);
    };
  };
  return {
      {"a CPU as measured",
       line({{1, 983}, {2, 1750}, {4, 2053}, {8, 2850}, {12, 3700}, {16, 4500}, {24, 6000}, {64, 13900}, {384, 72000}}),
       [](std::int32_t batch, std::int32_t depth) { return depth * (400 + 30.0 * batch); }},
      {"an H200 as measured",
       line({{1, 390}, {3, 408}, {8, 433}, {16, 485}, {32, 600}, {64, 740}, {128, 850}, {192, 900}, {384, 1200}}),
       [](std::int32_t batch, std::int32_t depth) { return depth * (90 + 1.3 * batch); }, 250, 1250},
      {"an H200 at noon",
       line({{1, 380},
             {3, 400},
             {8, 433},
             {16, 485},
             {32, 610},
             {64, 775},
             {96, 910},
             {128, 995},
             {192, 1300},
             {384, 2200}}),
       [](std::int32_t batch, std::int32_t depth) { return depth * (85 + 1.4 * batch); }, 250, 1250},
  };
}
// Of the mini model on its tasks.
inline DraftProfile measured_draft_profile() {
  return {"as measured", [](std::int64_t, std::int64_t, std::int32_t place) {
            return place == 0 ? 0.957 : place == 1 ? 0.6 : place == 2 ? 0.53 : 0.5;
          }};
}

inline std::vector<DraftProfile> draft_profiles() {
  const auto constant = [](double rate) { return [rate](std::int64_t, std::int64_t, std::int32_t) { return rate; }; };
  return {
      {"0", constant(0)},
      {"0.3", constant(0.3)},
      {"0.6", constant(0.6)},
      {"0.9", constant(0.9)},
      {"1", constant(1)},
      {"falling", [](std::int64_t, std::int64_t, std::int32_t place) { return 0.95 * std::pow(0.75, place); }},
      {"first only", [](std::int64_t, std::int64_t, std::int32_t place) { return place == 0 ? 0.97 : 0.2; }},
      {"two kinds", [](std::int64_t request, std::int64_t, std::int32_t) { return request % 2 != 0 ? 0.95 : 0.1; }},
      {"by turns",
       [](std::int64_t, std::int64_t position, std::int32_t) { return position / 100 % 2 != 0 ? 0.9 : 0.1; }},
  };
}

// `scale` stretches the steady loads.
inline std::vector<DraftLoad> draft_loads(std::int64_t scale) {
  std::vector<DraftLoad> loads = {{"1", {{1, 4000 * scale}}},
                                  {"4", {{4, 16000 * scale}}},
                                  {"16", {{16, 40000 * scale}}},
                                  {"64", {{64, 120000 * scale}}}};
  DraftLoad turns{"1 and 64 by turns", {}}, jumps{"jumps", {}}, walk{"walk", {}}, few{"4, 6, 5", {}};
  for (int i = 0; i < 6; ++i) {
    turns.phases.push_back({1, 2000});
    turns.phases.push_back({64, 16000});
  }
  std::int32_t batch = 1;
  for (std::uint64_t i = 0; i < 150; ++i) {
    const auto jumped = static_cast<std::int32_t>(1 + draft_share(i * 13 + 1) * 64);
    jumps.phases.push_back({jumped, jumped * 25});
    batch = std::clamp(batch + static_cast<std::int32_t>(draft_share(i * 17 + 3) * 7) - 3, 1, 64);
    walk.phases.push_back({batch, batch * 25});
  }
  for (int i = 0; i < 40; ++i) {
    few.phases.insert(few.phases.end(), {{4, 100}, {6, 150}, {5, 100}});
  }
  for (DraftLoad& load : {std::ref(turns), std::ref(jumps), std::ref(walk), std::ref(few)}) loads.push_back(load);
  return loads;
}

// What disturbs a machine makes steps longer: by up to about `spread`, and some of them `times` as long.
struct DraftNoise {
  double spread = 0;  // 0: nothing is disturbed
  double often = 0.02;
  double times = 2;
};

struct DraftTime {
  double us = 0;
  double first_uses_us = 0;    // of that, what shapes took longer at first
  double longest_step_us = 0;  // without drafts
};

// Virtual time for the load's tokens at `depth`, or adaptive with at most 5 where it is -1.
inline DraftTime simulate_drafts(const DraftWorld& world, const DraftProfile& profile, const DraftLoad& load,
                                 std::int32_t depth, const DraftNoise& noise, std::uint64_t seed) {
  struct Running {
    std::int64_t id = 0, position = 0, left = 0;
    std::int32_t num_drafts = -1;  // -1: its prompt is just done
    Acceptance acceptance{DepthPolicy::kRequestTrials};
  };
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const auto disturbance = [&] {
    if (noise.spread == 0) return 1.0;
    const double longer = std::exp(noise.spread * std::abs(normal(random)));
    return longer * (static_cast<double>(random() % 50) < 50 * noise.often ? noise.times : 1.0);
  };
  DraftTime total;
  std::map<std::array<std::int32_t, 3>, int> verify_uses, propose_uses;
  const auto first_us = [&world](int& uses) {
    ++uses;
    return uses == 1 ? world.launched_us : uses == 2 ? world.captured_us : 0.0;
  };
  DepthPolicy policy;
  std::vector<Running> running;
  std::vector<const Acceptance*> acceptances;
  std::int64_t next_id = 0;
  for (const DraftLoad::Phase& phase : load.phases) {
    std::int64_t done = 0;
    double phase_us = 0;
    while (done < phase.num_tokens) {
      if (std::cmp_greater(running.size(), phase.batch)) running.resize(static_cast<std::size_t>(phase.batch));
      while (std::cmp_less(running.size(), phase.batch)) {
        Running& fresh = running.emplace_back();
        fresh.id = next_id++;
        fresh.left = 100 + static_cast<std::int64_t>(300 * draft_share(static_cast<std::uint64_t>(fresh.id * 77 + 5)));
      }
      std::int32_t asked = depth;
      if (depth < 0 && policy.is_known(phase.batch, next_id)) {
        asked = policy.choose_known(5);
      } else if (depth < 0) {
        acceptances.clear();
        for (const Running& request : running) acceptances.push_back(&request.acceptance);
        asked = policy.choose(acceptances, 5);
      }
      std::int32_t num_drafts = 0;
      for (Running& request : running) {
        if (request.num_drafts < 0) request.num_drafts = asked;
        num_drafts += request.num_drafts;
      }
      double verify_us = world.verify_us(phase.batch, phase.batch + num_drafts) * disturbance();
      double propose_us = world.propose_us(phase.batch, asked) * disturbance();
      // As the executor fills up: undrafted steps and those of unlike depths as they are.
      const std::int32_t filled = filled_batch(phase.batch), verified = num_drafts / phase.batch;
      const bool alike = num_drafts == verified * phase.batch;
      const double verify_first = first_us(verify_uses[{num_drafts == 0 || !alike ? phase.batch : filled,
                                                        alike ? verified : num_drafts, alike ? 1 : 0}]);
      const double propose_first = asked > 0 ? first_us(propose_uses[{filled, verified, asked}]) : 0.0;
      verify_us += verify_first, propose_us += propose_first;
      total.first_uses_us += verify_first + propose_first;
      phase_us += verify_us + propose_us;
      DraftedStep step;
      step.batch = phase.batch;
      step.num_drafts = num_drafts, step.num_proposals = asked;
      step.us = verify_us + propose_us, step.propose_us = propose_us;
      step.is_first_verify = verify_first > 0, step.is_first_propose = propose_first > 0;
      for (Running& request : running) {
        const std::int32_t accepted = num_right_drafts(request, profile);
        request.acceptance.fade();
        request.acceptance.add(request.num_drafts, accepted);
        const std::int64_t got = std::min<std::int64_t>(accepted + 1, request.left);
        if (request.num_drafts > 0) policy.add_drafts(request.num_drafts, static_cast<std::int32_t>(got) - 1);
        step.num_tokens += static_cast<std::int32_t>(got);
        request.position += got;
        request.left -= got;
        request.num_drafts = asked;
        done += got;
      }
      policy.add_step(step);
      std::erase_if(running, [](const Running& request) { return request.left == 0; });
    }
    // Tokens beyond the phase's are not its own.
    total.longest_step_us = std::max(total.longest_step_us, world.verify_us(phase.batch, phase.batch));
    total.us += phase_us * static_cast<double>(phase.num_tokens) / static_cast<double>(done);
  }
  return total;
}

// Undrafted steps' time that may be lost before drafting is off, and by the drafts under way then.
inline constexpr double kStartSteps = 2 * DepthPolicy::kStartLossSteps + 2;

struct DraftComparison {
  std::int32_t best_depth = 0;
  double over_best = 0, over_off = 0;  // 0.01: adaptive takes 1 % longer
  // The same against off, without what shapes took longer at first, less what trying out may take (DepthPolicy):
  // kTrialShare, and some steps at the start.
  double over_bound = 0;
  // over_best without what shapes took longer at first.
  double over_best_later = 0;
};
inline DraftComparison compare_drafts(const DraftWorld& world, const DraftProfile& profile, const DraftLoad& load,
                                      const DraftNoise& noise, std::uint64_t seed = 9) {
  DraftComparison found;
  DraftTime best, off;
  const auto later_us = [](const DraftTime& time) { return time.us - time.first_uses_us; };
  for (std::int32_t depth = 0; depth <= 5; ++depth) {
    const DraftTime time =
        simulate_drafts(world, profile, load, depth, noise, seed - 8 + static_cast<std::uint64_t>(depth));
    if (depth == 0) off = time;
    if (depth > 0 && time.us >= best.us) continue;
    best = time;
    found.best_depth = depth;
  }
  const DraftTime adaptive = simulate_drafts(world, profile, load, -1, noise, seed);
  found.over_best = adaptive.us / best.us - 1;
  found.over_best_later = later_us(adaptive) / later_us(best) - 1;
  found.over_off = adaptive.us / off.us - 1;
  found.over_bound = later_us(adaptive) / later_us(off) - 1 - DepthPolicy::kTrialShare -
                     kStartSteps * adaptive.longest_step_us / later_us(off);
  return found;
}

}  // namespace fathom
