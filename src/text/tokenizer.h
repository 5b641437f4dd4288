// The byte-level BPE tokenizer of spec section 7, read from tokenizer.json.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "text/prompt_text.h"
#include "text/utf8.h"

namespace fathom {

// Whether added tokens (<｜User｜>, </think>, ...) are recognised in raw text.
enum class SpecialTokens {
  kRecognise,  // raw completions, /tokenize, `fathom tokenize`
  kPlain,      // all text is ordinary text
};

// Whether decoding writes the text of tokens marked "special" in tokenizer.json (BOS, EOS, padding,
// placeholders). <think>, </think>, ｜DSML｜ and the role tokens are added tokens but not special: always written.
enum class SpecialText { kShow, kSkip };

// Immutable after loading; every method may be called from any thread.
class Tokenizer {
 public:
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Ids of the text as it stands; no BOS or EOS is added. Any bytes are accepted, decode() gives them back.
  // 1 MB takes well under a second whatever it holds.
  std::vector<TokenId> encode(std::string_view text, SpecialTokens special) const;
  // A rendered chat: added tokens match inside template ranges only (prompt_text.h).
  std::vector<TokenId> encode(const PromptText& prompt) const;

  // The bytes behind the ids, concatenated; ids that nothing names give nothing. A cut-off answer may end inside a
  // code point: for text to show use IncrementalDetokenizer.
  std::string decode(std::span<const TokenId> ids, SpecialText special = SpecialText::kShow) const;

  // The bytes one token stands for; empty for ids that nothing names and ids out of range.
  std::string_view token_bytes(TokenId id) const;
  // An added token by its literal text, an ordinary one by its bytes.
  std::optional<TokenId> find_added_token(std::string_view content) const;
  std::optional<TokenId> find_token(std::string_view bytes) const;

  bool is_added(TokenId id) const;
  bool is_special(TokenId id) const;  // "special": true in tokenizer.json
  // One past the highest id. Smaller than the model's vocabulary where tokenizer.json leaves ids unnamed.
  std::int64_t vocab_size() const;
  TokenId bos_id() const;
  TokenId eos_id() const;

  // Failure when this cannot be the tokenizer of a model with so many ids: it has more, or over 1,283 fewer (V4's
  // number of added tokens, some of which tokenizer.json may leave out).
  Status check_fits_model(std::int64_t model_vocab_size) const;

 private:
  friend class TokenizerReader;
  struct Tables;
  explicit Tokenizer(std::unique_ptr<const Tables> tables);
  std::unique_ptr<const Tables> tables_;
};

// From the text of a tokenizer.json. Everything the scanner and BPE here do not do (other regexes, normalisers,
// dropout, byte fallback, stripping added tokens, ...) is refused with what was found and what was expected.
Result<Tokenizer> parse_tokenizer(std::string_view json);
// The same from a file; `path` may be a model directory, then its tokenizer.json is read.
Result<Tokenizer> open_tokenizer(const std::string& path);

// Text of a growing answer, O(1) a token: what comes out is valid UTF-8 at every step (whole code points only,
// ill-formed bytes as U+FFFD once per maximal subpart) and its concatenation is the text of all ids.
class IncrementalDetokenizer {
 public:
  // The tokenizer must outlive this.
  explicit IncrementalDetokenizer(const Tokenizer& tokenizer, SpecialText special = SpecialText::kSkip)
      : tokenizer_(&tokenizer), special_(special) {}

  // Appends to `out` the text that this token completes (often nothing).
  void push(TokenId id, std::string& out);
  // The end: an unfinished code point becomes one U+FFFD.
  void flush(std::string& out) { stream_.flush(out); }

 private:
  const Tokenizer* tokenizer_;
  SpecialText special_;
  Utf8Stream stream_;
};

}  // namespace fathom
