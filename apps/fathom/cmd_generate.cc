#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "answer.h"
#include "base/mapped_file.h"
#include "commands.h"
#include "standard_streams.h"
#include "text/chat_messages.h"

namespace fathom::app {
namespace {

Result<std::vector<TokenId>> prompt_ids(const GenerateOptions& options, const OpenedModel& opened) {
  if (options.prompt && options.prompt->empty()) {
    return invalid_argument("the prompt is empty: --prompt needs at least one character");
  }
  if (options.raw) return opened.tokenizer->encode(*options.prompt, SpecialTokens::kRecognise);
  ChatConversation chat;
  if (options.prompt) {
    ChatMessage message;
    message.content = *options.prompt;
    chat.messages.push_back(std::move(message));
  } else {
    FATHOM_ASSIGN_OR_RETURN(const std::string text, read_text_file(options.messages));
    Result<ChatConversation> parsed = parse_chat(text);
    if (!parsed.ok()) return parsed.status().with_context(options.messages);
    chat = std::move(*parsed);
  }
  ChatEncodingOptions encoding;
  encoding.release = opened.release;
  encoding.thinking = options.thinking;
  encoding.effort = effort_from_name(options.effort).value_or(ReasoningEffort::kDefault);
  FATHOM_ASSIGN_OR_RETURN(const PromptText prompt, encode_chat(chat, encoding));
  return opened.tokenizer->encode(prompt);
}

std::string to_json(const GenerateOptions& options, const OpenedModel& opened, const Answer& answer) {
  nlohmann::ordered_json json;
  if (options.raw) {
    json["text"] = answer.text;
  } else {
    json["message"] = nlohmann::ordered_json::parse(message_to_json(answer.message), nullptr, false);
  }
  json["finish_reason"] = answer.finish_reason;
  json["usage"] = {{"prompt_tokens", answer.prompt_tokens},
                   {"completion_tokens", answer.completion_tokens},
                   {"total_tokens", answer.prompt_tokens + answer.completion_tokens}};
  json["timings"] = {{"load_ms", opened.loaded.load_ms},
                     {"prefill_ms", answer.prefill_ms},
                     {"prefill_tokens_per_s", answer.prefill_tokens_per_s()},
                     {"decode_ms", answer.decode_ms},
                     {"decode_tokens_per_s", answer.decode_tokens_per_s()},
                     {"peak_rss_bytes", peak_rss_bytes()}};
  if (answer.drafts.drafted > 0) {
    json["drafts"] = {{"steps", answer.drafts.steps},
                      {"drafted", answer.drafts.drafted},
                      {"accepted", answer.drafts.accepted},
                      {"tokens_per_step",
                       1.0 + static_cast<double>(answer.drafts.accepted) / static_cast<double>(answer.drafts.steps)}};
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Status generate(const GenerateOptions& options) {
  if (options.prompt.has_value() == !options.messages.empty()) {
    return invalid_argument("give either --prompt TEXT or --messages FILE");
  }
  if (options.raw && !options.prompt) return invalid_argument("--raw completes a --prompt, not --messages");
  FATHOM_ASSIGN_OR_RETURN(OpenedModel opened, open_model(options.model, true, 1, options.draft));
  FATHOM_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, prompt_ids(options, opened));
  AnswerOptions how;
  FATHOM_ASSIGN_OR_RETURN(how.sampling, sampling_of(options.sampling, opened.loaded.checkpoint->generation));
  how.max_tokens = options.sampling.max_tokens;
  how.stops = options.sampling.stops;
  how.raw = options.raw;
  how.thinking = options.thinking && !options.raw;
  Status written;
  if (!options.json) {
    how.on_text = [&, reasons = false](PieceKind kind, std::string_view text) mutable {
      // Reasoning goes to standard error, so that standard output is the answer alone.
      if (kind == PieceKind::kReasoning) {
        std::fprintf(stderr, "%.*s", static_cast<int>(text.size()), text.data());
        reasons = true;
        return;
      }
      // Where both are one terminal they stand apart.
      if (std::exchange(reasons, false)) std::fputs("\n\n", stderr);
      if (written.ok()) {
        written = write_standard_output(text);
      }
    };
    how.cancelled = [&] { return !written.ok(); };
  }
  FATHOM_ASSIGN_OR_RETURN(const Answer answer, make_answer(opened, ids, how));
  FATHOM_RETURN_IF_ERROR(written);
  if (options.json) return write_standard_output(to_json(options, opened, answer));
  if (!options.raw) {
    // Tool calls are not text: their JSON follows on a line of its own.
    if (!answer.message.tool_calls.empty()) {
      return write_standard_output("\n" + message_to_json(answer.message) + "\n");
    }
  }
  return write_standard_output("\n");
}

}  // namespace

int run_generate(const GenerateOptions& options) {
  const Status status = generate(options);
  return status.ok() ? 0 : report_failure("generate", status);
}

}  // namespace fathom::app
