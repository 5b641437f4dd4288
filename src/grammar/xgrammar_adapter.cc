// The one file that sees the library. Its exceptions end here, and so does its log.
#include <grammar_functor.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"
#include "base/log.h"
#include "grammar/grammar.h"
#include "grammar/json_in_calls.h"
#include "grammar/regex_check.h"
#include "grammar/regex_counts.h"
#include "grammar/schema_enforcement.h"
#include "grammar/schema_lengths.h"
#include "grammar/schema_recursion.h"
#include "grammar/schema_strings.h"
#include "grammar/text_lengths.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

// The first of the library's warnings on this thread, while one of these lives: what it leaves out of a grammar it
// tells its log and nobody else.
class HeardWarnings {
 public:
  HeardWarnings() { listening_ = this; }
  ~HeardWarnings() { listening_ = nullptr; }
  HeardWarnings(const HeardWarnings&) = delete;
  HeardWarnings& operator=(const HeardWarnings&) = delete;

  static void hear(const std::string& message) {
    // Anchors are no condition where check_regex let them pass.
    const bool is_anchor = message.find("Anchor '") == 0 || message.find("' should be at the ") != std::string::npos;
    if (listening_ == nullptr || is_anchor) return log_debug("grammar library: " + message);
    if (listening_->first_.empty()) listening_->first_ = message;
  }
  const std::string& first() const { return first_; }

 private:
  static thread_local HeardWarnings* listening_;
  std::string first_;
};
thread_local HeardWarnings* HeardWarnings::listening_ = nullptr;

using Mask = std::vector<std::uint32_t>;

Mask mask_of(const std::vector<std::string>& token_bytes, bool (*is_allowed)(const std::string&)) {
  Mask mask((token_bytes.size() + 31) / 32, ~0u);
  for (std::size_t id = 0; id < token_bytes.size(); ++id) {
    if (!is_allowed(token_bytes[id])) mask[id / 32] &= ~(1u << (id % 32));
  }
  return mask;
}

// What holds beside the library's masks. JSON's strings hold no control characters, and those that the library makes of
// minLength and maxLength do: tokens with any but line ends are left out of JSON wherever they would stand. Nor do they
// hold the bar of tags in a call, where whoever reads it would see a tag.
struct Vocabulary {
  explicit Vocabulary(std::vector<std::string> bytes)
      : token_bytes(std::move(bytes)),
        without_controls(mask_of(token_bytes, has_no_controls)),
        without_controls_and_bars(mask_of(token_bytes, [](const std::string& text) {
          return has_no_controls(text) && text.find("\xEF\xBD\x9C") == std::string::npos;
        })) {}

  static bool has_no_controls(const std::string& text) {
    return std::none_of(text.begin(), text.end(),
                        [](char c) { return static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r'; });
  }

  // Made where a length has to be counted: megabytes at the real size.
  const TextTokens& text_tokens() const {
    std::call_once(text_tokens_made_, [this] { text_tokens_ = std::make_unique<TextTokens>(token_bytes); });
    return *text_tokens_;
  }

  std::vector<std::string> token_bytes;
  Mask without_controls, without_controls_and_bars;

 private:
  mutable std::once_flag text_tokens_made_;
  mutable std::unique_ptr<TextTokens> text_tokens_;
};

struct Compiled final : CompiledGrammar {
  Compiled(xgrammar::CompiledGrammar g, GrammarKind k, std::shared_ptr<const Vocabulary> v, TextBounds b)
      : grammar(std::move(g)), kind(k), vocabulary(std::move(v)), bounds(std::move(b)) {}
  xgrammar::CompiledGrammar grammar;
  GrammarKind kind;
  std::shared_ptr<const Vocabulary> vocabulary;
  TextBounds bounds;  // of tool calls
};

class Matcher final : public GrammarMatcher {
 public:
  Matcher(std::shared_ptr<const CompiledGrammar> grammar, std::int64_t vocab_size)
      : grammar_(std::move(grammar)),
        matcher_(compiled().grammar),
        mask_words_(xgrammar::GetBitmaskSize(static_cast<int>(vocab_size))) {
    if (!compiled().bounds.empty()) lengths_.emplace(compiled().bounds, compiled().vocabulary->text_tokens());
  }

  bool next_mask(std::span<std::uint32_t> mask) override {
    FATHOM_CHECK(static_cast<std::int64_t>(mask.size()) == mask_words_, "one mask bit per id");
    if (matcher_.IsTerminated()) {
      std::fill(mask.begin(), mask.end(), 0u);
      return true;
    }
    DLTensor tensor{};
    tensor.data = mask.data();
    tensor.device = DLDevice{kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = xgrammar::GetBitmaskDLType();
    tensor.shape = &mask_words_;
    const bool is_bound = matcher_.FillNextTokenBitmask(&tensor);
    const Mask* also = mask_beside();
    if (lengths_) lengths_->restrict(mask, compiled().vocabulary->token_bytes);
    if (also == nullptr) return is_bound || lengths_;
    for (std::size_t i = 0; i < mask.size(); ++i) mask[i] &= (*also)[i];
    return true;
  }

  Status accept(TokenId token) override {
    if (matcher_.IsTerminated()) return failed_precondition("a token came after the constrained answer had ended");
    const Mask* also = mask_beside();
    const auto id = static_cast<std::size_t>(token);
    const std::vector<std::string>& bytes = compiled().vocabulary->token_bytes;
    const bool is_barred = id >= bytes.size() || (also != nullptr && ((*also)[id / 32] >> (id % 32) & 1u) == 0);
    const bool is_counted = !is_barred && lengths_;
    if (is_barred || (is_counted && !lengths_->push(bytes[id])) || !matcher_.AcceptToken(token)) {
      if (is_counted) lengths_->pop(1);
      return failed_precondition("token " + std::to_string(token) + " does not fit the answer's grammar");
    }
    if (compiled().kind == GrammarKind::kToolCalls) calls_.push(bytes[id]);
    return {};
  }

  void rollback(std::int32_t num_tokens) override {
    matcher_.Rollback(num_tokens);
    if (compiled().kind == GrammarKind::kToolCalls) calls_.pop(num_tokens);
    if (lengths_) lengths_->pop(num_tokens);
  }
  bool may_end() const override { return matcher_.IsCompleted(); }

 private:
  const Compiled& compiled() const { return static_cast<const Compiled&>(*grammar_); }

  // Null: none.
  const Mask* mask_beside() const {
    const Vocabulary& vocabulary = *compiled().vocabulary;
    switch (compiled().kind) {
      case GrammarKind::kRegex: return nullptr;
      case GrammarKind::kJsonObject:
      case GrammarKind::kJsonSchema: return &vocabulary.without_controls;
      case GrammarKind::kToolCalls: break;
    }
    if (!calls_.in_json()) return nullptr;
    return calls_.in_string() ? &vocabulary.without_controls_and_bars : &vocabulary.without_controls;
  }

  std::shared_ptr<const CompiledGrammar> grammar_;
  xgrammar::GrammarMatcher matcher_;
  std::int64_t mask_words_;
  JsonInCalls calls_;
  std::optional<TextLengths> lengths_;
};

// In the source of tool calls, beside the library's own members.
constexpr const char* kTextBounds = "text_bounds";

Json to_json(const TextBounds& bounds) {
  Json out = Json::array();
  for (const BoundedTool& tool : bounds) {
    for (const auto& [name, one] : tool.texts) out.push_back({tool.name, name, one.least, one.most});
  }
  return out;
}

TextBounds text_bounds_of(const Json& source) {
  TextBounds out;
  for (const Json& one : source.value(kTextBounds, Json::array())) {
    const std::string tool = one.at(0);
    if (out.empty() || out.back().name != tool) out.push_back({tool, {}});
    out.back().texts[one.at(1)] = {one.at(2), one.at(3)};
  }
  return out;
}

// Depth by counting brackets outside strings: safe on any input, before a recursive parser sees it.
std::int32_t bracket_depth(std::string_view text) {
  std::int32_t depth = 0;
  std::int32_t deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

// What the library says of a grammar, without the line of its log and of its source that it puts in front, and without
// places in the grammar that it makes of ours.
std::string words_of(const std::exception& error) {
  std::string text = error.what();
  if (text.find("is<") != std::string::npos) return "a member has a value of the wrong kind";  // an assertion's text
  for (const std::string_view source : {".cc:", ".h:"}) {
    while (true) {
      const std::size_t at = text.find(source);
      const std::size_t end = at == std::string::npos ? at : text.find(": ", at + source.size());
      if (end == std::string::npos) break;
      text.erase(0, end + 2);
    }
  }
  if (text.starts_with("EBNF")) text.erase(0, text.find(": ") + 2);
  std::replace(text.begin(), text.end(), '\n', ' ');
  text.erase(text.find_last_not_of(' ') + 1);
  return text.empty() ? "it cannot be read" : text;
}

// Whether some text leads to a state of the automaton that no end can be reached from.
bool has_dead_ends(const xgrammar::FSMWithStartEnd& automaton) {
  auto made = automaton.ToDFA();
  if (made.IsErr()) return false;  // more states than are made one by one
  const auto states = std::move(made).Unwrap();
  std::unordered_set<int> reached;
  states.GetReachableStates(&reached);
  std::unordered_map<int, std::vector<int>> before;
  std::vector<int> todo;
  std::unordered_set<int> ending;
  for (const int state : reached) {
    for (const auto& edge : states.GetFsm().GetEdges(state)) before[edge.target].push_back(state);
    if (states.IsEndState(state) && ending.insert(state).second) todo.push_back(state);
  }
  while (!todo.empty()) {
    const int state = todo.back();
    todo.pop_back();
    for (const int one : before[state]) {
      if (ending.insert(one).second) todo.push_back(one);
    }
  }
  return ending.size() < reached.size();
}

// The library makes an automaton of a string's pattern, without the characters that JSON writes as escapes (quotes,
// backslashes, control characters). Where nothing is left of it, or it cannot make one, it falls back to a grammar that
// lets them through bare: no JSON. Where a branch is cut off in its middle, an answer that took it would have no way
// on.
Status check_quotable(const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    try {
      auto made = xgrammar::GrammarFSMBuilder::Regex(small_counts(pattern), true);
      if (made.IsErr()) return invalid_argument("\"pattern\": " + words_of(std::move(made).UnwrapErr()));
      const auto automaton = std::move(made).Unwrap();
      std::unordered_set<int> states;
      automaton.GetReachableStates(&states);
      if (std::none_of(states.begin(), states.end(), [&](int state) { return automaton.IsEndState(state); }) ||
          has_dead_ends(automaton)) {
        return invalid_argument(
            "\"pattern\": " + pattern +
            " needs a quote, a backslash or a control character, which is not supported in strings");
      }
    } catch (const std::exception& error) {
      return invalid_argument("\"pattern\": " + words_of(error));
    }
  }
  return {};
}

// Compilations run here and outlive a caller who stops waiting. Shared by the compiler and its threads.
class Workshop : public std::enable_shared_from_this<Workshop> {
 public:
  using Product = Result<std::shared_ptr<const CompiledGrammar>>;

  Workshop(const xgrammar::TokenizerInfo& info, std::vector<std::string> token_bytes, const GrammarLimits& limits)
      : compiler_(info, 1, true, limits.cache_bytes / 2, false),
        vocabulary_(std::make_shared<const Vocabulary>(std::move(token_bytes))),
        limits_(limits) {}

  Product compile(const GrammarSpec& spec, std::chrono::milliseconds timeout) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    const std::string key = std::to_string(static_cast<int>(spec.kind)) + ":" + spec.source;
    std::shared_future<Product> future;
    {
      std::unique_lock lock(mutex_);
      auto found = jobs_.find(key);
      if (found == jobs_.end()) {
        if (!place_free_.wait_until(lock, deadline, [&] { return running_ < limits_.num_threads; })) {
          return resource_exhausted("the grammar was not compiled: for " + std::to_string(timeout.count()) + " ms " +
                                    std::to_string(running_) + " others were, the most at once; try again");
        }
        found = jobs_.find(key);  // somebody else may have begun it meanwhile
      }
      if (found == jobs_.end()) {
        auto promise = std::make_shared<std::promise<Product>>();
        found = jobs_.emplace(key, Job{promise->get_future().share(), 0}).first;
        order_.push_back(key);
        ++running_;
        std::thread([self = shared_from_this(), key, spec, promise] {
          Product product = self->compile_now(spec);
          const std::size_t num_bytes =
              product.ok() ? static_cast<const Compiled&>(**product).grammar.MemorySizeBytes() : 0;
          {
            // Ready and counted at once: forget_oldest looks for what is ready.
            std::lock_guard inner(self->mutex_);
            promise->set_value(std::move(product));
            --self->running_;
            self->jobs_.at(key).num_bytes = num_bytes;
            self->kept_bytes_ += num_bytes;
            self->forget_oldest();
          }
          self->place_free_.notify_all();
        }).detach();
      }
      future = found->second.product;
    }
    if (future.wait_until(deadline) != std::future_status::ready) {
      return resource_exhausted("the grammar took longer than " + std::to_string(timeout.count()) +
                                " ms to compile; simplify it or try again");
    }
    return future.get();
  }

 private:
  static constexpr std::size_t kMostGrammars = 256;
  static constexpr std::size_t kMostAutomatonSize = 1000;  // it takes time with the square of its size

  struct Job {
    std::shared_future<Product> product;
    std::size_t num_bytes;  // of what came out
  };

  // Finished ones only: a job that runs is waited for by its key. The library's own cache has the other half.
  void forget_oldest() {
    while (order_.size() > kMostGrammars || kept_bytes_ > static_cast<std::size_t>(limits_.cache_bytes) / 2) {
      if (order_.empty()) return;
      const auto job = jobs_.find(order_.front());
      if (job->second.product.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
      kept_bytes_ -= job->second.num_bytes;
      jobs_.erase(job);
      order_.pop_front();
    }
  }

  // As rules a large count is unrolled in part, which takes seconds for a class of many characters, and each mask may
  // take a tenth of one. As the library's automaton it is a number.
  static xgrammar::Grammar convert_regex(const std::string& regex) {
    if (has_large_count(regex) && check_regex(small_counts(regex), kMostAutomatonSize).ok()) {
      const std::string ascii = as_ascii(regex);
      if (!xgrammar::GrammarFSMBuilder::Regex(small_counts(ascii), false).IsErr()) {
        return xgrammar::Grammar::FromEBNF("root ::= Regex(" + Json(close_counts(ascii)).dump() + ")");
      }
    }
    return xgrammar::Grammar::FromRegex(regex);
  }

  // Converted here rather than within the library's cache, which would hide what it warned of the first time.
  static xgrammar::Grammar convert(const GrammarSpec& spec, TextBounds& bounds) {
    switch (spec.kind) {
      case GrammarKind::kJsonObject:
        return xgrammar::Grammar::FromJSONSchema(R"({"type": "object"})", true, std::nullopt, std::nullopt, false);
      case GrammarKind::kJsonSchema: return xgrammar::Grammar::FromJSONSchema(spec.source);
      case GrammarKind::kRegex: return convert_regex(spec.source);
      case GrammarKind::kToolCalls: break;
    }
    Json source = Json::parse(spec.source);
    bounds = text_bounds_of(source);
    source.erase(kTextBounds);
    auto made = xgrammar::Grammar::FromStructuralTag(source.dump());
    if (auto* grammar = std::get_if<xgrammar::Grammar>(&made)) return std::move(*grammar);
    std::visit([](const auto& error) { throw std::runtime_error(error.what()); },
               std::get<xgrammar::StructuralTagError>(made));
    throw std::runtime_error("it cannot be read");
  }

  Product compile_now(const GrammarSpec& spec) {
    try {
      const HeardWarnings warnings;
      TextBounds bounds;
      const xgrammar::Grammar grammar = convert(spec, bounds);
      if (!warnings.first().empty()) {
        return invalid_argument("the grammar would leave out a condition (the answer could break it unseen): " +
                                warnings.first());
      }
      auto compiled =
          std::make_shared<Compiled>(compiler_.CompileGrammar(grammar), spec.kind, vocabulary_, std::move(bounds));
      if (!compiled->bounds.empty()) vocabulary_->text_tokens();  // here rather than on the engine's thread
      if (spec.kind == GrammarKind::kJsonSchema && xgrammar::GrammarMatcher(compiled->grammar).IsCompleted()) {
        return invalid_argument("the grammar is not valid: no value fits the schema");
      }
      return std::shared_ptr<const CompiledGrammar>(std::move(compiled));
    } catch (const std::exception& error) {
      return invalid_argument("the grammar is not valid: " + words_of(error));
    }
  }

  xgrammar::GrammarCompiler compiler_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  GrammarLimits limits_;
  std::mutex mutex_;
  std::condition_variable place_free_;
  std::unordered_map<std::string, Job> jobs_;
  std::size_t kept_bytes_ = 0;
  std::list<std::string> order_;  // oldest first
  std::int32_t running_ = 0;
};

class Compiler final : public GrammarCompiler {
 public:
  Compiler(const xgrammar::TokenizerInfo& info, std::vector<std::string> token_bytes, const GrammarLimits& limits)
      : vocab_size_(static_cast<std::int64_t>(token_bytes.size())),
        workshop_(std::make_shared<Workshop>(info, std::move(token_bytes), limits)),
        limits_(limits) {}

  Result<std::shared_ptr<const CompiledGrammar>> compile(const GrammarSpec& spec,
                                                         std::chrono::milliseconds timeout) override {
    FATHOM_ASSIGN_OR_RETURN(const GrammarSpec prepared, prepare(spec));
    return workshop_->compile(prepared, timeout);
  }

  std::unique_ptr<GrammarMatcher> make_matcher(std::shared_ptr<const CompiledGrammar> grammar) const override {
    return std::make_unique<Matcher>(std::move(grammar), vocab_size_);
  }

 private:
  // Checked, and written as the library has to read it.
  Result<GrammarSpec> prepare(const GrammarSpec& spec) const {
    if (static_cast<std::int64_t>(spec.source.size()) > limits_.source_bytes) {
      return invalid_argument("the grammar has " + std::to_string(spec.source.size()) + " bytes, expected at most " +
                              std::to_string(limits_.source_bytes));
    }
    if (spec.kind == GrammarKind::kJsonObject) return spec;
    if (spec.kind == GrammarKind::kRegex) {
      if (spec.source.empty()) return invalid_argument("the regular expression is empty");
      FATHOM_RETURN_IF_ERROR(check_regex(spec.source));
      return GrammarSpec{spec.kind, spell_out(spec.source)};
    }
    if (bracket_depth(spec.source) > limits_.nesting) {
      return invalid_argument("the schema nests deeper than " + std::to_string(limits_.nesting) + " levels");
    }
    Json json = Json::parse(spec.source, nullptr, false);
    if (json.is_discarded()) return invalid_argument("the schema is not JSON");
    if (!json.is_object() && !(json.is_boolean() && spec.kind == GrammarKind::kJsonSchema)) {
      return invalid_argument("the schema is a JSON " + std::string(json.type_name()) + ", expected an object");
    }
    // The schemas within tool calls were looked at where their source was made.
    if (spec.kind != GrammarKind::kJsonSchema) return spec;
    FATHOM_RETURN_IF_ERROR(check_not_recursive(json));
    FATHOM_RETURN_IF_ERROR(check_enforced(json));
    const Json as_sent = json;
    FATHOM_RETURN_IF_ERROR(check_quotable(spell_out_strings(json, StringPlaces::kJson)));
    return json == as_sent ? spec : GrammarSpec{spec.kind, json.dump()};
  }

  std::int64_t vocab_size_;
  std::shared_ptr<Workshop> workshop_;
  GrammarLimits limits_;
};

}  // namespace

Result<std::string> make_tool_calls_source(std::span<const CallableTool> tools, ToolCallRule rule, bool parallel) {
  if (tools.empty()) return invalid_argument("tool calls need at least one tool");
  Json tags = Json::array();
  TextBounds bounds;
  for (const CallableTool& tool : tools) {
    if (tool.name.empty() || tool.name.find_first_of("\"\n<>") != std::string::npos) {
      return invalid_argument("tool name \"" + tool.name + "\": expected a name without quotes, brackets or newlines");
    }
    if (bracket_depth(tool.parameters_schema) > GrammarLimits{}.nesting) {
      return invalid_argument("the parameters of tool " + tool.name + " nest too deeply");
    }
    const std::string& source = tool.parameters_schema;
    Json schema = source.empty() ? Json(true) : Json::parse(source, nullptr, false);
    if (schema.is_discarded() || !(schema.is_object() || schema.is_boolean())) {
      return invalid_argument("the parameters of tool " + tool.name + " are not a JSON schema object");
    }
    if (const Status status = check_not_recursive(schema); !status.ok()) {
      return status.with_context("the parameters of tool " + tool.name);
    }
    if (const Status status = check_enforced(schema); !status.ok()) {
      return status.with_context("the parameters of tool " + tool.name);
    }
    if (const Status status = check_objects_only(schema); !status.ok()) {
      return status.with_context("the parameters of tool " + tool.name);
    }
    if (BoundedTool bounded = take_text_bounds(schema, tool.name); !bounded.texts.empty()) {
      bounds.push_back(std::move(bounded));
    }
    if (const Status status = check_unrolled(schema); !status.ok()) {
      return status.with_context("the parameters of tool " + tool.name);
    }
    if (const Status status = check_quotable(spell_out_strings(schema, StringPlaces::kArguments)); !status.ok()) {
      return status.with_context("the parameters of tool " + tool.name);
    }
    if (schema.is_object() && !schema.contains("type")) schema["type"] = "object";
    if (schema.is_boolean()) schema = Json{{"type", "object"}};
    // A value ends at the first "</": excluding the closing tag's marker keeps raw strings parseable.
    tags.push_back({{"type", "tag"},
                    {"begin", "<｜DSML｜invoke name=\"" + tool.name + "\">\n"},
                    {"content", {{"type", "json_schema"}, {"json_schema", schema}, {"style", "deepseek_xml"}}},
                    {"end", "</｜DSML｜invoke>\n"}});
  }
  const Json calls = {{"type", "tags_with_separator"},
                      {"tags", tags},
                      {"separator", ""},
                      {"at_least_one", true},
                      {"stop_after_first", !parallel}};
  Json format;
  if (rule == ToolCallRule::kRequired) {
    format = {{"type", "sequence"},
              {"elements",
               {{{"type", "const_string"}, {"value", "\n\n<｜DSML｜tool_calls>\n"}},
                calls,
                {{"type", "const_string"}, {"value", "</｜DSML｜tool_calls>"}}}}};
  } else {
    format = {{"type", "triggered_tags"},
              {"triggers", {"<｜DSML｜tool_calls>"}},
              {"tags",
               {{{"type", "tag"},
                 {"begin", "<｜DSML｜tool_calls>\n"},
                 {"content", calls},
                 {"end", "</｜DSML｜tool_calls>"}}}},
              {"stop_after_first", true}};
  }
  return Json{{"type", "structural_tag"}, {"format", format}, {kTextBounds, to_json(bounds)}}.dump();
}

Result<std::unique_ptr<GrammarCompiler>> make_grammar_compiler(GrammarVocabulary vocabulary,
                                                               const GrammarLimits& limits) {
  const auto vocab_size = static_cast<std::int64_t>(vocabulary.token_bytes.size());
  if (vocab_size == 0) return invalid_argument("a grammar needs a vocabulary");
  for (TokenId id : vocabulary.stop_ids) {
    if (id < 0 || id >= vocab_size) {
      return invalid_argument("stop id " + std::to_string(id) + " lies outside the vocabulary of " +
                              std::to_string(vocab_size));
    }
  }
  try {
    const xgrammar::TokenizerInfo info(
        vocabulary.token_bytes, xgrammar::VocabType::RAW, static_cast<int>(vocab_size),
        std::vector<std::int32_t>(vocabulary.stop_ids.begin(), vocabulary.stop_ids.end()));
    return std::unique_ptr<GrammarCompiler>(
        std::make_unique<Compiler>(info, std::move(vocabulary.token_bytes), limits));
  } catch (const std::exception& error) {
    return internal_error("the grammar library refused the vocabulary: " + words_of(error));
  }
}

}  // namespace fathom

namespace xgrammar {

// Declared by the library for programs that take its log (XGRAMMAR_LOG_CUSTOMIZE).
[[noreturn]] void LogFatalImpl(const std::string& file, int lineno, const std::string& message);
void LogMessageImpl(const std::string& file, int lineno, int level, const std::string& message);

void LogFatalImpl(const std::string&, int, const std::string& message) { throw std::runtime_error(message); }
void LogMessageImpl(const std::string&, int, int, const std::string& message) { fathom::HeardWarnings::hear(message); }

}  // namespace xgrammar
