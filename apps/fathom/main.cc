#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "flags.h"

namespace fathom::app {
namespace {

// "--port: At Most 1 required but received 3" -> "--port: found 3 times, expected once".
std::string given_too_often(const std::string& message) {
  const std::size_t at = message.find(": At Most 1 required but received ");
  if (at == std::string::npos) return message;
  return message.substr(0, at) + ": found " + message.substr(message.rfind(' ') + 1) + " times, expected once";
}

// One line: what is wrong, and where the flags are listed. Exit code 2, as for shells.
int report_usage(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  std::string program = "fathom";
  const CLI::App* chosen = &app;
  for (auto below = app.get_subcommands(); !below.empty(); below = chosen->get_subcommands()) {
    chosen = below.front();
    program += " " + chosen->get_name();
  }
  std::string message = given_too_often(error.what());
  if (chosen == &app && argc > 1 && argv[1][0] != '-') {
    message = "found subcommand \"" + std::string(argv[1]) + "\", expected one of";
    for (const CLI::App* subcommand : app.get_subcommands(nullptr)) message += " " + subcommand->get_name();
  } else if (const auto unknown = chosen->remaining(true); !unknown.empty()) {
    message = "not expected:";
    for (const std::string& argument : unknown) message += " " + argument;
  }
  if (error.get_name() == "ConversionError") message += "; expected a number";
  std::replace(message.begin(), message.end(), '\n', ' ');
  std::fprintf(stderr, "%s: %s (%s --help lists what is taken)\n", program.c_str(), message.c_str(), program.c_str());
  return 2;
}

}  // namespace
}  // namespace fathom::app

int main(int argc, char** argv) {
  CLI::App app{"fathom: an inference engine for DeepSeek-V4"};
  app.set_version_flag("--version", FATHOM_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  fathom::app::add_chat(app, exit_code);
  fathom::app::add_generate(app, exit_code);
  fathom::app::add_selfcheck(app, exit_code);
  fathom::app::add_selftest(app, exit_code);
  fathom::app::add_logits(app, exit_code);
  fathom::app::add_tokenize(app, exit_code);
  fathom::app::add_render(app, exit_code);
  fathom::app::add_parse(app, exit_code);
  fathom::app::add_inspect(app, exit_code);
  fathom::app::add_verify(app, exit_code);
  fathom::app::add_replay(app, exit_code);
  fathom::app::add_synth(app, exit_code);
  fathom::app::add_convert(app, exit_code);
  fathom::app::add_bench(app, exit_code);
  fathom::app::add_profile(app, exit_code);
  fathom::app::add_serve(app, exit_code);
  fathom::app::add_compare(app, exit_code);
  fathom::app::add_findings(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help asked of a subcommand that is none.
    const bool unknown = argc > 1 && argv[1][0] != '-' && app.get_subcommands().empty();
    if (error.get_exit_code() != 0 || unknown) return fathom::app::report_usage(app, error, argc, argv);
    app.exit(error);  // --help, --version
  }
  // What the subcommands printed may still stand in the buffer: a full disk shows here.
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (lost && exit_code == 0) {
    std::fprintf(stderr, "fathom: writing standard output failed: %s\n", std::strerror(errno));
    return 1;
  }
  return exit_code;
}
