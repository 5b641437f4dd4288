// One struct of options and one function per subcommand. main.cc owns the command line (the only file
// that sees the CLI library); each cmd_*.cc owns one subcommand. Functions return the exit code.
#pragma once

namespace fathom::app {}  // namespace fathom::app
