// From messages to the prompt: the vendor's encoder (spec section 8), in both of its releases.
#pragma once

#include <optional>
#include <string_view>

#include "base/status.h"
#include "text/chat_messages.h"
#include "text/prompt_text.h"

namespace fathom {

// The literal texts that the chat is made of. All but the last two are added tokens of every V4 tokenizer.
inline constexpr std::string_view kBosText = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEosText = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kUserText = "<｜User｜>";
inline constexpr std::string_view kAssistantText = "<｜Assistant｜>";
inline constexpr std::string_view kThinkOpenText = "<think>";
inline constexpr std::string_view kThinkCloseText = "</think>";
inline constexpr std::string_view kDsmlText = "｜DSML｜";
inline constexpr std::string_view kToolResultOpenText = "<tool_result>";
inline constexpr std::string_view kToolResultCloseText = "</tool_result>";

// Which texts a reasoning effort stands for.
enum class Release { kPreview, k0731 };

// kDefault is what holds when the client asks for nothing, and means no prefix in both releases: the encoder's own
// default, and 0731's "low". (Servers that pass "high" instead add a prefix on 0731 only.) `low` on the preview
// release, whose encoder does not know it, is no prefix either.
enum class ReasoningEffort { kDefault, kLow, kHigh, kMax };

struct ChatEncodingOptions {
  Release release = Release::k0731;
  bool thinking = true;
  ReasoningEffort effort = ReasoningEffort::kDefault;  // without effect unless thinking
  bool drop_thinking = true;                           // forced off when any message has tools
  bool continue_final_message = false;                 // a final assistant message is continued (as its wo_eos)
};

// Failure: arguments of a replayed tool call that are JSON but no object; continue_final_message without a final
// assistant message. Messages name the field as chat_messages.h does.
Result<PromptText> encode_chat(const ChatConversation& conversation, const ChatEncodingOptions& options);

// "preview", "0731"; "low", "high", "max". Nothing for other texts.
std::optional<Release> release_from_name(std::string_view name);
std::string_view release_name(Release release);
std::optional<ReasoningEffort> effort_from_name(std::string_view name);

}  // namespace fathom
