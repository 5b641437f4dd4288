// For the grammar library's compiled_grammar.cc, as CMakeLists.txt has it compiled: the bytes that may come behind a
// counted repetition. Its own rule looks no further than the rule that the repetition stands in, and so leaves out
// whatever a pattern ends with: each token of a mask was then tried by itself, 20 ms and more at the real size.
#pragma once

#include <grammar_impl.h>

#include <bitset>
#include <map>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

namespace xgrammar {

class RepetitionFollow {
 public:
  struct Bytes {
    std::bitset<256> in_all;  // may come wherever the place is met
    std::bitset<256> in_any;
  };

  // The grammar outlives it.
  explicit RepetitionFollow(const Grammar& grammar) : grammar_(grammar), references_(grammar->NumRules()) {
    for (int rule = 0; rule < grammar->NumRules(); ++rule) {
      if (const auto* stop = grammar->GetSuffixStopInfo(rule)) {
        for (const int one : {rule, stop->body_rule_id, stop->marker_rule_id}) {
          if (one >= 0) outside_[one] = std::nullopt;
        }
      }
      if (!grammar->per_rule_fsms[rule].has_value()) {
        all_known_ = false;  // what such a rule refers to is not seen
        continue;
      }
      std::unordered_set<int> states;
      grammar->per_rule_fsms[rule]->GetFsm().GetReachableStates(&states);
      for (const int state : states) {
        for (const auto& edge : grammar->per_rule_fsms[rule]->GetFsm().GetFsm().GetEdges(state)) {
          if (edge.IsRuleRef()) references_[edge.GetRefRuleId()].emplace_back(rule, edge.target);
          if (edge.IsRepeatRef()) {
            outside_[grammar->complete_fsm.GetRepeatEdgeInfo(edge.GetAuxIndex()).RuleId()] = std::nullopt;
          }
        }
      }
    }
  }

  // From `state` of the rule's automaton on, within the rule or, where it may end, behind it. None: bytes alone do not
  // say it.
  std::optional<Bytes> from(int rule, int state, int depth = 0) {
    if (depth > kMostDepth || !grammar_->per_rule_fsms[rule].has_value()) return std::nullopt;
    const auto [at, is_new] = from_.try_emplace({rule, state}, std::nullopt);  // none while it is looked for
    if (!is_new) return at->second;
    const auto& automaton = grammar_->per_rule_fsms[rule]->GetFsm();
    Bytes found;
    for (const auto& edge : automaton.GetFsm().GetEdges(state)) {
      if (!add(found, of_edge(rule, edge, depth))) return std::nullopt;
    }
    if (automaton.IsEndState(state) && !add(found, behind(rule, depth))) return std::nullopt;
    from_[{rule, state}] = found;
    return found;
  }

 private:
  static constexpr int kMostDepth = 200;

  static bool add(Bytes& to, const std::optional<Bytes>& more) {
    if (!more) return false;
    to.in_all |= more->in_all;
    to.in_any |= more->in_any;
    return true;
  }

  template <class Edge>
  std::optional<Bytes> of_edge(int rule, const Edge& edge, int depth) {
    Bytes found;
    if (edge.IsCharRange() && edge.max <= 0xFF) {
      for (int byte = edge.min; byte <= edge.max; ++byte) found.in_any.set(byte);
      found.in_all = found.in_any;
      return found;
    }
    if (edge.IsEpsilon()) return from(rule, edge.target, depth + 1);
    if (!edge.IsRepeatRef()) return std::nullopt;
    const auto info = grammar_->complete_fsm.GetRepeatEdgeInfo(edge.GetAuxIndex());
    const auto& body = grammar_->per_rule_fsms[info.RuleId()];
    if (info.Upper() < 1 || !body.has_value() || body->GetFsm().IsEndState(body->GetFsm().GetStart()) ||
        !add(found, from(info.RuleId(), body->GetFsm().GetStart(), depth + 1)) ||
        (info.Lower() == 0 && !add(found, from(rule, edge.target, depth + 1)))) {
      return std::nullopt;
    }
    return found;
  }

  // Behind the rule, where others refer to it.
  std::optional<Bytes> behind(int rule, int depth) {
    if (!all_known_) return std::nullopt;
    const auto [at, is_new] = outside_.try_emplace(rule, std::nullopt);  // none while it is looked for: it meets itself
    if (!is_new) return at->second;
    Bytes found{std::bitset<256>().set(), {}};
    if (rule == grammar_->GetRootRuleId()) found.in_all.reset();  // nothing comes behind the whole text
    for (const auto& [referring, target] : references_[rule]) {
      const auto one = from(referring, target, depth + 1);
      if (!one) return std::nullopt;
      found.in_all &= one->in_all;
      found.in_any |= one->in_any;
    }
    outside_[rule] = found;
    return found;
  }

  const Grammar& grammar_;
  std::vector<std::vector<std::pair<int, int>>> references_;  // to each rule: from which, and the state behind it
  std::map<std::pair<int, int>, std::optional<Bytes>> from_;
  std::map<int, std::optional<Bytes>> outside_;  // behind each rule, as far as it was asked for
  bool all_known_ = true;
};

}  // namespace xgrammar
