#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "standard_streams.h"
#include "text/json_value.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace fathom::app {
namespace {

using Kind = JsonValue::Kind;

std::string describe_kind(const JsonValue& line, const JsonValue* field) {
  if (field != nullptr) return "found " + std::string(json_kind_name(field->kind)) + " there";
  return "found " + std::string(json_kind_name(line.kind)) + (line.is(Kind::kObject) ? " without that key" : "");
}

Result<std::string> encode_line(const Tokenizer& tokenizer, const JsonValue& line, bool recognise) {
  const JsonValue* text = line.find("text");
  if (text == nullptr || !text->is(Kind::kString)) {
    return invalid_argument(describe_kind(line, text) + ", expected {\"text\": \"...\"}");
  }
  std::string out = "{\"ids\": [";
  const char* separator = "";
  for (const TokenId id : tokenizer.encode(text->text, recognise ? SpecialTokens::kRecognise : SpecialTokens::kPlain)) {
    out += separator + std::to_string(id);
    separator = ", ";
  }
  return out + "]}\n";
}

// The line separators that JSON leaves as they are and that many readers of lines split at.
void append_text_on_one_line(std::string_view text, std::string& out) {
  constexpr std::pair<std::string_view, std::string_view> kSeparators[] = {
      {"\u0085", "\\u0085"}, {"\u2028", "\\u2028"}, {"\u2029", "\\u2029"}};
  std::string quoted;
  append_json_quoted(text, quoted);
  for (std::string_view rest = quoted; !rest.empty();) {
    const auto* found = std::find_if(std::begin(kSeparators), std::end(kSeparators),
                                     [&](const auto& pair) { return rest.starts_with(pair.first); });
    const bool is_separator = found != std::end(kSeparators);
    out += is_separator ? found->second : rest.substr(0, 1);
    rest.remove_prefix(is_separator ? found->first.size() : 1);
  }
}

Result<std::string> decode_line(const Tokenizer& tokenizer, const JsonValue& line, bool show_special) {
  const JsonValue* list = line.find("ids");
  if (list == nullptr || !list->is(Kind::kArray)) {
    return invalid_argument(describe_kind(line, list) + ", expected {\"ids\": [...]}");
  }
  std::vector<TokenId> ids;
  for (const JsonValue& item : list->items) {
    const auto id = item.as_integer();
    if (!id || *id < 0 || *id >= tokenizer.vocab_size()) {
      return invalid_argument("ids[" + std::to_string(ids.size()) + "]: found " + dump_python_json(item) +
                              ", expected an id from 0 to " + std::to_string(tokenizer.vocab_size() - 1));
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  std::string out = "{\"text\": ";
  const SpecialText special = show_special ? SpecialText::kShow : SpecialText::kSkip;
  append_text_on_one_line(replace_invalid_utf8(tokenizer.decode(ids, special)), out);
  return out + "}\n";
}

Status tokenize(const TokenizeOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(const Tokenizer tokenizer, open_tokenizer(options.tokenizer));
  FATHOM_ASSIGN_OR_RETURN(const std::string input, read_standard_input());
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < input.size();) {
    const std::size_t end = std::min(input.find('\n', begin), input.size());
    const std::string_view line = std::string_view(input).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = "standard input, line " + std::to_string(number);
    const Result<JsonValue> value = parse_json(line);
    if (!value.ok()) return value.status().with_context(place);
    const Result<std::string> out = options.decode ? decode_line(tokenizer, *value, options.special)
                                                   : encode_line(tokenizer, *value, options.special);
    if (!out.ok()) return out.status().with_context(place);
    FATHOM_RETURN_IF_ERROR(write_standard_output(*out));
  }
  return {};
}

}  // namespace

int run_tokenize(const TokenizeOptions& options) {
  const Status status = tokenize(options);
  return status.ok() ? 0 : report_failure("tokenize", status);
}

}  // namespace fathom::app
