#include "text/tokenizer.h"

#include <algorithm>

#include "text/pretokenizer.h"
#include "text/tokenizer_tables.h"

namespace fathom {

Tokenizer::Tokenizer(std::unique_ptr<const Tables> tables) : tables_(std::move(tables)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

namespace {

// Encodes a text that falls into added tokens (found in the given ranges) and stretches between them.
class TextEncoder {
 public:
  TextEncoder(std::string_view text, const AddedTokens& added, const MergeTable& merges,
              std::span<const TokenId, 256> byte_ids)
      : text_(text), added_(added), merger_(merges, byte_ids) {}

  std::vector<TokenId> encode(std::span<const ByteRange> added_token_ranges) {
    for (const ByteRange& range : added_token_ranges) {
      for (std::size_t at = range.begin; at < range.end;) {
        const AddedTokens::Match match =
            added_.may_start(text_[at]) ? added_.match(text_.substr(at, range.end - at)) : AddedTokens::Match{};
        if (match.length == 0) {
          ++at;
          continue;
        }
        encode_ordinary(at);
        ids_.push_back(match.id);
        at += match.length;
        encoded_ = at;
      }
    }
    encode_ordinary(text_.size());
    return std::move(ids_);
  }

 private:
  // The stretch from what is encoded so far to `end`.
  void encode_ordinary(std::size_t end) {
    const std::string_view stretch = text_.substr(encoded_, end - encoded_);
    piece_ends_.clear();
    pretokenize(stretch, piece_ends_);
    std::size_t begin = 0;
    for (const std::size_t piece_end : piece_ends_) {
      merger_.encode(stretch.substr(begin, piece_end - begin), ids_);
      begin = piece_end;
    }
    encoded_ = end;
  }

  std::string_view text_;
  const AddedTokens& added_;
  PieceMerger merger_;
  std::size_t encoded_ = 0;
  std::vector<std::size_t> piece_ends_;
  std::vector<TokenId> ids_;
};

}  // namespace

std::vector<TokenId> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  const ByteRange whole{0, text.size()};
  TextEncoder encoder(text, tables_->added_matcher, tables_->merges, tables_->byte_ids);
  return encoder.encode({&whole, special == SpecialTokens::kRecognise ? std::size_t{1} : std::size_t{0}});
}

std::vector<TokenId> Tokenizer::encode(const PromptText& prompt) const {
  TextEncoder encoder(prompt.text, tables_->added_matcher, tables_->merges, tables_->byte_ids);
  return encoder.encode(prompt.template_ranges);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, SpecialText special) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (special == SpecialText::kSkip && is_special(id)) continue;
    bytes += token_bytes(id);
  }
  return bytes;
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= tables_->tokens.size()) return {};
  return tables_->tokens[static_cast<std::size_t>(id)].bytes;
}

std::optional<TokenId> Tokenizer::find_added_token(std::string_view content) const {
  const auto found = tables_->added.find(content);
  if (found == tables_->added.end()) return std::nullopt;
  return found->second;
}

std::optional<TokenId> Tokenizer::find_token(std::string_view bytes) const {
  const auto found = tables_->ids.find(bytes);
  if (found == tables_->ids.end()) return std::nullopt;
  return found->second;
}

bool Tokenizer::is_added(TokenId id) const {
  return id >= 0 && static_cast<std::size_t>(id) < tables_->tokens.size() &&
         tables_->tokens[static_cast<std::size_t>(id)].is_added;
}

bool Tokenizer::is_special(TokenId id) const {
  return id >= 0 && static_cast<std::size_t>(id) < tables_->tokens.size() &&
         tables_->tokens[static_cast<std::size_t>(id)].is_special;
}

std::int64_t Tokenizer::vocab_size() const { return static_cast<std::int64_t>(tables_->tokens.size()); }
TokenId Tokenizer::bos_id() const { return tables_->bos_id; }
TokenId Tokenizer::eos_id() const { return tables_->eos_id; }

Status Tokenizer::check_fits_model(std::int64_t model_vocab_size) const {
  constexpr std::int64_t kMaxUnnamedIds = 1283;
  if (vocab_size() <= model_vocab_size && model_vocab_size - vocab_size() <= kMaxUnnamedIds) return {};
  return failed_precondition("the tokenizer is not this model's: found " + std::to_string(vocab_size()) +
                             " ids, expected " + std::to_string(model_vocab_size) +
                             ", the model's vocabulary, or up to " + std::to_string(kMaxUnnamedIds) +
                             " fewer; use the tokenizer.json that came with the checkpoint");
}

void IncrementalDetokenizer::push(TokenId id, std::string& out) {
  if (special_ == SpecialText::kSkip && tokenizer_->is_special(id)) return;
  stream_.push(tokenizer_->token_bytes(id), out);
}

}  // namespace fathom
