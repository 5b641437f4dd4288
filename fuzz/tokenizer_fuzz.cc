// tokenizer.json: refused with a reason, or a tokenizer that gives every text back.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto tokenizer = fathom::parse_tokenizer({reinterpret_cast<const char*>(data), size});
  if (!tokenizer.ok()) {
    if (tokenizer.status().message().empty()) std::abort();
    return 0;
  }
  for (std::string_view text : {"Hello, world!", " \n 12345 ~", "\xe4\xbd\xa0\xe5\xa5\xbd", "\xff\xfe"}) {
    for (auto special : {fathom::SpecialTokens::kRecognise, fathom::SpecialTokens::kPlain}) {
      const auto ids = tokenizer->encode(text, special);
      for (fathom::TokenId id : ids) {
        if (id < 0 || id >= tokenizer->vocab_size()) std::abort();
      }
      if (tokenizer->decode(ids) != text) std::abort();
    }
  }
  return 0;
}
