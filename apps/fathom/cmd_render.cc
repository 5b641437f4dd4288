#include <optional>
#include <string>

#include "base/mapped_file.h"
#include "commands.h"
#include "model/release_of_checkpoint.h"
#include "standard_streams.h"
#include "text/chat_encoding.h"
#include "text/chat_messages.h"

namespace fathom::app {
namespace {

Status render(const RenderOptions& options) {
  ChatEncodingOptions encoding;
  encoding.thinking = options.thinking;
  encoding.drop_thinking = !options.keep_thinking;
  encoding.effort = effort_from_name(options.effort).value_or(ReasoningEffort::kDefault);
  if (const auto release = release_from_name(options.release)) {
    encoding.release = *release;
  } else {
    FATHOM_ASSIGN_OR_RETURN(encoding.release, release_of_checkpoint(options.model));
  }
  FATHOM_ASSIGN_OR_RETURN(const std::string json, read_text_file(options.messages));
  const Result<ChatConversation> chat = parse_chat(json);
  if (!chat.ok()) return chat.status().with_context(options.messages);
  const Result<PromptText> prompt = encode_chat(*chat, encoding);
  if (!prompt.ok()) return prompt.status().with_context(options.messages);
  return write_standard_output(prompt->text);
}

}  // namespace

int run_render(const RenderOptions& options) {
  const Status status = render(options);
  return status.ok() ? 0 : report_failure("render", status);
}

}  // namespace fathom::app
