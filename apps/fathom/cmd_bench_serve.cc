#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/mapped_file.h"
#include "commands.h"
#include "server/load_generator.h"
#include "standard_streams.h"

extern char** environ;

namespace fathom::app {
namespace {

// A server of our own for the time of the measurement: this program again, as another process.
class ServerProcess {
 public:
  ServerProcess() = default;
  ~ServerProcess() {
    if (pid_ <= 0) return;
    kill(pid_, SIGTERM);
    int status = 0;
    waitpid(pid_, &status, 0);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  Result<std::uint16_t> start(const BenchServeOptions& options) {
    const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
    std::vector<std::string> words = {program, "serve", "--port", "0", "--log", "warning"};
    if (!options.model.empty()) words.insert(words.end(), {"--model", options.model});
    for (const auto& flag : options.server_flags) words.push_back(flag);
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    int ends[2];
    if (pipe(ends) != 0) return io_error("starting a server: no pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    const int failed = posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (failed != 0) return io_error("starting " + program);
    // Its first line names the port; "ready" follows when it can answer.
    std::string text;
    char c = 0;
    while (text.find("ready\n") == std::string::npos && read(ends[0], &c, 1) == 1) text += c;
    close(ends[0]);
    const std::size_t colon = text.find(':', text.find("://") + 3);
    if (text.find("ready\n") == std::string::npos || colon == std::string::npos) {
      return unavailable("the server did not start");
    }
    return static_cast<std::uint16_t>(std::atoi(text.c_str() + colon + 1));
  }

 private:
  pid_t pid_ = 0;
};

Status write_text(const std::string& path, const std::string& text) {
  return path.empty() ? Status{} : write_file_atomically(path, std::as_bytes(std::span(text)));
}

Result<bool> bench(const BenchServeOptions& options) {
  LoadTestOptions load;
  load.concurrency = options.concurrency;
  load.requests_per_client = options.requests_per_client;
  load.repeats = options.repeats;
  load.input_tokens = options.input_tokens;
  load.output_tokens = options.output_tokens;
  load.shared_prefix = options.shared_prefix;
  load.cancelled = options.cancelled;
  load.seed = options.seed;
  load.api_key = options.api_key;
  ServerProcess own;
  if (options.address.empty()) {
    FATHOM_ASSIGN_OR_RETURN(load.port, own.start(options));
  } else {
    const std::size_t colon = options.address.rfind(':');
    if (colon == std::string::npos) return invalid_argument("--address: expected HOST:PORT");
    load.host = options.address.substr(0, colon);
    load.port = static_cast<std::uint16_t>(std::atoi(options.address.c_str() + colon + 1));
  }
  FATHOM_ASSIGN_OR_RETURN(const LoadReport report, run_load(load));
  FATHOM_RETURN_IF_ERROR(write_standard_output(load_table(report)));
  FATHOM_RETURN_IF_ERROR(write_text(options.json, load_json(report)));
  FATHOM_RETURN_IF_ERROR(write_text(options.html, load_html(report)));
  bool all_right = report.right_before && report.right_after;
  for (const auto& level : report.levels) all_right = all_right && level.num_failed == 0;
  return all_right;
}

}  // namespace

int run_bench_serve(const BenchServeOptions& options) {
  const auto right = bench(options);
  if (!right.ok()) return report_failure("bench serve", right.status());
  if (!*right) return report_failure("bench serve", internal_error("answers were wrong or requests failed: no result"));
  return 0;
}

}  // namespace fathom::app
