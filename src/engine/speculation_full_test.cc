// Adaptive depth on a virtual clock: every world, acceptance and load, with and without noise.
#include <gtest/gtest.h>

#include "engine/speculation_bench.h"

namespace fathom {
namespace {

// `most_over_off`: beyond the bound, by the noise of the two runs.
void compare_all(double noise, double most_over_best, double most_over_off) {
  double worst_best = 0, worst_off = 0, worst_bound = -1;
  int num_cases = 0;
  for (const DraftWorld& world : draft_worlds()) {
    for (const DraftProfile& profile : draft_profiles()) {
      for (const DraftLoad& load : draft_loads(1)) {
        const DraftComparison found = compare_drafts(world, profile, load, noise);
        const std::string what = world.name + ", acceptance " + profile.name + ", load " + load.name;
        EXPECT_LE(found.over_best, most_over_best) << what << ": best depth " << found.best_depth;
        EXPECT_LE(found.over_bound, most_over_off) << what;
        worst_best = std::max(worst_best, found.over_best);
        worst_off = std::max(worst_off, found.over_off);
        worst_bound = std::max(worst_bound, found.over_bound);
        ++num_cases;
      }
    }
  }
  std::printf(
      "%d cases, noise %.2f: adaptive at most %.2f %% over the best fixed depth, %.2f %% over off; over off's bound "
      "%.2f %%\n",
      num_cases, noise, 100 * worst_best, 100 * worst_off, 100 * worst_bound);
}

TEST(SpeculationFull, QuietMachine) { compare_all(0, 0.03, 0.0); }
TEST(SpeculationFull, NoisyMachine) { compare_all(0.05, 0.03, 0.01); }

}  // namespace
}  // namespace fathom
