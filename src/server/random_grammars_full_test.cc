// Grammars that nobody wrote: schemas and expressions drawn at random, sent through the routes in bodies of every API
// (the fuzz target is built without the grammar library), and held to what they say: an answer drawn at random from a
// grammar's masks fits the schema or the expression it was made of. Whatever the grammar would leave out has to be
// refused. FATHOM_TEST_SEED sets where it begins; each part takes 8 seconds.
#include <gtest/gtest.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>

#include "engine/scripted_executor.h"
#include "grammar/testing/random_expression.h"
#include "server/grammar_constraint.h"
#include "server/json_build.h"
#include "server/router.h"
#include "server/testing/captured_exchange.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace fathom {
namespace {

using Kind = JsonValue::Kind;
using std::chrono::seconds;

constexpr seconds kTimeBox{8};
constexpr std::chrono::milliseconds kPatience{120'000};

std::uint64_t first_seed() {
  const char* text = std::getenv("FATHOM_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}

JsonValue json_number(double value) {
  JsonValue out;
  out.kind = Kind::kNumber;
  char digits[32];
  out.text = std::string(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  return out;
}
JsonValue json_int(std::int64_t value) { return json_number(static_cast<double>(value)); }

// Where schemas come from; keeps the expressions of their patterns, by their text.
struct Source {
  Dice& dice;
  std::map<std::string, RandomExpression> expressions;
};

JsonValue random_schema(Source& source, int depth);

JsonValue random_object(Source& source, int depth, const std::vector<std::string>& names = {"a", "b\"", "c d"}) {
  Dice& dice = source.dice;
  JsonValue schema = json_object(), properties = json_object(), required = json_array();
  json_set(schema, "type", json_string("object"));
  for (const std::string& name : names) {
    if (dice.one_in(2)) continue;
    json_set(properties, name, random_schema(source, depth - 1));
    if (dice.one_in(2)) required.items.push_back(json_string(name));
  }
  json_set(schema, "properties", std::move(properties));
  if (!required.items.empty()) json_set(schema, "required", std::move(required));
  if (dice.one_in(2)) {
    JsonValue no;
    no.kind = Kind::kFalse;
    json_set(schema, "additionalProperties", dice.one_in(3) ? random_schema(source, 0) : std::move(no));
  }
  return schema;
}

JsonValue random_schema(Source& source, int depth) {
  Dice& dice = source.dice;
  JsonValue schema = json_object();
  const auto type = [&](const char* name) { json_set(schema, "type", json_string(name)); };
  const auto bounds = [&](const char* low, const char* high, std::size_t most) {
    const auto least = static_cast<std::int64_t>(dice.below(most));
    if (dice.one_in(2)) json_set(schema, low, json_int(least));
    if (dice.one_in(2)) json_set(schema, high, json_int(least + static_cast<std::int64_t>(dice.below(most))));
  };
  switch (dice.below(depth > 0 ? 9 : 6)) {
    case 0: type("boolean"); break;
    case 1:
      type("integer");
      bounds("minimum", "maximum", 1000);
      break;
    case 2:
      type("number");
      if (dice.one_in(2)) {
        bounds("minimum", "maximum", 50);
        break;
      }
      for (const char* name : {dice.one_in(2) ? "minimum" : "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
        const double bound =
            (static_cast<double>(dice.below(9)) - 3) * std::pow(10.0, -static_cast<double>(dice.below(9)));
        if (dice.one_in(2)) json_set(schema, name, json_number(bound));
      }
      break;
    case 3: {
      JsonValue choices = json_array();
      for (const char* text : {"x", "y\"z", "\n", "é"}) choices.items.push_back(json_string(text));
      choices.items.push_back(json_int(7));
      json_set(schema, "enum", std::move(choices));
      break;
    }
    case 4:
      type("string");
      bounds("minLength", "maxLength", 5);
      break;
    case 5:
      type("string");
      {
        const RandomExpression expression(dice, 1);
        source.expressions.emplace(expression.text(), expression);
        json_set(schema, "pattern", json_string(expression.text()));
      }
      break;
    case 6: {
      type("array");
      json_set(schema, "items", random_schema(source, depth - 1));
      bounds("minItems", "maxItems", 3);
      break;
    }
    case 7: return random_object(source, depth);
    default: {
      JsonValue choices = json_array();
      for (int i = 0; i < 2; ++i) choices.items.push_back(random_schema(source, depth - 1));
      json_set(schema, "anyOf", std::move(choices));
    }
  }
  return schema;
}

double number_of(const JsonValue& value) { return value.as_double().value_or(0); }

// What is wrong with the value; empty: it fits. For the keywords that random_schema makes.
std::string misfit(const Source& source, const JsonValue& schema, const JsonValue& value) {
  if (const JsonValue* choices = schema.find("anyOf")) {
    std::string all;
    for (const JsonValue& choice : choices->items) {
      const std::string one = misfit(source, choice, value);
      if (one.empty()) return {};
      all += one + "; ";
    }
    return all;
  }
  if (const JsonValue* choices = schema.find("enum")) {
    for (const JsonValue& choice : choices->items) {
      if (choice.kind == value.kind && choice.text == value.text) return {};
    }
    return "none of the enum";
  }
  const std::string& type = schema.find("type")->text;
  const auto bound = [&](const char* name) { return schema.find(name); };
  if (type == "boolean") return value.is_bool() ? "" : "no boolean";
  if (type == "integer" || type == "number") {
    if (!value.is(Kind::kNumber) || (type == "integer" && value.text.find_first_of(".eE") != std::string::npos)) {
      return "no " + type;
    }
    if (bound("minimum") != nullptr && number_of(value) < number_of(*bound("minimum"))) return "below minimum";
    if (bound("maximum") != nullptr && number_of(value) > number_of(*bound("maximum"))) return "above maximum";
    if (const JsonValue* low = bound("exclusiveMinimum"); low != nullptr && number_of(value) <= number_of(*low)) {
      return "not above exclusiveMinimum";
    }
    if (const JsonValue* high = bound("exclusiveMaximum"); high != nullptr && number_of(value) >= number_of(*high)) {
      return "not below exclusiveMaximum";
    }
  } else if (type == "string") {
    if (!value.is(Kind::kString)) return "no string";
    const auto length = static_cast<double>(std::count_if(
        value.text.begin(), value.text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
    if (bound("minLength") != nullptr && length < number_of(*bound("minLength"))) return "too short";
    if (bound("maxLength") != nullptr && length > number_of(*bound("maxLength"))) return "too long";
    if (const JsonValue* pattern = bound("pattern")) {
      if (!source.expressions.at(pattern->text).matches(value.text, false).value_or(true)) {
        return "not of the pattern " + pattern->text;
      }
    }
  } else if (type == "array") {
    if (!value.is(Kind::kArray)) return "no array";
    const auto count = static_cast<double>(value.items.size());
    if (bound("minItems") != nullptr && count < number_of(*bound("minItems"))) return "too few items";
    if (bound("maxItems") != nullptr && count > number_of(*bound("maxItems"))) return "too many items";
    for (const JsonValue& item : value.items) {
      if (auto found = misfit(source, *bound("items"), item); !found.empty()) return found;
    }
  } else {
    if (!value.is(Kind::kObject)) return "no object";
    const JsonValue* properties = bound("properties");
    const JsonValue* others = bound("additionalProperties");
    for (const auto& member : value.members) {
      const JsonValue* of_member = properties->find(member.key);
      if (of_member == nullptr && others != nullptr && others->is(Kind::kFalse)) return "a property too many";
      if (of_member == nullptr) of_member = others;
      if (of_member == nullptr) continue;
      if (auto found = misfit(source, *of_member, member.value); !found.empty()) return found;
    }
    for (const JsonValue& name : bound("required") != nullptr ? bound("required")->items : std::vector<JsonValue>{}) {
      if (value.find(name.text) == nullptr) return "a property is missing";
    }
  }
  return {};
}

class RandomGrammars : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_tokenizer(std::string(FATHOM_SOURCE_DIR) + "/models/mini-v4");
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    tokenizer_ = std::make_shared<const Tokenizer>(std::move(*opened));
    vocabulary_ = grammar_vocabulary(*tokenizer_, static_cast<std::int32_t>(tokenizer_->vocab_size()));
    auto made = make_grammar_compiler(vocabulary_);
    if (!made.ok()) GTEST_SKIP() << "this build has no grammar library";
    compiler_ = std::move(*made);
    end_ = std::chrono::steady_clock::now() + kTimeBox;
  }
  // A slow machine gets the time it takes to see some of each.
  bool goes_on(bool has_seen_some) const {
    const auto now = std::chrono::steady_clock::now();
    return now < end_ || (!has_seen_some && now < end_ + kPatience);
  }

  // An answer of at most `most` tokens, each any that the mask allows; the end as soon as it may come and the dice say
  // so. Nothing when it has not come by then, or nothing is allowed.
  std::optional<std::string> draw(const std::shared_ptr<const CompiledGrammar>& grammar, Dice& dice, int most) const {
    const auto matcher = compiler_->make_matcher(grammar);
    const std::size_t num_words = (vocabulary_.token_bytes.size() + 31) / 32;
    std::string text;
    for (int i = 0; i < most; ++i) {
      if (matcher->may_end() && dice.one_in(3)) return text;
      std::vector<std::uint32_t> mask(num_words, ~0u);
      matcher->next_mask(mask);
      std::vector<TokenId> allowed, brief;
      for (std::size_t id = 0; id < vocabulary_.token_bytes.size(); ++id) {
        const std::string& bytes = vocabulary_.token_bytes[id];
        if ((mask[id / 32] >> (id % 32) & 1u) == 0 || bytes.empty()) continue;
        allowed.push_back(static_cast<TokenId>(id));
        if (bytes.find_first_of("\"}],:") != std::string::npos) brief.push_back(static_cast<TokenId>(id));
      }
      if (allowed.empty()) {
        EXPECT_TRUE(matcher->may_end()) << "no way on after \"" << text << "\"";
        return matcher->may_end() ? std::optional(text) : std::nullopt;
      }
      // What closes things is drawn more often than its share, so that answers end.
      const TokenId token = dice.of(!brief.empty() && dice.one_in(2) ? brief : allowed);
      if (dice.one_in(32)) check_mask(*matcher, mask, text);
      if (const Status status = matcher->accept(token); !status.ok()) {
        ADD_FAILURE() << "after \"" << text << "\": " << status.message();
        return std::nullopt;
      }
      text += vocabulary_.token_bytes[static_cast<std::size_t>(token)];
    }
    return std::nullopt;
  }

  // A mask holds what is taken, all of it and nothing else.
  void check_mask(GrammarMatcher& matcher, const std::vector<std::uint32_t>& mask, const std::string& text) const {
    for (std::size_t id = 0; id < vocabulary_.token_bytes.size(); ++id) {
      if (vocabulary_.token_bytes[id].empty()) continue;
      const bool is_taken = matcher.accept(static_cast<TokenId>(id)).ok();
      if (is_taken) matcher.rollback(1);
      ASSERT_EQ((mask[id / 32] >> (id % 32) & 1u) != 0, is_taken)
          << "\"" << vocabulary_.token_bytes[id] << "\" after \"" << text << "\"";
    }
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  GrammarVocabulary vocabulary_;
  std::shared_ptr<GrammarCompiler> compiler_;
  std::chrono::steady_clock::time_point end_;
};

TEST_F(RandomGrammars, AnswersFitWhatTheGrammarWasMadeOf) {
  int num_compiled = 0, num_refused = 0, num_checked = 0;
  for (std::uint64_t seed = first_seed(); goes_on(num_refused > 0 && num_checked > 0); ++seed) {
    SCOPED_TRACE("FATHOM_TEST_SEED=" + std::to_string(seed));
    Dice dice(seed);
    const bool is_regex = dice.one_in(3);
    Source source{dice, {}};
    const JsonValue schema = random_schema(source, 2);
    const RandomExpression expression(dice, 1);
    const std::string text_of = is_regex ? expression.text() : dump_python_json(schema);
    const auto grammar =
        compiler_->compile({is_regex ? GrammarKind::kRegex : GrammarKind::kJsonSchema, text_of}, kPatience);
    if (!grammar.ok()) {
      EXPECT_EQ(grammar.status().code(), StatusCode::kInvalidArgument) << text_of << ": " << grammar.status().message();
      ++num_refused;
      continue;
    }
    ++num_compiled;
    for (int i = 0; i < 6; ++i) {
      const auto text = draw(*grammar, dice, is_regex ? 20 : 60);
      if (!text) continue;
      ++num_checked;
      if (is_regex) {
        if (!is_valid_utf8(*text)) continue;
        ASSERT_TRUE(expression.matches(*text, true).value_or(true)) << text_of << " does not match " << *text;
        continue;
      }
      // Cut characters, which the library counts otherwise and the engine replaces.
      if (!is_valid_utf8(*text)) continue;
      const auto value = parse_json(*text);
      // JSON, but no number that a program holds.
      if (!value.ok() && value.status().message().find("number overflow") != std::string::npos) continue;
      ASSERT_TRUE(value.ok()) << text_of << " gave " << *text << ": " << value.status().message();
      ASSERT_EQ(misfit(source, schema, *value), "") << text_of << " gave " << *text;
    }
  }
  std::printf("random grammars: %d compiled, %d refused, %d answers checked\n", num_compiled, num_refused, num_checked);
  EXPECT_GT(num_compiled, 0);
  EXPECT_GT(num_refused, 0);
  EXPECT_GT(num_checked, 0);
}

// The value of each argument of a call in an answer, as those who read it take them: up to the closing tag.
std::vector<std::pair<std::string, Result<JsonValue>>> arguments_of(std::string_view answer) {
  static constexpr std::string_view kBegin = "<｜DSML｜parameter name=\"", kEnd = "</｜DSML｜parameter>";
  std::vector<std::pair<std::string, Result<JsonValue>>> out;
  for (std::size_t at = answer.find(kBegin); at != std::string_view::npos; at = answer.find(kBegin)) {
    answer.remove_prefix(at + kBegin.size());
    const std::string name(answer.substr(0, answer.find('"')));
    const bool is_string = answer.substr(name.size()).starts_with("\" string=\"true\">");
    answer.remove_prefix(answer.find('>') + 1);
    const std::string value(answer.substr(0, answer.find(kEnd)));
    out.emplace_back(name, is_string ? Result<JsonValue>(json_string(value)) : parse_json(value));
  }
  return out;
}

TEST_F(RandomGrammars, ArgumentsFitTheirSchemas) {
  int num_refused = 0, num_checked = 0;
  for (std::uint64_t seed = first_seed(); goes_on(num_checked > 0); ++seed) {
    SCOPED_TRACE("FATHOM_TEST_SEED=" + std::to_string(seed));
    Dice dice(seed);
    Source source{dice, {}};
    const JsonValue schema = random_object(source, 3, {"a", "b", "c"});
    const std::vector<CallableTool> tools = {{"f", dump_python_json(schema)}};
    const auto spec = make_tool_calls_source(tools, ToolCallRule::kRequired, false);
    const auto grammar = spec.ok() ? compiler_->compile({GrammarKind::kToolCalls, *spec}, kPatience) : spec.status();
    if (!grammar.ok()) {
      EXPECT_EQ(grammar.status().code(), StatusCode::kInvalidArgument) << grammar.status().message();
      ++num_refused;
      continue;
    }
    SCOPED_TRACE(tools[0].parameters_schema);
    for (int i = 0; i < 6; ++i) {
      const auto text = draw(*grammar, dice, 160);
      if (!text || !is_valid_utf8(*text)) continue;
      ++num_checked;
      const JsonValue* properties = schema.find("properties");
      const JsonValue* others = schema.find("additionalProperties");
      for (const auto& [name, value] : arguments_of(*text)) {
        const JsonValue* of_member = properties->find(name) != nullptr ? properties->find(name) : others;
        if (!value.ok() && value.status().message().find("number overflow") != std::string::npos) continue;
        ASSERT_TRUE(value.ok()) << "gave " << *text << ": " << value.status().message();
        if (of_member == nullptr) continue;
        ASSERT_FALSE(of_member->is(Kind::kFalse)) << "gave " << *text;
        ASSERT_EQ(misfit(source, *of_member, *value), "") << "gave " << *text;
      }
    }
  }
  std::printf("random tools: %d refused, %d answers checked\n", num_refused, num_checked);
  EXPECT_GT(num_checked, 0);
}

// Bytes changed, keywords of all kinds put in, values of the wrong kind.
std::string mutated(Dice& dice, std::string schema) {
  static const std::vector<std::string> kPieces = {R"("$ref":"#",)",
                                                   R"("$ref":"#/$defs/x","$defs":{"x":{}},)",
                                                   R"("not":{},)",
                                                   R"("pattern":"(",)",
                                                   R"("pattern":"a$b",)",
                                                   R"("minLength":-1,)",
                                                   R"("maxItems":1e99,)",
                                                   R"("multipleOf":0,)",
                                                   R"("format":"email",)",
                                                   R"("enum":[],)",
                                                   R"("type":["string","null"],)",
                                                   R"("type":5,)",
                                                   R"("properties":[],)",
                                                   R"("required":"a",)",
                                                   R"("oneOf":[{},{}],)",
                                                   R"("const":{"a":[1]},)",
                                                   R"("patternProperties":{"^x":{"type":"integer"},"[":{}},)",
                                                   R"("propertyNames":{"maxLength":3},)",
                                                   R"("minProperties":2,"maxProperties":1,)",
                                                   R"("additionalProperties":{"type":"quux"},)",
                                                   R"("prefixItems":[{"type":"null"}],)",
                                                   R"("minimum":9223372036854775807,)",
                                                   R"("exclusiveMaximum":-9223372036854775808,)",
                                                   R"("maxLength":2147483648,)"};
  for (std::size_t i = dice.below(3); i > 0; --i) {
    const std::size_t brace = schema.find('{', dice.below(schema.size()));
    if (brace != std::string::npos) schema.insert(brace + 1, dice.of(kPieces));
  }
  if (dice.one_in(4)) schema[dice.below(schema.size())] = static_cast<char>(dice.below(256));
  return schema;
}

TEST_F(RandomGrammars, NoBodyIsAServersFault) {
  static HttpServerCounts counts;
  ServerOptions options;
  options.model_names = {"mini"};
  options.log_requests = false;
  ServerContext context(std::move(options));
  context.http_counts = &counts;
  auto model = std::make_shared<ServedModel>();
  model->tokenizer = tokenizer_;
  model->grammar = compiler_;
  model->longest_token_bytes = 64;
  ScriptedOptions scripted;
  scripted.limits.vocab_size = static_cast<std::int32_t>(tokenizer_->vocab_size());
  scripted.limits.max_length_tokens = 2048;
  scripted.eos_share = 0.1;
  scripted.step_us = scripted.row_us = 0;
  auto engine = Engine::make({}, std::make_unique<ScriptedExecutor>(std::move(scripted)), tokenizer_);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  model->engine = std::move(*engine);
  context.served = model;

  std::map<int, int> statuses;
  for (std::uint64_t seed = first_seed(); goes_on(statuses[200] > 0 && statuses[400] > 0); ++seed) {
    Dice dice(seed);
    Source source{dice, {}};
    const std::string schema = mutated(dice, dump_python_json(random_schema(source, 2)));
    std::string regex = RandomExpression(dice, 1).text(), quoted;
    if (dice.one_in(4)) regex.insert(dice.below(regex.size() + 1), 1, static_cast<char>(1 + dice.below(127)));
    append_json_quoted(regex, quoted);
    const std::string chat =
        R"({"messages":[{"role":"user","content":"q"}],"max_tokens":12,"thinking":{"type":"disabled"},)";
    const std::vector<std::pair<std::string, std::string>> bodies = {
        {"/v1/chat/completions",
         chat + R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":)" + schema + "}}}"},
        {"/v1/chat/completions",
         chat +
             R"("tool_choice":"required","tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":)" +
             schema + "}}]}"},
        {"/v1/completions", R"({"prompt":"x","max_tokens":12,"guided_regex":)" + quoted + "}"},
        {"/v1/completions", R"({"prompt":"x","max_tokens":12,"structured_outputs":{"json":)" + schema + "}}"},
        {"/v1/responses",
         R"({"input":"x","max_output_tokens":12,"reasoning":{"effort":"none"},"text":{"format":{"type":"json_schema","name":"n","schema":)" +
             schema + "}}}"},
        {"/v1/messages",
         R"({"messages":[{"role":"user","content":"q"}],"max_tokens":12,"output_config":{"format":{"type":"json_schema","schema":)" +
             schema + "}}}"},
        {"/v1/messages",
         R"({"messages":[{"role":"user","content":"q"}],"max_tokens":12,"tools":[{"name":"f","strict":true,"input_schema":)" +
             schema + "}]}"}};
    HttpRequest request;
    request.method = "POST";
    std::tie(request.path, request.body) = dice.of(bodies);
    const std::string sent = request.path + " " + request.body;
    const auto exchange = std::make_shared<CapturedExchange>(std::move(request));
    answer_request(context, exchange);
    const auto status = exchange->wait(kPatience);
    ASSERT_TRUE(status.has_value()) << "seed " << seed << ": no answer to " << sent;
    ASSERT_LT(*status, 500) << "seed " << seed << ": " << sent << ": " << exchange->body();
    ++statuses[*status];
  }
  context.parsers.stop();
  model->engine->shutdown();
  context.workers.stop();
  context.answers.clear();
  for (const auto& [status, count] : statuses) std::printf("status %d: %d\n", status, count);
  EXPECT_GT(statuses[200], 0);
  EXPECT_GT(statuses[400], 0);
}

}  // namespace
}  // namespace fathom
