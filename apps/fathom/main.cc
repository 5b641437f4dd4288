#include <CLI/CLI.hpp>

#include "commands.h"

int main(int argc, char** argv) {
  CLI::App app{"fathom: an inference engine for DeepSeek-V4"};
  app.set_version_flag("--version", FATHOM_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  CLI11_PARSE(app, argc, argv);
  return exit_code;
}
