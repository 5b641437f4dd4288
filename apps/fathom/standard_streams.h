// Standard input and output of the subcommands that filter text, with failures named.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace fathom::app {

Result<std::string> read_standard_input();
// Writes and flushes; a full disk or a closed pipe is a failure.
Status write_standard_output(std::string_view text);

// "fathom SUBCOMMAND: MESSAGE" on standard error; returns the exit code 1.
int report_failure(std::string_view subcommand, const Status& status);

}  // namespace fathom::app
