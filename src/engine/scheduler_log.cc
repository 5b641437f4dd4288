#include "engine/scheduler_log.h"

#include <algorithm>
#include <memory>
#include <set>
#include <sstream>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/hash.h"

namespace fathom {
namespace {

constexpr std::string_view kVersion = "fathom-scheduler-log-1";

// Strings as hex, "-" for an empty one: a word each.
std::string to_word(const std::string& text) {
  if (text.empty()) return "-";
  std::string word;
  for (char c : text) {
    constexpr char kDigits[] = "0123456789abcdef";
    word += kDigits[static_cast<unsigned char>(c) >> 4];
    word += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return word;
}

bool from_word(const std::string& word, std::string& text) {
  text.clear();
  if (word == "-") return true;
  if (word.size() % 2 != 0) return false;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const char c = word[i];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return false;
    if (i % 2 == 0) {
      text += static_cast<char>(digit << 4);
    } else {
      text.back() = static_cast<char>(text.back() | digit);
    }
  }
  return true;
}

void write_ids(std::ostream& out, std::span<const TokenId> ids) {
  out << ' ' << ids.size();
  for (TokenId id : ids) out << ' ' << id;
}

bool read_ids(std::istream& in, std::vector<TokenId>& ids) {
  std::size_t num = 0;
  ids.clear();
  if (!(in >> num) || num > (std::size_t{1} << 24)) return false;
  for (TokenId id = 0; ids.size() < num && in >> id;) ids.push_back(id);
  return ids.size() == num;
}

}  // namespace

SchedulerLog::SchedulerLog(SchedulerLogSink sink, const SchedulerOptions& o, const ExecutorLimits& l)
    : sink_(std::move(sink)) {
  if (!sink_) return;
  std::ostringstream out;
  out << kVersion << '\n'
      << "limits " << l.vocab_size << ' ' << l.max_length_tokens << ' ' << l.max_rows << ' ' << l.max_logits_rows << ' '
      << l.max_sequences << ' ' << l.num_context_blocks << ' ' << l.num_window_blocks << ' ' << l.num_state_slots << ' '
      << l.num_resume_slots << ' ' << l.max_proposals << ' ' << l.classes_differ << ' ' << l.weights_fingerprint << '\n'
      << "options " << o.prefill_chunk_tokens << ' ' << o.prefill_chunk_shared_tokens << ' '
      << o.prefill_chunk_alone_tokens << ' ' << o.max_running << ' ' << o.ageing_steps << ' ' << o.prefix_cache << ' '
      << o.reuse_decoded << '\n';
  sink_(out.str());
}

void SchedulerLog::add(const SequenceSpec& spec) const {
  std::ostringstream out;
  out << "add " << spec.id.value << ' ' << spec.priority << ' ' << to_word(spec.key) << ' ' << to_word(spec.cache_salt)
      << ' ' << spec.use_prefix_cache << ' ' << spec.prompt_logits << ' ' << spec.wait_for.value;
  write_ids(out, spec.prompt);
  sink_(out.str() + '\n');
}
void SchedulerLog::finish(SequenceId id, bool cancelled) const {
  sink_("finish " + std::to_string(id.value) + (cancelled ? " 1\n" : " 0\n"));
}
void SchedulerLog::paused(SequenceId id, bool paused) const {
  sink_("pause " + std::to_string(id.value) + (paused ? " 1\n" : " 0\n"));
}
void SchedulerLog::held(SequenceId id, bool held) const {
  sink_("hold " + std::to_string(id.value) + (held ? " 1\n" : " 0\n"));
}
void SchedulerLog::drafts(SequenceId id, std::span<const TokenId> drafts) const {
  std::ostringstream out;
  out << "drafts " << id.value;
  write_ids(out, drafts);
  sink_(out.str() + '\n');
}
void SchedulerLog::plan(const StepPlan& plan) const { sink_("plan " + std::to_string(plan_digest(plan)) + '\n'); }
void SchedulerLog::commit(SequenceId id, std::span<const TokenId> new_tokens) const {
  std::ostringstream out;
  out << "commit " << id.value;
  write_ids(out, new_tokens);
  sink_(out.str() + '\n');
}
void SchedulerLog::flush() const { sink_("flush\n"); }

std::uint64_t plan_digest(const StepPlan& plan) {
  std::uint64_t hash = 0;
  const auto mix = [&hash](std::int64_t value) { hash = mix_hash(hash, static_cast<std::uint64_t>(value)); };
  mix(plan.step);
  mix(static_cast<std::int64_t>(plan.sequences.size()));
  for (const SequenceStep& step : plan.sequences) {
    mix(step.id.value);
    mix(step.start);
    mix(step.num_tokens);
    mix(step.num_drafts);
    mix(step.num_logits);
    mix(static_cast<std::int64_t>(step.step_class));
  }
  for (const TokenRef& token : plan.tokens) mix(token.id);
  for (const BlockTableDelta& delta : plan.deltas) {
    mix(delta.id.value);
    mix(delta.created * 2 + delta.released);
    mix(delta.state_slot.value);
    mix(delta.start_length);
    mix(delta.first_window_block);
    mix(static_cast<std::int64_t>(delta.appended_context.size()));
    for (BlockId block : delta.appended_context) mix(block.value);
    for (WindowBlockId block : delta.appended_window) mix(block.value);
  }
  for (const auto* copies : {&plan.resume_saves, &plan.resume_restores}) {
    mix(static_cast<std::int64_t>(copies->size()));
    for (const ResumeCopy& copy : *copies) {
      mix(copy.state_slot.value);
      mix(copy.resume_slot.value);
      mix(copy.boundary_tokens);
    }
  }
  return hash;
}

namespace {

std::string found_not(const std::string& what, std::int64_t found, std::int64_t expected) {
  return what + ": found " + std::to_string(found) + ", expected " + std::to_string(expected);
}

class Replay {
 public:
  explicit Replay(const std::function<void(const EngineEvent&)>& on_event) : on_event_(on_event) {}

  // One line; what is wrong with it, or with the state after it, or "".
  std::string play(std::istringstream& line) {
    ++report_.num_lines;
    std::string wrong = play_line(line);
    if (wrong.empty() && scheduler_ != nullptr) wrong = judge_state();
    return wrong;
  }

  ReplayReport report() {
    if (scheduler_ == nullptr) return report_;
    const SchedulerCounters& counters = scheduler_->counters();
    report_.num_steps = scheduler_->step();
    report_.preemptions = counters.preemptions;
    report_.prefix_hits = counters.prefix_hits;
    report_.cached_tokens = counters.cached_tokens;
    report_.evicted_blocks = scheduler_->prefix_cache().evicted_blocks();
    return report_;
  }

 private:
  std::string play_line(std::istringstream& line) {
    std::string what;
    if (!(line >> what)) return "";
    if (what == "limits") return read_limits(line);
    if (what == "options") return read_options(line);
    if (!scheduler_) return "found a call before the options";
    if (what == "add") return add(line);
    if (what == "plan") return plan(line);
    if (what == "flush") {
      scheduler_->flush_prefix_cache();
      return "";
    }
    SequenceId id;
    if (!(line >> id.value) || scheduler_->find(id) == nullptr) return "found no living sequence";
    if (what == "commit") return commit(line, id);
    std::vector<TokenId> ids;
    if (what == "drafts") {
      if (!read_ids(line, ids)) return "found broken ids";
      scheduler_->set_drafts(id, ids);
      return "";
    }
    bool flag = false;
    if (!(line >> flag) || (what != "finish" && what != "pause" && what != "hold"))
      return "found '" + what + "', which is no call";
    if (what == "pause") {
      scheduler_->set_paused(id, flag);
      return "";
    }
    if (what == "hold") {
      scheduler_->set_held(id, flag);
      return "";
    }
    if (next_ < steps_.size() && std::any_of(
                                     steps_.begin() + static_cast<std::ptrdiff_t>(next_), steps_.end(),
                                     [id](const SequenceStep& step) { return step.id == id; })) {
      return "found the end of a sequence whose step is not committed";
    }
    scheduler_->finish(id, flag);
    lengths_.erase(id);
    report_.num_cancelled += flag ? 1 : 0;
    return "";
  }

  // Blocks and slots add up.
  std::string judge_state() {
    const SchedulerCounters& counters = scheduler_->counters();
    const auto& context = scheduler_->context_pool();
    const auto& window = scheduler_->window_pool();
    for (const auto& [name, free, held, cached, all] :
         {std::tuple{"context blocks, free + held + cached", context.num_free(), context.num_held(),
                     context.num_cached(), context.num_blocks()},
          {"window blocks, free + held + cached", window.num_free(), window.num_held(), window.num_cached(),
           window.num_blocks()},
          {"state slots, free + running", scheduler_->num_free_state_slots(), counters.num_running, 0,
           limits_.num_state_slots}}) {
      if (held < 0 || free + held + cached != all) return found_not(name, free + held + cached, all);
    }
    if (counters.num_running == 0 && context.num_held() + window.num_held() > 0) {
      return found_not("blocks held while nothing runs", context.num_held() + window.num_held(), 0);
    }
    report_.most_running = std::max(report_.most_running, counters.num_running);
    report_.most_context_blocks = std::max(report_.most_context_blocks, context.num_held());
    read_events();
    return std::exchange(wrong_event_, {});
  }

  void read_events() {
    std::int64_t prefill_rows = 0, decode_rows = 0;
    for (const EngineEvent& event : scheduler_->take_events()) {
      if (on_event_) on_event_(event);
      switch (event.kind) {
        case EventKind::kSubmit: submitted_[event.sequence] = event.step; break;
        case EventKind::kAdmit:
          report_.longest_wait_steps = std::max(report_.longest_wait_steps, event.step - submitted_[event.sequence]);
          submitted_.erase(event.sequence);
          lengths_[event.sequence] = event.num_tokens;
          break;
        case EventKind::kResume: lengths_[event.sequence] = event.num_tokens; break;
        case EventKind::kPlan:
          (event.prefill ? prefill_rows : decode_rows) += event.num_tokens;
          if (event.length != lengths_[event.sequence]) {
            wrong_event_ = found_not("the step of sequence " + std::to_string(event.sequence.value) + " begins at",
                                     event.length, lengths_[event.sequence]);
          }
          break;
        case EventKind::kCommit:
          lengths_[event.sequence] = event.length;
          report_.drawn_tokens += event.num_tokens;
          break;
        default: break;
      }
    }
    report_.prefill_rows += prefill_rows;
    report_.decode_rows += decode_rows;
    if (prefill_rows == 0 || decode_rows == 0) return;
    report_.most_prefill_rows = std::max(report_.most_prefill_rows, prefill_rows);
    if (prefill_rows > options_.prefill_chunk_tokens) {
      wrong_event_ = found_not("rows of prefill beside decodes, at most", prefill_rows, options_.prefill_chunk_tokens);
    }
  }

  // A plan within the executor's limits.
  std::string judge_plan(const StepPlan& plan) const {
    std::int64_t rows = 0, logits = 0;
    std::set<SequenceId> seen;
    for (const SequenceStep& step : plan.sequences) {
      rows += step.num_tokens;
      logits += step.num_logits;
      if (!seen.insert(step.id).second) return "a plan holds sequence " + std::to_string(step.id.value) + " twice";
      if (step.num_tokens < 1) return "a plan holds a sequence without rows";
    }
    if (rows != static_cast<std::int64_t>(plan.tokens.size())) return "a plan's tokens are not its rows";
    if (rows > limits_.max_rows) return found_not("rows, at most", rows, limits_.max_rows);
    if (logits > limits_.max_logits_rows) return found_not("rows of logits, at most", logits, limits_.max_logits_rows);
    const auto num = static_cast<std::int64_t>(plan.sequences.size());
    return num > limits_.max_sequences ? found_not("sequences, at most", num, limits_.max_sequences) : "";
  }

  std::string read_limits(std::istream& in) {
    ExecutorLimits& l = limits_;
    const bool ok =
        static_cast<bool>(in >> l.vocab_size >> l.max_length_tokens >> l.max_rows >> l.max_logits_rows >>
                          l.max_sequences >> l.num_context_blocks >> l.num_window_blocks >> l.num_state_slots >>
                          l.num_resume_slots >> l.max_proposals >> l.classes_differ >> l.weights_fingerprint);
    const bool sane =
        ok && l.num_context_blocks >= 1 && l.num_window_blocks >= 3 && l.num_state_slots >= 1 &&
        std::max({l.num_context_blocks, l.num_window_blocks, l.num_state_slots, l.num_resume_slots}) < (1 << 24);
    return sane ? "" : "found broken limits";
  }
  std::string read_options(std::istream& in) {
    SchedulerOptions o;
    if (!(in >> o.prefill_chunk_tokens >> o.prefill_chunk_shared_tokens >> o.prefill_chunk_alone_tokens >>
          o.max_running >> o.ageing_steps >> o.prefix_cache >> o.reuse_decoded) ||
        limits_.num_state_slots < 1) {
      return "found broken options";
    }
    scheduler_ = std::make_unique<Scheduler>(o, limits_);
    options_ = o;
    return "";
  }
  std::string add(std::istream& in) {
    SequenceSpec spec;
    std::string key, salt;
    if (!(in >> spec.id.value >> spec.priority >> key >> salt >> spec.use_prefix_cache >> spec.prompt_logits >>
          spec.wait_for.value) ||
        !from_word(key, spec.key) || !from_word(salt, spec.cache_salt) || !read_ids(in, spec.prompt) ||
        spec.prompt.empty() || static_cast<std::int64_t>(spec.prompt.size()) >= scheduler_->max_sequence_tokens() ||
        scheduler_->find(spec.id) != nullptr) {
      return "found a broken sequence";
    }
    scheduler_->add(std::move(spec));
    ++report_.num_sequences;
    return "";
  }
  std::string plan(std::istream& in) {
    if (next_ < steps_.size()) return "found a plan before the last one was committed";
    std::uint64_t digest = 0;
    in >> digest;
    const StepPlan& made = scheduler_->plan();
    steps_ = made.sequences;
    next_ = 0;
    if (plan_digest(made) != digest) return "the plan of step " + std::to_string(made.step) + " differs";
    return judge_plan(made);
  }
  std::string commit(std::istream& in, SequenceId id) {
    std::vector<TokenId> ids;
    if (next_ >= steps_.size() || steps_[next_].id != id || !read_ids(in, ids) ||
        static_cast<std::int64_t>(ids.size()) > steps_[next_].num_drafts + 1) {
      return "found a commit that is not of the plan";
    }
    scheduler_->commit(steps_[next_++], ids);
    return "";
  }

  const std::function<void(const EngineEvent&)>& on_event_;
  ReplayReport report_;
  ExecutorLimits limits_;
  SchedulerOptions options_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unordered_map<SequenceId, std::int64_t> submitted_;  // the step then
  std::unordered_map<SequenceId, std::int64_t> lengths_;    // of the running ones, in the cache
  std::string wrong_event_;
  std::vector<SequenceStep> steps_;
  std::size_t next_ = 0;
};

}  // namespace

Result<ReplayReport> replay_scheduler_log(std::string_view text,
                                          const std::function<void(const EngineEvent&)>& on_event) {
  std::istringstream in{std::string(text)};
  std::string line;
  if (!std::getline(in, line) || line != kVersion) {
    return invalid_argument("not a scheduler log: found '" + line.substr(0, 40) + "', expected '" +
                            std::string(kVersion) + "'");
  }
  Replay replay(on_event);
  std::int64_t cut_line = 0;
  for (std::int64_t number = 2; std::getline(in, line); ++number) {
    if (in.eof()) {
      cut_line = number;
      break;
    }
    std::istringstream words(line);
    if (const std::string wrong = replay.play(words); !wrong.empty()) {
      return failed_precondition("scheduler log, line " + std::to_string(number) + ": " + wrong);
    }
  }
  ReplayReport report = replay.report();
  report.cut_line = cut_line;
  return report;
}

}  // namespace fathom
