// Reads tokenizer.json and refuses whatever the tokenizer here would not reproduce.
#include <algorithm>
#include <filesystem>

#include "base/mapped_file.h"
#include "text/chat_encoding.h"
#include "text/json_value.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_tables.h"
#include "text/utf8.h"

namespace fathom {
namespace {

using Kind = JsonValue::Kind;

constexpr std::int64_t kMaxIds = 1 << 22;  // far above any vocabulary; bounds what a broken file can allocate

// The value as one would read it in the file, cut to a length that fits a message.
std::string shown(const JsonValue* value) {
  if (value == nullptr) return "nothing";
  std::string text = dump_python_json(*value);
  constexpr std::size_t kMost = 160;
  if (text.size() > kMost) text = replace_invalid_utf8(text.substr(0, kMost)) + "...";
  return text;
}

Status unexpected(std::string_view field, const JsonValue* found, std::string_view expected) {
  return failed_precondition("tokenizer.json: " + std::string(field) + ": found " + shown(found) + ", expected " +
                             std::string(expected));
}

bool is_text(const JsonValue* value, std::string_view text) {
  return value != nullptr && value->is(Kind::kString) && value->text == text;
}

bool is_absent(const JsonValue* value) { return value == nullptr || value->is(Kind::kNull); }

// Absent, null, false, 0, "" or an empty array or object.
bool is_off(const JsonValue* value) {
  if (is_absent(value)) return true;
  switch (value->kind) {
    case Kind::kFalse: return true;
    case Kind::kNumber: return value->as_double() == 0.0;
    case Kind::kString: return value->text.empty();
    case Kind::kArray: return value->items.empty();
    case Kind::kObject: return value->members.empty();
    default: return false;
  }
}

// Byte values of the GPT-2 byte alphabet: printable bytes stand for themselves, the others are U+0100, U+0101, ...
struct ByteAlphabet {
  std::int16_t byte_of[0x144];
  ByteAlphabet() {
    std::fill(std::begin(byte_of), std::end(byte_of), std::int16_t{-1});
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      byte_of[printable ? byte : next++] = static_cast<std::int16_t>(byte);
    }
  }

  // The bytes that a vocabulary entry spells; the entry itself when it is not in the alphabet.
  std::string bytes_of(std::string_view entry) const {
    std::string bytes;
    for (std::string_view rest = entry; !rest.empty();) {
      const CodePoint c = decode_code_point(rest);
      if (!c.valid || c.value >= std::size(byte_of) || byte_of[c.value] < 0) return std::string(entry);
      bytes += static_cast<char>(byte_of[c.value]);
      rest.remove_prefix(c.length);
    }
    return bytes;
  }
};

Status check_pretokenizer(const JsonValue& root) {
  const JsonValue* normalizer = root.find("normalizer");
  if (!is_absent(normalizer) &&
      !(is_text(normalizer->find("type"), "Sequence") && is_off(normalizer->find("normalizers")))) {
    return unexpected("normalizer", normalizer, "none");
  }
  for (const char* field : {"truncation", "padding"}) {
    if (!is_absent(root.find(field))) return unexpected(field, root.find(field), "null");
  }
  const JsonValue* outer = root.find("pre_tokenizer");
  const JsonValue* stages = outer == nullptr ? nullptr : outer->find("pretokenizers");
  if (outer == nullptr || !is_text(outer->find("type"), "Sequence") || stages == nullptr ||
      stages->items.size() != std::size(kPretokenizerRegexes) + 1) {
    return unexpected("pre_tokenizer", outer, "a Sequence of three Split stages and ByteLevel");
  }
  for (std::size_t i = 0; i < std::size(kPretokenizerRegexes); ++i) {
    const JsonValue& stage = stages->items[i];
    const std::string field = "pre_tokenizer.pretokenizers[" + std::to_string(i) + "]";
    const JsonValue* pattern = stage.find("pattern");
    const JsonValue* regex = pattern == nullptr ? nullptr : pattern->find("Regex");
    if (!is_text(stage.find("type"), "Split")) return unexpected(field + ".type", stage.find("type"), "\"Split\"");
    if (!is_text(regex, kPretokenizerRegexes[i])) {
      std::string expected = "the regular expression ";
      append_json_quoted(kPretokenizerRegexes[i], expected);
      return unexpected(field + ".pattern", regex == nullptr ? pattern : regex,
                        expected + " of DeepSeek-V3 and V4, the only one this scanner knows");
    }
    if (!is_text(stage.find("behavior"), "Isolated")) {
      return unexpected(field + ".behavior", stage.find("behavior"), "\"Isolated\"");
    }
    if (!is_off(stage.find("invert"))) return unexpected(field + ".invert", stage.find("invert"), "false");
  }
  const JsonValue& bytes = stages->items.back();
  const JsonValue* use_regex = bytes.find("use_regex");
  if (!is_text(bytes.find("type"), "ByteLevel") || !is_off(bytes.find("add_prefix_space")) || is_absent(use_regex) ||
      !is_off(use_regex)) {
    return unexpected("pre_tokenizer.pretokenizers[3]", &bytes,
                      "ByteLevel with add_prefix_space false and use_regex false");
  }
  return {};
}

Status check_model_options(const JsonValue& model) {
  if (!is_text(model.find("type"), "BPE")) return unexpected("model.type", model.find("type"), "\"BPE\"");
  for (const char* option : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                             "byte_fallback", "ignore_merges"}) {
    if (!is_off(model.find(option))) {
      return unexpected("model." + std::string(option), model.find(option), "it to be off");
    }
  }
  return {};
}

Result<TokenId> read_id(std::string_view field, const JsonValue* value) {
  const auto id = value == nullptr ? std::nullopt : value->as_integer();
  if (!id || *id < 0 || *id >= kMaxIds) {
    return unexpected(field, value, "an id from 0 to " + std::to_string(kMaxIds - 1));
  }
  return static_cast<TokenId>(*id);
}

}  // namespace

// Fills the tables step by step; each step checks what it reads.
class TokenizerReader {
 public:
  Result<Tokenizer> read(const JsonValue& root) {
    if (!root.is(Kind::kObject)) return unexpected("the file", &root, "an object");
    FATHOM_RETURN_IF_ERROR(check_pretokenizer(root));
    const JsonValue* model = root.find("model");
    if (model == nullptr || !model->is(Kind::kObject)) return unexpected("model", model, "an object");
    FATHOM_RETURN_IF_ERROR(check_model_options(*model));
    FATHOM_RETURN_IF_ERROR(read_vocab(model->find("vocab")));
    FATHOM_RETURN_IF_ERROR(read_added_tokens(root.find("added_tokens")));
    index_tokens();
    FATHOM_RETURN_IF_ERROR(find_byte_ids());
    FATHOM_RETURN_IF_ERROR(read_merges(model->find("merges")));
    FATHOM_RETURN_IF_ERROR(find_chat_tokens());
    return Tokenizer(std::move(tables_));
  }

 private:
  Tokenizer::Tables::Token& named_token(TokenId id) {
    auto& tokens = tables_->tokens;
    if (static_cast<std::size_t>(id) >= tokens.size()) tokens.resize(static_cast<std::size_t>(id) + 1);
    tokens[static_cast<std::size_t>(id)].is_named = true;
    return tokens[static_cast<std::size_t>(id)];
  }
  bool is_named(TokenId id) const {
    return static_cast<std::size_t>(id) < tables_->tokens.size() &&
           tables_->tokens[static_cast<std::size_t>(id)].is_named;
  }

  Status read_vocab(const JsonValue* vocab) {
    if (vocab == nullptr || !vocab->is(Kind::kObject)) return unexpected("model.vocab", vocab, "an object");
    for (const JsonValue::Member& member : vocab->members) {
      FATHOM_ASSIGN_OR_RETURN(const TokenId id, read_id("model.vocab", &member.value));
      if (is_named(id)) {
        return unexpected("model.vocab", &member.value, "each id once, but two entries have this one");
      }
      named_token(id).bytes = alphabet_.bytes_of(member.key);
    }
    return {};
  }

  Status read_added_tokens(const JsonValue* added) {
    if (added == nullptr || !added->is(Kind::kArray)) return unexpected("added_tokens", added, "an array");
    for (std::size_t i = 0; i < added->items.size(); ++i) {
      const JsonValue& entry = added->items[i];
      const std::string field = "added_tokens[" + std::to_string(i) + "]";
      const JsonValue* content = entry.find("content");
      if (content == nullptr || !content->is(Kind::kString) || content->text.empty()) {
        return unexpected(field + ".content", content, "a text");
      }
      FATHOM_ASSIGN_OR_RETURN(const TokenId id, read_id(field + ".id", entry.find("id")));
      for (const char* option : {"single_word", "lstrip", "rstrip"}) {
        if (!is_off(entry.find(option))) return unexpected(field + "." + option, entry.find(option), "false");
      }
      if (is_named(id) && named_token(id).bytes != content->text) {
        return unexpected(field + ".content", content, "the text that id " + std::to_string(id) + " has already");
      }
      Tokenizer::Tables::Token& token = named_token(id);
      token.bytes = content->text;
      token.is_added = true;
      token.is_special = !is_off(entry.find("special"));
    }
    return {};
  }

  // From here on `tokens` does not grow: the keys of the maps live in it.
  void index_tokens() {
    tables_->ids.reserve(tables_->tokens.size());
    for (std::size_t i = 0; i < tables_->tokens.size(); ++i) {
      const Tokenizer::Tables::Token& token = tables_->tokens[i];
      const auto id = static_cast<TokenId>(i);
      if (token.is_added) {
        tables_->added.emplace(token.bytes, id);
        tables_->added_matcher.insert(token.bytes, id);
      } else if (token.is_named) {
        tables_->ids.emplace(token.bytes, id);
      }
    }
  }

  Status find_byte_ids() {
    for (int byte = 0; byte < 256; ++byte) {
      const char text = static_cast<char>(byte);
      const auto found = tables_->ids.find(std::string_view(&text, 1));
      if (found == tables_->ids.end()) {
        return failed_precondition("tokenizer.json: model.vocab: found no token for byte " + std::to_string(byte) +
                                   ", expected all 256 single bytes");
      }
      tables_->byte_ids[static_cast<std::size_t>(byte)] = found->second;
    }
    return {};
  }

  // "left right", or ["left", "right"] in newer files.
  Status read_merges(const JsonValue* merges) {
    if (merges == nullptr || !merges->is(Kind::kArray)) return unexpected("model.merges", merges, "an array");
    tables_->merges = MergeTable(merges->items.size());
    for (std::size_t rank = 0; rank < merges->items.size(); ++rank) {
      const JsonValue& entry = merges->items[rank];
      std::string_view left;
      std::string_view right;
      if (entry.is(Kind::kString)) {
        const std::size_t space = entry.text.find(' ');
        if (space != std::string::npos) {
          left = std::string_view(entry.text).substr(0, space);
          right = std::string_view(entry.text).substr(space + 1);
        }
      } else if (entry.items.size() == 2) {
        left = entry.items[0].text;
        right = entry.items[1].text;
      }
      const std::string left_bytes = alphabet_.bytes_of(left);
      const std::string right_bytes = alphabet_.bytes_of(right);
      const auto left_id = tables_->ids.find(left_bytes);
      const auto right_id = tables_->ids.find(right_bytes);
      const auto merged_id = tables_->ids.find(left_bytes + right_bytes);
      const auto missing = tables_->ids.end();
      if (left_id == missing || right_id == missing || merged_id == missing) {
        return unexpected("model.merges[" + std::to_string(rank) + "]", &entry,
                          "two vocabulary entries whose concatenation is a third");
      }
      tables_->merges.insert(left_id->second, right_id->second, {static_cast<std::uint32_t>(rank), merged_id->second});
    }
    return {};
  }

  // A tokenizer without the tokens that the chat is made of belongs to another model.
  Status find_chat_tokens() {
    for (const std::string_view text :
         {kBosText, kEosText, kUserText, kAssistantText, kThinkOpenText, kThinkCloseText, kDsmlText}) {
      if (!tables_->added.contains(text)) {
        return failed_precondition("tokenizer.json: added_tokens: found no " + std::string(text) +
                                   ", expected DeepSeek-V4's control tokens; is this another model's tokenizer?");
      }
    }
    tables_->bos_id = tables_->added.find(kBosText)->second;
    tables_->eos_id = tables_->added.find(kEosText)->second;
    return {};
  }

  ByteAlphabet alphabet_;
  std::unique_ptr<Tokenizer::Tables> tables_ = std::make_unique<Tokenizer::Tables>();
};

Result<Tokenizer> parse_tokenizer(std::string_view json) {
  Result<JsonValue> root = parse_json(json);
  if (!root.ok()) return root.status().with_context("tokenizer.json");
  return TokenizerReader().read(*root);
}

Result<Tokenizer> open_tokenizer(const std::string& path) {
  std::error_code ignored;
  const bool is_directory = std::filesystem::is_directory(path, ignored);
  const std::string file = is_directory ? path + "/tokenizer.json" : path;
  FATHOM_ASSIGN_OR_RETURN(const std::string json, read_text_file(file));
  if (json.starts_with("version https://git-lfs.github.com/spec/")) {
    return data_loss(file + ": found a Git LFS pointer, expected the file itself: fetch it with `git lfs pull`");
  }
  Result<Tokenizer> tokenizer = parse_tokenizer(json);
  if (!tokenizer.ok()) return tokenizer.status().with_context("loading " + file);
  return tokenizer;
}

}  // namespace fathom
