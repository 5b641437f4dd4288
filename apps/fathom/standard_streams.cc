#include "standard_streams.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace fathom::app {

Result<std::string> read_standard_input() {
  std::string text;
  char buffer[1 << 16];
  std::size_t count = 0;
  while ((count = std::fread(buffer, 1, sizeof buffer, stdin)) > 0) text.append(buffer, count);
  if (std::ferror(stdin) != 0) return io_error(std::string("reading standard input: ") + std::strerror(errno));
  return text;
}

Status write_standard_output(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    return io_error(std::string("writing standard output: ") + std::strerror(errno));
  }
  return {};
}

int report_failure(std::string_view subcommand, const Status& status) {
  std::fprintf(stderr, "fathom %.*s: %s\n", static_cast<int>(subcommand.size()), subcommand.data(),
               status.message().c_str());
  return 1;
}

}  // namespace fathom::app
