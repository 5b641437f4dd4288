// Adaptive depth on a virtual clock: every world, acceptance and load, with and without noise.
#include <gtest/gtest.h>

#include "engine/speculation_bench.h"

namespace fathom {
namespace {

void compare_all(double noise, double most_over_best, double most_over_off) {
  double worst_best = 0, worst_off = 0;
  int num_cases = 0;
  for (const DraftWorld& world : draft_worlds()) {
    for (const DraftProfile& profile : draft_profiles()) {
      for (const DraftLoad& load : draft_loads(1)) {
        const DraftComparison found = compare_drafts(world, profile, load, noise);
        const std::string what = world.name + ", acceptance " + profile.name + ", load " + load.name;
        EXPECT_LE(found.over_best, most_over_best) << what << ": best depth " << found.best_depth;
        EXPECT_LE(found.over_off, most_over_off) << what;
        worst_best = std::max(worst_best, found.over_best);
        worst_off = std::max(worst_off, found.over_off);
        ++num_cases;
      }
    }
  }
  std::printf("%d cases, noise %.2f: adaptive at most %.2f %% over the best fixed depth, %.2f %% over off\n", num_cases,
              noise, 100 * worst_best, 100 * worst_off);
}

TEST(SpeculationFull, QuietMachine) { compare_all(0, 0.03, 0.02); }
TEST(SpeculationFull, NoisyMachine) { compare_all(0.05, 0.03, 0.03); }

}  // namespace
}  // namespace fathom
