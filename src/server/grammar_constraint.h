// From the grammar room to the engine: a compiled grammar as the constraint of each choice.
#pragma once

#include <functional>
#include <memory>

#include "engine/request.h"
#include "grammar/grammar.h"
#include "server/server_options.h"

namespace fathom {

using MakeConstraint = std::function<std::unique_ptr<TokenConstraint>()>;

// Compiles on the grammar room's threads, within its time. Fails closed: what cannot be compiled, or not in this build,
// is refused, never answered unbound.
Result<MakeConstraint> compile_constraint(const ServedModel& model, const GrammarSpec& spec);

// Fits as long as one of the two does.
MakeConstraint make_either(MakeConstraint a, MakeConstraint b);

// The bytes of every id of the model; of added tokens only the one that tool calls are made of.
GrammarVocabulary grammar_vocabulary(const Tokenizer& tokenizer, std::int32_t vocab_size);

}  // namespace fathom
