#include "server/grammar_constraint.h"

#include <algorithm>
#include <array>
#include <vector>

#include "text/chat_encoding.h"

namespace fathom {
namespace {

constexpr std::chrono::milliseconds kCompileLimit{10'000};

class MatcherConstraint : public TokenConstraint {
 public:
  MatcherConstraint(std::shared_ptr<GrammarCompiler> compiler, std::unique_ptr<GrammarMatcher> matcher)
      : compiler_(std::move(compiler)), matcher_(std::move(matcher)) {}

  bool next_mask(std::span<std::uint32_t> mask) override { return matcher_->next_mask(mask); }
  Status accept(TokenId token) override { return matcher_->accept(token); }
  void rollback(std::int32_t num_tokens) override { matcher_->rollback(num_tokens); }

 private:
  std::shared_ptr<GrammarCompiler> compiler_;  // outlives its matchers
  std::unique_ptr<GrammarMatcher> matcher_;
};

// Both run side by side; one that a token does not fit waits where it was, in case the token is taken back.
class EitherConstraint : public TokenConstraint {
 public:
  EitherConstraint(std::unique_ptr<TokenConstraint> a, std::unique_ptr<TokenConstraint> b)
      : sides_{Side{std::move(a)}, Side{std::move(b)}} {}

  bool next_mask(std::span<std::uint32_t> mask) override {
    std::vector<std::uint32_t> united(mask.size(), 0u);
    for (Side& side : sides_) {
      if (side.num_accepted < num_accepted_) continue;
      std::vector<std::uint32_t> own(mask.begin(), mask.end());
      if (!side.constraint->next_mask(own)) return false;
      for (std::size_t i = 0; i < own.size(); ++i) united[i] |= own[i];
    }
    std::copy(united.begin(), united.end(), mask.begin());
    return true;
  }
  Status accept(TokenId token) override {
    Status last = internal_error("no side is left");
    bool fits = false;
    for (Side& side : sides_) {
      if (side.num_accepted < num_accepted_) continue;
      last = side.constraint->accept(token);
      if (!last.ok()) continue;
      fits = true;
      ++side.num_accepted;
    }
    if (!fits) return last;
    ++num_accepted_;
    return {};
  }
  void rollback(std::int32_t num_tokens) override {
    num_accepted_ -= num_tokens;
    for (Side& side : sides_) {
      if (side.num_accepted <= num_accepted_) continue;
      side.constraint->rollback(side.num_accepted - num_accepted_);
      side.num_accepted = num_accepted_;
    }
  }

 private:
  struct Side {
    std::unique_ptr<TokenConstraint> constraint;
    std::int32_t num_accepted = 0;  // fewer than all: it has dropped out
  };
  std::array<Side, 2> sides_;
  std::int32_t num_accepted_ = 0;
};

}  // namespace

MakeConstraint make_either(MakeConstraint a, MakeConstraint b) {
  return [a = std::move(a), b = std::move(b)] { return std::make_unique<EitherConstraint>(a(), b()); };
}

Result<MakeConstraint> compile_constraint(const ServedModel& model, const GrammarSpec& spec) {
  if (model.grammar == nullptr) {
    return failed_precondition("constrained output needs the grammar library, which this build was made without");
  }
  FATHOM_ASSIGN_OR_RETURN(auto compiled, model.grammar->compile(spec, kCompileLimit));
  return MakeConstraint([compiler = model.grammar, compiled]() -> std::unique_ptr<TokenConstraint> {
    return std::make_unique<MatcherConstraint>(compiler, compiler->make_matcher(compiled));
  });
}

GrammarVocabulary grammar_vocabulary(const Tokenizer& tokenizer, std::int32_t vocab_size) {
  GrammarVocabulary vocabulary;
  vocabulary.token_bytes.resize(static_cast<std::size_t>(vocab_size));
  for (TokenId id = 0; id < vocab_size; ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (!tokenizer.is_added(id) || bytes == kDsmlText) {
      vocabulary.token_bytes[static_cast<std::size_t>(id)] = std::string(bytes);
    }
  }
  vocabulary.stop_ids.push_back(tokenizer.eos_id());
  return vocabulary;
}

}  // namespace fathom
