#include "server/generation_fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "server/grammar_constraint.h"
#include "server/json_build.h"

namespace fathom {
namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kMaxStops = 64;
constexpr std::size_t kMaxStopBytes = 1024;

void read_seed(RequestFields& fields, Request& request) {
  const JsonValue* value = fields.find("seed");
  if (value == nullptr) return;
  // Any 64-bit integer, with or without sign: both ways of writing the same bits are the same seed.
  if (const auto exact = integral_value(*value)) {
    request.sampling.seed = static_cast<std::uint64_t>(*exact);
    return;
  }
  std::uint64_t wide = 0;
  const char* const end = value->text.data() + value->text.size();
  const bool is_number = value->is(JsonValue::Kind::kNumber);
  if (is_number && std::from_chars(value->text.data(), end, wide).ptr == end && wide > 0) {
    if (std::to_string(wide) == value->text) {
      request.sampling.seed = wide;
      return;
    }
  }
  fields.fail("seed", found_expected(*value, "an integer from -2^63 to 2^64 - 1"));
}

void read_logit_bias(RequestFields& fields, Request& request) {
  const JsonValue* bias = fields.object("logit_bias");
  if (bias == nullptr) return;
  for (const auto& [name, value] : bias->members) {
    const std::string key = "logit_bias." + name;
    TokenId id = 0;
    const char* const end = name.data() + name.size();
    const auto [rest, wrong] = std::from_chars(name.data(), end, id);
    if (wrong != std::errc() || rest != end || id < 0) {
      return fields.fail(key, "found the key \"" + name + "\", expected a token id");
    }
    const auto amount = value.is(JsonValue::Kind::kNumber) ? value.as_double() : std::nullopt;
    if (!amount || !(*amount >= -100 && *amount <= 100)) {
      return fields.fail(key, found_expected(value, "a number from -100 to 100"));
    }
    request.sampling.logit_bias.emplace_back(id, static_cast<float>(*amount));
  }
}

template <typename T>
T first_of(std::optional<T> a, std::optional<T> b, std::optional<T> c, T otherwise) {
  return a ? *a : b ? *b : c ? *c : otherwise;
}

std::optional<float> as_float(std::optional<double> value) {
  return value ? std::optional(static_cast<float>(*value)) : std::nullopt;
}

}  // namespace

void read_sampling(RequestFields& fields, const ServerOptions& options, const ServedModel& model, Request& request) {
  const SamplingDefaults& flags = options.sampling;
  const SamplingDefaults& config = model.generation_config;
  SamplingOptions& s = request.sampling;
  s.temperature = first_of(as_float(fields.number("temperature", 0, 2)), flags.temperature, config.temperature, 1.0f);
  s.top_p = first_of(as_float(fields.number("top_p", 0, 1, true)), flags.top_p, config.top_p, 1.0f);
  s.min_p = first_of(as_float(fields.number("min_p", 0, 1)), flags.min_p, config.min_p, 0.0f);
  s.repetition_penalty = first_of(as_float(fields.number("repetition_penalty", 0, 100, true)), flags.repetition_penalty,
                                  config.repetition_penalty, 1.0f);
  const auto top_k = fields.integer("top_k", -1, kMaxInt32);
  s.top_k = first_of(top_k ? std::optional(static_cast<std::int32_t>(*top_k)) : std::nullopt, flags.top_k, config.top_k,
                     std::int32_t{0});
  if (s.top_k < 0) s.top_k = 0;
  s.frequency_penalty = static_cast<float>(fields.number("frequency_penalty", -2, 2).value_or(0));
  s.presence_penalty = static_cast<float>(fields.number("presence_penalty", -2, 2).value_or(0));
  read_seed(fields, request);
  read_logit_bias(fields, request);
}

void read_stops(RequestFields& fields, Request& request, const std::string& stop_key) {
  if (const JsonValue* stop = fields.find(stop_key)) {
    const auto add = [&](const JsonValue& value, const std::string& key) {
      if (!value.is(JsonValue::Kind::kString)) return fields.fail(key, found_expected(value, "a string"));
      if (value.text.empty()) return fields.fail(key, "found an empty string: it would stop at once");
      if (value.text.size() > kMaxStopBytes) {
        return fields.fail(key, "found " + std::to_string(value.text.size()) + " bytes, expected at most " +
                                    std::to_string(kMaxStopBytes));
      }
      request.stop_strings.push_back(value.text);
    };
    if (stop->is(JsonValue::Kind::kArray)) {
      if (stop->items.size() > kMaxStops) {
        fields.fail(stop_key, "found " + std::to_string(stop->items.size()) + " strings, expected at most " +
                                  std::to_string(kMaxStops));
      }
      for (std::size_t i = 0; i < stop->items.size() && !fields.failed(); ++i) {
        add(stop->items[i], stop_key + "[" + std::to_string(i) + "]");
      }
    } else if (stop->is(JsonValue::Kind::kString)) {
      if (!stop->text.empty()) add(*stop, stop_key);  // an empty one alone means none
    } else {
      fields.fail(stop_key, found_expected(*stop, "a string or an array of strings"));
    }
  }
  if (const JsonValue* ids = fields.array("stop_token_ids")) {
    for (std::size_t i = 0; i < ids->items.size(); ++i) {
      const auto id = integral_value(ids->items[i]);
      if (!id || *id < 0 || *id > kMaxInt32) {
        fields.fail("stop_token_ids[" + std::to_string(i) + "]", found_expected(ids->items[i], "a token id"));
        break;
      }
      request.stop_token_ids.push_back(static_cast<TokenId>(*id));
    }
  }
  request.include_stop_string = fields.boolean("include_stop_str_in_output").value_or(false);
  request.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  request.skip_special_tokens = fields.boolean("skip_special_tokens").value_or(true);
  request.min_tokens = fields.integer("min_tokens", 0, kMaxInt32).value_or(0);
}

void read_shares(RequestFields& fields, const ServedModel& model, Request& request) {
  request.num_choices =
      static_cast<std::int32_t>(fields.integer("n", 1, model.engine->options().max_choices).value_or(1));
  request.priority = static_cast<std::int32_t>(fields.integer("priority", -1000, 1000).value_or(0));
  request.cache_salt = fields.string("cache_salt").value_or("");
}

void read_max_tokens(RequestFields& fields, std::initializer_list<std::string_view> keys, std::int64_t lowest,
                     Request& request) {
  bool counts = false;  // one has been found
  for (const std::string_view key : keys) {
    if (!fields.has(key)) continue;
    const auto max_tokens = fields.integer(key, lowest, kMaxInt32);
    if (!max_tokens) return;
    if (std::exchange(counts, true)) continue;
    request.max_tokens = *max_tokens;
    if (request.min_tokens > request.max_tokens) {
      fields.fail("min_tokens", "found " + std::to_string(request.min_tokens) + ", which is more than " +
                                    std::string(key) + " (" + std::to_string(request.max_tokens) + ")");
    }
  }
}

StreamFields read_stream(RequestFields& fields) {
  StreamFields out;
  out.stream = fields.boolean("stream").value_or(false);
  if (const JsonValue* options = fields.object("stream_options")) {
    RequestFields nested(*options, "stream_options.");
    out.include_usage = nested.boolean("include_usage").value_or(false);
    out.continuous_usage = nested.boolean("continuous_usage_stats").value_or(false);
    fields.absorb(nested);
  }
  if (!out.stream) out.include_usage = out.continuous_usage = false;
  return out;
}

void read_unused(RequestFields& fields) {
  for (const std::string_view key : {"user", "service_tier", "safety_identifier", "prompt_cache_key"})
    fields.string(key);
  for (const std::string_view key : {"store", "add_special_tokens"}) fields.boolean(key);
  fields.object("metadata");
}

void read_model(RequestFields& fields, const ServerOptions& options) {
  const auto name = fields.string("model");
  if (!name || name->empty()) return;
  if (std::find(options.model_names.begin(), options.model_names.end(), *name) != options.model_names.end()) return;
  std::string served;
  for (const auto& each : options.model_names) served += (served.empty() ? "" : ", ") + each;
  fields.fail({404, "model: '" + *name + "' is not served here, which serves " + served, "model", "model_not_found"});
}

std::optional<ApiError> check_prompt_bytes(const ServedModel& model, std::string_view param, std::size_t num_bytes) {
  const std::size_t least = num_bytes / model.longest_token_bytes;
  if (least <= static_cast<std::size_t>(model.context_tokens())) return std::nullopt;
  ApiError error = bad_field(std::string(param), "the prompt has at least " + std::to_string(least) +
                                                     " tokens, and the context has room for " +
                                                     std::to_string(model.context_tokens()));
  error.code = "context_length_exceeded";
  return error;
}

std::optional<ApiError> fit_to_context(const ServedModel& model, std::string_view param, Request& request) {
  const auto num_tokens = static_cast<std::int64_t>(request.prompt.size());
  const std::int64_t context = model.context_tokens();
  const std::int64_t room = context - num_tokens;
  if (room < 1) {
    ApiError error = bad_field(std::string(param), "the prompt has " + std::to_string(num_tokens) +
                                                       " tokens, and the context has room for " +
                                                       std::to_string(context) + ", at least one of them new");
    error.code = "context_length_exceeded";
    return error;
  }
  if (request.max_tokens < 0 || request.max_tokens > room) request.max_tokens = room;
  request.min_tokens = std::min(request.min_tokens, request.max_tokens);
  return std::nullopt;
}

// The expression that matches these texts and no other. Empty: one of them is no text, which `fields` says.
std::string regex_of_choices(RequestFields& fields, const JsonValue& choices, const std::string& key) {
  std::string regex;
  if (choices.items.empty()) fields.fail(key, "found an empty array, expected at least one text");
  for (std::size_t i = 0; i < choices.items.size() && !fields.failed(); ++i) {
    const JsonValue& choice = choices.items[i];
    if (!choice.is(JsonValue::Kind::kString) || choice.text.empty()) {
      fields.fail(key + "[" + std::to_string(i) + "]", found_expected(choice, "a text that is not empty"));
    }
    regex += i > 0 ? "|" : "";
    for (const char c : choice.text) {
      if (std::string_view("\\^$.*+?()[]{}|/").find(c) != std::string_view::npos) regex += '\\';
      regex += c;
    }
  }
  return fields.failed() ? std::string() : regex;
}

void read_constraint(RequestFields& fields, const ServedModel& model, Request& request) {
  GrammarSpec grammar;
  std::string param;
  const auto set = [&](GrammarKind kind, std::string text, std::string_view key) {
    if (!param.empty()) return fields.fail(key, "found two constraints, the other is " + param);
    grammar = {kind, std::move(text)};
    param = std::string(key);
  };
  if (const JsonValue* format = fields.object("response_format")) {
    RequestFields nested(*format, "response_format.");
    const auto type = nested.string("type");
    if (!type) {
      nested.fail("type", "found nothing, expected text, json_object or json_schema");
    } else if (*type == "json_object") {
      set(GrammarKind::kJsonObject, "", "response_format");
    } else if (*type == "json_schema") {
      const JsonValue* holder = nested.object("json_schema");
      if (holder != nullptr) {
        RequestFields held(*holder, "response_format.json_schema.");
        held.string("name");
        held.string("description");
        held.boolean("strict");
        nested.absorb(held);
      }
      // Some clients leave out the holder.
      const JsonValue* schema = holder != nullptr ? holder->find("schema") : nested.find("schema");
      if (schema == nullptr || !(schema->is(JsonValue::Kind::kObject) || schema->is_bool())) {
        nested.fail("json_schema.schema", "found none, expected a schema");
      } else {
        set(GrammarKind::kJsonSchema, dump_python_json(*schema), "response_format.json_schema.schema");
      }
    } else if (*type != "text") {
      nested.fail("type", "found \"" + *type + "\", expected text, json_object or json_schema");
    }
    fields.absorb(nested);
  }
  if (const JsonValue* schema = fields.find("guided_json")) {
    set(GrammarKind::kJsonSchema, schema->is(JsonValue::Kind::kString) ? schema->text : dump_python_json(*schema),
        "guided_json");
  }
  if (const auto regex = fields.string("guided_regex")) set(GrammarKind::kRegex, *regex, "guided_regex");
  if (const JsonValue* choices = fields.array("guided_choice")) {
    set(GrammarKind::kRegex, regex_of_choices(fields, *choices, "guided_choice"), "guided_choice");
  }
  // Asked for and not kept would be worse than refused.
  constexpr const char* kNotOffered = "is not offered; JSON schemas, regular expressions and choices are";
  if (fields.has("guided_grammar")) fields.fail("guided_grammar", kNotOffered);
  if (const JsonValue* outputs = fields.object("structured_outputs")) {
    RequestFields nested(*outputs, "structured_outputs.");
    if (const JsonValue* schema = nested.find("json")) {
      set(GrammarKind::kJsonSchema, schema->is(JsonValue::Kind::kString) ? schema->text : dump_python_json(*schema),
          "structured_outputs.json");
    }
    if (const auto regex = nested.string("regex")) set(GrammarKind::kRegex, *regex, "structured_outputs.regex");
    if (nested.boolean("json_object").value_or(false)) {
      set(GrammarKind::kJsonObject, "", "structured_outputs.json_object");
    }
    if (const JsonValue* choices = nested.array("choice")) {
      set(GrammarKind::kRegex, regex_of_choices(fields, *choices, "structured_outputs.choice"),
          "structured_outputs.choice");
    }
    for (const std::string_view key : {"grammar", "structural_tag"}) {
      if (nested.has(key)) nested.fail(key, kNotOffered);
    }
    fields.absorb(nested);
  }
  if (param.empty() || fields.failed()) return;
  auto constraint = compile_constraint(model, grammar);
  if (!constraint.ok()) return fields.fail(param, constraint.status().message());
  request.make_constraint = std::move(*constraint);
}

void read_format(RequestFields& fields, const JsonValue& format, std::string_view where, const ServedModel& model,
                 Request& request) {
  if (fields.failed()) return;
  JsonValue body = json_object();
  json_set(body, "response_format", format);
  RequestFields nested(body);
  read_constraint(nested, model, request);
  if (!nested.failed()) return;
  ApiError error = nested.error();
  for (std::string* text : {&error.param, &error.message}) {
    for (const std::string_view name : {"response_format.json_schema", "response_format"}) {
      if (text->starts_with(name)) text->replace(0, name.size(), where);
    }
  }
  fields.fail(std::move(error));
}

}  // namespace fathom
