// Linked where the grammar library could not be fetched: the same functions, which say so.
#include "grammar/grammar.h"

namespace fathom {
namespace {

Status library_absent() {
  return unavailable(
      "this build has no grammar library: run tools/fetch_xgrammar.sh (it needs PyPI), then configure and build again");
}

}  // namespace

Result<std::string> make_tool_calls_source(std::span<const CallableTool>, ToolCallRule, bool) {
  return library_absent();
}

Result<std::unique_ptr<GrammarCompiler>> make_grammar_compiler(GrammarVocabulary, const GrammarLimits&) {
  return library_absent();
}

}  // namespace fathom
