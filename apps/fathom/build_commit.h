// The commit that this program was built from.
#pragma once

#include <string>

namespace fathom::app {

// "15bbfb4c21d0", "15bbfb4c21d0-dirty" where tracked files differed from it; empty where it was built from no checkout.
std::string build_commit();

}  // namespace fathom::app
