#include "build_commit.h"

#include "build_commit_text.h"

namespace fathom::app {

std::string build_commit() { return FATHOM_BUILD_COMMIT; }

}  // namespace fathom::app
