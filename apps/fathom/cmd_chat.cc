// A conversation in the terminal. Ctrl-C stops the answer; /exit or the end of input leaves.
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "answer.h"
#include "commands.h"
#include "standard_streams.h"
#include "text/chat_messages.h"

namespace fathom::app {
namespace {

std::atomic<bool> interrupted{false};

constexpr std::string_view kHelp =
    "/help   this text\n"
    "/reset  forget the conversation\n"
    "/exit   leave (so does Ctrl-D)\n"
    "Ctrl-C stops an answer.\n";

// Without SA_RESTART, so that a waiting read returns.
void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted.store(true); };
  ::sigaction(SIGINT, &action, nullptr);
}

// A line of input, nothing at its end. An interrupt gives an empty line.
std::optional<std::string> read_line(bool is_terminal) {
  if (is_terminal) {
    std::fputs("> ", stdout);
    std::fflush(stdout);
  }
  char* buffer = nullptr;
  std::size_t capacity = 0;
  errno = 0;
  const ssize_t length = ::getline(&buffer, &capacity, stdin);
  std::optional<std::string> line;
  if (length >= 0) {
    line.emplace(buffer, static_cast<std::size_t>(length));
    while (!line->empty() && (line->back() == '\n' || line->back() == '\r')) line->pop_back();
  } else if (errno == EINTR) {
    std::clearerr(stdin);
    if (is_terminal) std::fputs("\n(/exit leaves)\n", stdout);
    line.emplace();
  }
  std::free(buffer);
  return line;
}

class Terminal {
 public:
  Terminal() : in_is_terminal_(::isatty(STDIN_FILENO) == 1), out_is_terminal_(::isatty(STDOUT_FILENO) == 1) {}
  bool in_is_terminal() const { return in_is_terminal_; }

  void show(PieceKind kind, std::string_view text) {
    const bool dim = kind == PieceKind::kReasoning;
    if (dim != dim_ && out_is_terminal_) std::fputs(dim ? "\033[2m" : "\033[0m\n\n", stdout);
    if (!dim && dim_ && !out_is_terminal_) std::fputs("\n\n", stdout);
    dim_ = dim;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  void end_answer() {
    if (dim_ && out_is_terminal_) std::fputs("\033[0m", stdout);
    dim_ = false;
  }

 private:
  bool in_is_terminal_;
  bool out_is_terminal_;
  bool dim_ = false;
};

class Conversation {
 public:
  Conversation(const ChatOptions& options, OpenedModel& opened) : options_(options), opened_(opened) { reset(); }

  void reset() {
    chat_.messages.clear();
    if (options_.system.empty()) return;
    ChatMessage system;
    system.role = Role::kSystem;
    system.content = options_.system;
    chat_.messages.push_back(std::move(system));
  }

  Status ask(const std::string& text, Terminal& terminal) {
    ChatMessage user;
    user.content = text;
    chat_.messages.push_back(std::move(user));
    Result<Answer> answer = answer_last(terminal);
    terminal.end_answer();
    if (!answer.ok()) {
      chat_.messages.pop_back();
      return answer.status();
    }
    for (const ToolCall& call : answer->message.tool_calls) {
      std::printf("\n[calls %s %s]", call.name.c_str(), call.arguments.c_str());
    }
    std::printf("\n");
    if (answer->finish_reason != "stop") std::printf("[%s]\n", answer->finish_reason.c_str());
    if (terminal.in_is_terminal()) {
      std::printf("\033[2m%lld tokens, %.0f tok/s\033[0m\n", static_cast<long long>(answer->completion_tokens),
                  answer->decode_tokens_per_s());
    }
    ChatMessage reply;
    reply.role = Role::kAssistant;
    reply.content = answer->message.content;
    reply.reasoning_content = answer->message.reasoning_content;
    chat_.messages.push_back(std::move(reply));
    return {};
  }

 private:
  Result<Answer> answer_last(Terminal& terminal) {
    ChatEncodingOptions encoding;
    encoding.release = opened_.release;
    encoding.thinking = options_.thinking;
    encoding.effort = effort_from_name(options_.effort).value_or(ReasoningEffort::kDefault);
    FATHOM_ASSIGN_OR_RETURN(const PromptText prompt, encode_chat(chat_, encoding));
    AnswerOptions how;
    FATHOM_ASSIGN_OR_RETURN(how.sampling, sampling_of(options_.sampling, opened_.loaded.checkpoint->generation));
    how.max_tokens = options_.sampling.max_tokens;
    how.stops = options_.sampling.stops;
    how.thinking = options_.thinking;
    how.on_text = [&](PieceKind kind, std::string_view piece) { terminal.show(kind, piece); };
    interrupted.store(false);
    how.cancelled = [] { return interrupted.load(); };
    return make_answer(opened_, opened_.tokenizer->encode(prompt), how);
  }

  const ChatOptions& options_;
  OpenedModel& opened_;
  ChatConversation chat_;
};

Status chat(const ChatOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(OpenedModel opened, open_model(options.model, true, 1, options.draft));
  FATHOM_RETURN_IF_ERROR(sampling_of(options.sampling, opened.loaded.checkpoint->generation).status());
  Terminal terminal;
  if (terminal.in_is_terminal()) {
    std::printf("%s, %lld tokens of context. /help lists the commands.\n", opened.loaded.checkpoint->path.c_str(),
                static_cast<long long>(opened.session->max_context_tokens()));
  }
  catch_interrupts();
  Conversation conversation(options, opened);
  for (;;) {
    const std::optional<std::string> line = read_line(terminal.in_is_terminal());
    if (!line || *line == "/exit") break;
    if (line->empty()) continue;
    if (*line == "/help") {
      FATHOM_RETURN_IF_ERROR(write_standard_output(kHelp));
    } else if (*line == "/reset") {
      conversation.reset();
      FATHOM_RETURN_IF_ERROR(write_standard_output("(forgotten)\n"));
    } else if (line->front() == '/') {
      FATHOM_RETURN_IF_ERROR(write_standard_output("unknown command " + *line + "; /help lists the commands\n"));
    } else {
      const Status asked = conversation.ask(*line, terminal);
      // A message that does not fit is told and taken back; the conversation goes on.
      if (!asked.ok()) std::fprintf(stderr, "fathom chat: %s\n", asked.message().c_str());
    }
  }
  return write_standard_output(terminal.in_is_terminal() ? "\n" : "");
}

}  // namespace

int run_chat(const ChatOptions& options) {
  const Status status = chat(options);
  return status.ok() ? 0 : report_failure("chat", status);
}

}  // namespace fathom::app
