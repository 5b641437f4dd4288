#include "opened_profiles.h"

namespace fathom::app {

Result<Comparison> compare_profiles(const std::string& before, const std::string& after,
                                    const std::vector<std::string>& intended) {
  CompareOptions options;
  for (const std::string& name : intended) {
    const auto difference = parse_difference(name);
    if (!difference) {
      std::string known;
      for (int i = 0; i < kNumDifferences; ++i) {
        known += (i == 0 ? "" : ", ") + std::string(difference_name(static_cast<Difference>(i)));
      }
      return invalid_argument("--intended: found \"" + name + "\", expected one of " + known);
    }
    options.intended.push_back(*difference);
  }
  FATHOM_ASSIGN_OR_RETURN(const ProfileReport a, open_report(before));
  FATHOM_ASSIGN_OR_RETURN(const ProfileReport b, open_report(after));
  return compare_reports(a, b, before, after, options);
}

}  // namespace fathom::app
