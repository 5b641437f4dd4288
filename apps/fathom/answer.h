// One answer: prefill, decode, detokenise, parse, stop.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "opened_model.h"
#include "text/output_parser.h"

namespace fathom::app {

struct Answer {
  AssistantMessage message;   // chat answers
  std::string text;           // raw completions: the text itself
  std::string finish_reason;  // "stop" (EOS or a stop string), "length", "cancelled"
  std::int64_t prompt_tokens = 0;
  std::int64_t reused_tokens = 0;  // of the prompt, those cached before
  std::int64_t completion_tokens = 0;
  double prefill_ms = 0;
  double decode_ms = 0;
  Session::DraftCounts drafts;  // of this answer

  double decode_tokens_per_s() const {
    // The first token comes out of the prefill.
    return completion_tokens > 1 && decode_ms > 0 ? 1e3 * static_cast<double>(completion_tokens - 1) / decode_ms : 0.0;
  }
  double prefill_tokens_per_s() const {
    return prefill_ms > 0 ? 1e3 * static_cast<double>(prompt_tokens - reused_tokens) / prefill_ms : 0.0;
  }
};

enum class PieceKind { kReasoning, kContent };

struct AnswerOptions {
  SampleSpec sampling;
  std::int64_t max_tokens = 0;  // 0: until the context is full
  std::vector<std::string> stops;
  bool raw = false;       // no chat: all text is content, special tokens are left out
  bool thinking = false;  // the prompt ended with <think>
  // Text as it becomes certain.
  std::function<void(PieceKind, std::string_view)> on_text;
  // Asked before every step; true ends the answer.
  std::function<bool()> cancelled;
};

// Sampling flags over the checkpoint's own defaults. Failure: a flag out of range.
Result<SampleSpec> sampling_of(const SamplingFlags& flags, const GenerationDefaults& defaults);

Result<Answer> make_answer(OpenedModel& opened, std::span<const TokenId> prompt, const AnswerOptions& options);

}  // namespace fathom::app
