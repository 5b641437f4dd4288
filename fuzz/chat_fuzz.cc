// A messages file through the chat encoder, in both releases: refused with a reason or rendered; the template
// ranges ascend and lie inside the text.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/chat_encoding.h"
#include "text/chat_messages.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto chat = fathom::parse_chat({reinterpret_cast<const char*>(data), size});
  if (!chat.ok()) {
    if (chat.status().message().empty()) std::abort();
    return 0;
  }
  for (const auto release : {fathom::Release::kPreview, fathom::Release::k0731}) {
    for (const bool thinking : {false, true}) {
      fathom::ChatEncodingOptions options;
      options.release = release;
      options.thinking = thinking;
      const auto prompt = fathom::encode_chat(*chat, options);
      if (!prompt.ok()) {
        if (prompt.status().message().empty()) std::abort();
        continue;
      }
      if (!fathom::is_valid_utf8(prompt->text) || !prompt->text.starts_with(fathom::kBosText)) std::abort();
      std::size_t end = 0;
      for (const fathom::ByteRange& range : prompt->template_ranges) {
        if (range.begin < end || range.end <= range.begin || range.end > prompt->text.size()) std::abort();
        end = range.end;
      }
    }
  }
  return 0;
}
