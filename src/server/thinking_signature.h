// A thinking block's signature on /v1/messages. Where a client wants no thinking text (display: omitted) it carries the
// text, so that the reasoning of earlier turns stays in the prompt when the client sends the block back.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fathom {

// "fathom1." and base64.
std::string thinking_signature(std::string_view thinking);
// Nothing for signatures of others, and for what is no text.
std::optional<std::string> thinking_of_signature(std::string_view signature);

}  // namespace fathom
