#include "server/prompt_fields.h"

#include "server/generation_fields.h"
#include "text/utf8.h"

namespace fathom {
namespace {

RawPrompt of_text(RequestFields& fields, const std::string& key, const std::string& text, const ServedModel& model) {
  RawPrompt prompt;
  if (auto failed = check_prompt_bytes(model, key, text.size())) {
    fields.fail(std::move(*failed));
    return prompt;
  }
  const Tokenizer& tokenizer = *model.tokenizer;
  prompt.ids = tokenizer.encode(text, SpecialTokens::kRecognise);
  if (prompt.ids.empty()) prompt.ids.push_back(tokenizer.bos_id());
  prompt.text = text;
  return prompt;
}

RawPrompt of_ids(RequestFields& fields, const std::string& key, const JsonValue& ids, const ServedModel& model) {
  const std::int64_t vocab = model.engine->limits().vocab_size;
  RawPrompt prompt;
  for (std::size_t i = 0; i < ids.items.size(); ++i) {
    const auto id = integral_value(ids.items[i]);
    if (!id || *id < 0 || *id >= vocab) {
      fields.fail(key + "[" + std::to_string(i) + "]",
                  found_expected(ids.items[i], "a token id from 0 to " + std::to_string(vocab - 1)));
      return prompt;
    }
    prompt.ids.push_back(static_cast<TokenId>(*id));
  }
  if (prompt.ids.empty()) prompt.ids.push_back(model.tokenizer->bos_id());
  prompt.text = replace_invalid_utf8(model.tokenizer->decode(prompt.ids, SpecialText::kSkip));
  return prompt;
}

}  // namespace

std::vector<RawPrompt> read_prompts(RequestFields& fields, std::string_view key, const ServedModel& model,
                                    std::int32_t max_prompts) {
  std::vector<RawPrompt> prompts;
  const JsonValue* value = fields.find(key);
  if (fields.failed()) return prompts;
  if (value == nullptr) {
    fields.fail(key, "found none, expected a string, an array of token ids, or an array of either");
    return prompts;
  }
  if (value->is(JsonValue::Kind::kString)) {
    prompts.push_back(of_text(fields, std::string(key), value->text, model));
    return prompts;
  }
  if (!value->is(JsonValue::Kind::kArray)) {
    fields.fail(key, found_expected(*value, "a string, an array of token ids, or an array of either"));
    return prompts;
  }
  if (value->items.empty()) {
    fields.fail(key, "found an empty array, expected at least one prompt");
    return prompts;
  }
  if (value->items.front().is(JsonValue::Kind::kNumber)) {
    prompts.push_back(of_ids(fields, std::string(key), *value, model));
    return prompts;
  }
  if (static_cast<std::int64_t>(value->items.size()) > max_prompts) {
    fields.fail(key, "found " + std::to_string(value->items.size()) + " prompts, expected at most " +
                         std::to_string(max_prompts));
    return prompts;
  }
  for (std::size_t i = 0; i < value->items.size() && !fields.failed(); ++i) {
    const JsonValue& item = value->items[i];
    const std::string where = std::string(key) + "[" + std::to_string(i) + "]";
    if (item.is(JsonValue::Kind::kString)) {
      prompts.push_back(of_text(fields, where, item.text, model));
    } else if (item.is(JsonValue::Kind::kArray)) {
      prompts.push_back(of_ids(fields, where, item, model));
    } else {
      fields.fail(where, found_expected(item, "a string or an array of token ids"));
    }
  }
  return prompts;
}

}  // namespace fathom
