#include "commands.h"
#include "standard_streams.h"
#include "text/output_parser.h"

namespace fathom::app {
namespace {

Status parse(const ParseOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(const std::string completion, read_standard_input());
  // An EOS in the text is seen by the parser; without one the completion counts as cut off.
  const AssistantMessage message = parse_output(completion, options.thinking, false);
  return write_standard_output(message_to_json(message) + "\n");
}

}  // namespace

int run_parse(const ParseOptions& options) {
  const Status status = parse(options);
  return status.ok() ? 0 : report_failure("parse", status);
}

}  // namespace fathom::app
