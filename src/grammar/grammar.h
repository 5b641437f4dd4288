// Constrained output: JSON, JSON schema, regular expressions and strict tool calls as token masks.
//
// An adapter over one library (xgrammar); nothing of it shows here. A program built without it (no network at
// set-up) has the same functions: make_grammar_compiler then fails and says what to run.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace fathom {

// What the masks are made for.
struct GrammarVocabulary {
  // The bytes of every id [vocab]. Empty: never allowed. Added tokens belong here only where a grammar may use
  // them as text (｜DSML｜ in tool calls).
  std::vector<std::string> token_bytes;
  std::vector<TokenId> stop_ids;  // allowed where the text may end
};

enum class GrammarKind : std::uint8_t {
  kJsonObject,  // any JSON object; source is not read
  kJsonSchema,  // source: the schema's text
  kRegex,       // source: the expression; the whole answer matches it
  kToolCalls,   // source: from make_tool_calls_source
};
struct GrammarSpec {
  GrammarKind kind = GrammarKind::kJsonObject;
  std::string source;
};

// One tool that an answer may call: its name and the JSON schema of its arguments ("" or "{}": any object).
struct CallableTool {
  std::string name;
  std::string parameters_schema;
};
enum class ToolCallRule : std::uint8_t {
  kOptional,  // free text, then maybe calls: calls that are made fit their schemas
  kRequired,  // the answer is calls, one at least
};
// The answer's DSML block (spec 8.3: two newlines, <｜DSML｜tool_calls>, invokes, the closing tag).
Result<std::string> make_tool_calls_source(std::span<const CallableTool> tools, ToolCallRule rule, bool parallel);

// Immutable; shared by every request with the same grammar.
class CompiledGrammar {
 public:
  virtual ~CompiledGrammar() = default;
};

// The state of one answer. Used by one thread at a time.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;
  // Clears the bits of ids that may not come next; `mask` [ceil(vocab / 32)] is all ones at entry. False: all may
  // come and the mask was not touched.
  virtual bool next_mask(std::span<std::uint32_t> mask) = 0;
  // The token came; a token outside the mask is a failure and the state stays as it was.
  virtual Status accept(TokenId token) = 0;
  virtual void rollback(std::int32_t num_tokens) = 0;
  virtual bool may_end() const = 0;
};

class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;
  // Compiles off the calling thread and waits at most `timeout`; what is not ready by then is refused (the work goes
  // on and fills the cache). Invalid schemas, expressions and tools: kInvalidArgument with the reason. Thread-safe.
  virtual Result<std::shared_ptr<const CompiledGrammar>> compile(const GrammarSpec& spec,
                                                                 std::chrono::milliseconds timeout) = 0;
  virtual std::unique_ptr<GrammarMatcher> make_matcher(std::shared_ptr<const CompiledGrammar> grammar) const = 0;
};

struct GrammarLimits {
  std::int64_t source_bytes = 256 * 1024;
  std::int32_t nesting = 64;                     // of a schema's JSON
  std::int64_t cache_bytes = 256 * 1024 * 1024;  // compiled grammars kept
  std::int32_t num_threads = 2;                  // compilations at once; more wait
};
Result<std::unique_ptr<GrammarCompiler>> make_grammar_compiler(GrammarVocabulary vocabulary,
                                                               const GrammarLimits& limits = {});

}  // namespace fathom
