// The main job without a person: two questions to the embedded model, and whether the answers are right.
#include <cstdio>
#include <filesystem>

#include "answer.h"
#include "base/units.h"
#include "commands.h"
#include "standard_streams.h"
#include "text/chat_messages.h"

namespace fathom::app {
namespace {

// As the next command would be typed: relative where the program lies below the current directory.
std::string program_path() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return "fathom";
  const std::filesystem::path here = std::filesystem::relative(program, error);
  return error || here.empty() || here.native().starts_with("..") ? program.string() : here.string();
}

struct Question {
  const char* text;
  const char* expected;
};
constexpr Question kQuestions[] = {{"17*23?", "391"}, {"Capital of France", "Paris"}};

Result<bool> ask(OpenedModel& opened, const Question& question) {
  ChatConversation chat;
  ChatMessage message;
  message.content = question.text;
  chat.messages.push_back(std::move(message));
  ChatEncodingOptions encoding;
  encoding.release = opened.release;
  encoding.thinking = false;
  FATHOM_ASSIGN_OR_RETURN(const PromptText prompt, encode_chat(chat, encoding));
  AnswerOptions how;
  how.sampling.temperature = 0.0f;
  how.max_tokens = 64;
  FATHOM_ASSIGN_OR_RETURN(const Answer answer, make_answer(opened, opened.tokenizer->encode(prompt), how));
  const bool right = answer.text.find(question.expected) != std::string::npos;
  std::printf("%s\n  %s\n  %s, expected %s | prompt %lld tokens %.1f ms | answer %lld tokens, %.0f tok/s\n",
              question.text, answer.text.c_str(), right ? "right" : "WRONG", question.expected,
              static_cast<long long>(answer.prompt_tokens), answer.prefill_ms,
              static_cast<long long>(answer.completion_tokens), answer.decode_tokens_per_s());
  return right;
}

Result<bool> selfcheck(const SelfcheckOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(OpenedModel opened, open_model(options.model, true, 1));
  std::printf("model %s, loaded in %.1f ms\n", opened.loaded.checkpoint->path.c_str(), opened.loaded.load_ms);
  bool all_right = true;
  for (const Question& question : kQuestions) {
    FATHOM_ASSIGN_OR_RETURN(const bool right, ask(opened, question));
    all_right = all_right && right;
  }
  std::printf("peak memory %s\n", format_bytes(peak_rss_bytes()).c_str());
  return all_right;
}

}  // namespace

int run_selfcheck(const SelfcheckOptions& options) {
  const Result<bool> right = selfcheck(options);
  if (!right.ok()) return report_failure("selfcheck", right.status());
  if (!*right) {
    return report_failure("selfcheck", internal_error("an answer is wrong: the model or this build is broken"));
  }
  const std::string program = program_path();
  std::printf("\nchat:  %s chat\nserve: %s serve\n", program.c_str(), program.c_str());
  return 0;
}

}  // namespace fathom::app
