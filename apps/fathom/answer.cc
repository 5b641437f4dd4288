#include "answer.h"

#include <chrono>
#include <optional>
#include <random>

#include "engine/stop_strings.h"
#include "progress_bar.h"

namespace fathom::app {
namespace {

double ms_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

// Tokens in, certain text out.
class TextPipe {
 public:
  TextPipe(const Tokenizer& tokenizer, const AnswerOptions& options)
      : options_(options),
        detokenizer_(tokenizer, options.raw ? SpecialText::kSkip : SpecialText::kShow),
        parser_(options.thinking),
        stops_(options.stops) {}

  // True when a stop string ended the text.
  bool push(TokenId token) {
    piece_.clear();
    detokenizer_.push(token, piece_);
    return take(piece_);
  }
  void finish(bool stopped_by_eos, Answer& answer) {
    piece_.clear();
    detokenizer_.flush(piece_);
    take(piece_);
    if (!options_.raw) {
      events_.clear();
      parser_.finish(stopped_by_eos, events_);
      take_events();
    }
    std::string rest;
    if (!stopped_) stops_.flush(rest);
    emit(PieceKind::kContent, rest);
    answer.text = text_;
    answer.message = parser_.message();
    if (!options_.raw) answer.message.content = text_;
  }

 private:
  bool take(std::string_view text) {
    if (options_.raw) return content(text);
    events_.clear();
    parser_.push(text, events_);
    return take_events();
  }
  bool take_events() {
    bool stopped = false;
    for (const OutputEvent& event : events_) {
      if (event.kind == OutputEvent::Kind::kReasoning) emit(PieceKind::kReasoning, event.text);
      if (event.kind == OutputEvent::Kind::kContent) stopped = content(event.text) || stopped;
    }
    return stopped;
  }
  bool content(std::string_view text) {
    if (stopped_) return true;
    std::string certain;
    stopped_ = stops_.push(text, certain).has_value();
    emit(PieceKind::kContent, certain);
    return stopped_;
  }
  void emit(PieceKind kind, std::string_view text) {
    if (text.empty()) return;
    if (kind == PieceKind::kContent) text_ += text;
    if (options_.on_text) options_.on_text(kind, text);
  }

  const AnswerOptions& options_;
  IncrementalDetokenizer detokenizer_;
  OutputParser parser_;
  StopStrings stops_;
  bool stopped_ = false;
  std::vector<OutputEvent> events_;
  std::string piece_;
  std::string text_;
};

}  // namespace

Result<SampleSpec> sampling_of(const SamplingFlags& flags, const GenerationDefaults& defaults) {
  SampleSpec spec;
  spec.temperature = flags.temperature.value_or(defaults.do_sample ? defaults.temperature : 0.0f);
  spec.top_p = flags.top_p.value_or(defaults.top_p);
  if (flags.top_k < -1) {
    return invalid_argument("--top-k: found " + std::to_string(flags.top_k) + ", expected 1 or more, 0 or -1 for off");
  }
  spec.top_k = flags.top_k < 0 ? 0 : flags.top_k;
  spec.min_p = flags.min_p;
  spec.seed = flags.seed ? *flags.seed : std::random_device{}();
  const auto refuse = [](const char* flag, float found, const char* expected) {
    return invalid_argument(std::string(flag) + ": found " + std::to_string(found) + ", expected " + expected);
  };
  for (const std::string& stop : flags.stops) {
    if (stop.empty()) return invalid_argument("--stop: found an empty text, expected at least one character");
  }
  if (!(spec.temperature >= 0.0f && spec.temperature <= 100.0f)) {
    return refuse("--temperature", spec.temperature, "0 to 100");
  }
  if (!(spec.top_p > 0.0f && spec.top_p <= 1.0f)) return refuse("--top-p", spec.top_p, "more than 0, at most 1");
  if (!(spec.min_p >= 0.0f && spec.min_p <= 1.0f)) return refuse("--min-p", spec.min_p, "0 to 1");
  return spec;
}

Result<Answer> make_answer(OpenedModel& opened, std::span<const TokenId> prompt, const AnswerOptions& options) {
  Session& session = *opened.session;
  if (static_cast<std::int64_t>(prompt.size()) == session.max_context_tokens()) {
    return invalid_argument("the prompt leaves no room for an answer: found " + std::to_string(prompt.size()) +
                            " tokens, the context holds " + std::to_string(session.max_context_tokens()));
  }
  Answer answer;
  answer.finish_reason = "length";
  answer.prompt_tokens = static_cast<std::int64_t>(prompt.size());
  const auto is_cancelled = [&] { return options.cancelled && options.cancelled(); };
  TextPipe pipe(*opened.tokenizer, options);

  const auto prefill_begin = std::chrono::steady_clock::now();
  std::optional<Result<SampledToken>> token;
  {
    ProgressBar bar("reading the prompt");
    token = session.prefill(prompt, options.sampling, [&](std::int64_t done, std::int64_t total) {
      bar.update(done, total);
      return !is_cancelled();
    });
  }
  answer.prefill_ms = ms_since(prefill_begin);
  answer.reused_tokens = session.num_reused_tokens();

  const TokenId eos = opened.loaded.model->config().eos_token_id;
  const Session::DraftCounts before = session.draft_counts();
  const auto decode_begin = std::chrono::steady_clock::now();
  bool by_eos = false;
  if (!token->ok()) {
    if (token->status().code() != StatusCode::kCancelled) return token->status();
    answer.finish_reason = "cancelled";
    pipe.finish(by_eos, answer);
    return answer;
  }
  SampledToken first = **token;
  std::span<const SampledToken> drawn(&first, 1);  // by the last step
  for (std::size_t next = 0;;) {
    const TokenId id = drawn[next].token;
    ++answer.completion_tokens;
    const bool stopped = pipe.push(id);
    by_eos = id == eos;
    if (by_eos || stopped) {
      answer.finish_reason = "stop";
      break;
    }
    if (options.max_tokens > 0 && answer.completion_tokens >= options.max_tokens) break;
    if (is_cancelled()) {
      answer.finish_reason = "cancelled";
      break;
    }
    if (++next < drawn.size()) continue;
    const auto more = session.decode_drafted(id, options.sampling);
    if (!more.ok()) {
      if (more.status().code() == StatusCode::kResourceExhausted) break;
      return more.status();
    }
    drawn = *more;
    next = 0;
  }
  answer.decode_ms = ms_since(decode_begin);
  const Session::DraftCounts& after = session.draft_counts();
  answer.drafts = {after.steps - before.steps, after.drafted - before.drafted, after.accepted - before.accepted};
  pipe.finish(by_eos, answer);
  return answer;
}

}  // namespace fathom::app
