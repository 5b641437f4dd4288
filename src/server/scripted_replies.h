// Answers written into prompts, for tests of clients and of the server: with the scripted executor, a prompt that holds
// "⟦TEXT⟧" is answered with TEXT (its control strings as control tokens, e.g. "r</think>answer") and the end of the
// sequence. A chat's answer begins after the prompt's last assistant token and think tag, a raw prompt's after "⟧".
// Other prompts get what the executor's hash says. Of several marks the last counts; "⟦TEXT×N⟧" repeats TEXT N times.
// "⟦✗TEXT⟧" is answered with TEXT too, and what is drafted of it is all wrong.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "base/ids.h"
#include "text/tokenizer.h"

namespace fathom {

// For ScriptedOptions::next_token.
std::function<std::optional<TokenId>(std::span<const TokenId> context)> make_scripted_replies(
    std::shared_ptr<const Tokenizer> tokenizer);

// For ScriptedOptions::misdrafts.
std::function<bool(std::span<const TokenId> context)> make_scripted_misdrafts(
    std::shared_ptr<const Tokenizer> tokenizer);

}  // namespace fathom
