#include <cstdio>

#include "base/mapped_file.h"
#include "commands.h"
#include "engine/scheduler_log.h"
#include "standard_streams.h"

namespace fathom::app {
namespace {

const char* event_name(EventKind kind) {
  switch (kind) {
    case EventKind::kSubmit: return "submit";
    case EventKind::kAdmit: return "admit";
    case EventKind::kPlan: return "plan";
    case EventKind::kCommit: return "commit";
    case EventKind::kCancel: return "cancel";
    case EventKind::kPreempt: return "preempt";
    case EventKind::kEvict: return "evict";
    case EventKind::kResume: return "resume";
    case EventKind::kFinish: return "finish";
  }
  return "";
}

void print_event(const EngineEvent& event) {
  std::printf("step %lld %s sequence %lld length %lld tokens %d%s\n", static_cast<long long>(event.step),
              event_name(event.kind), static_cast<long long>(event.sequence.value),
              static_cast<long long>(event.length), event.num_tokens, event.prefill ? " prefill" : "");
}

}  // namespace

int run_replay(const ReplayOptions& options) {
  const auto text = read_text_file(options.file);
  if (!text.ok()) return report_failure("replay", text.status());
  const auto report = replay_scheduler_log(*text, options.events ? print_event : decltype (&print_event)(nullptr));
  if (!report.ok()) return report_failure("replay", report.status().with_context(options.file));
  const auto line = [](const char* name, std::int64_t value) {
    std::printf("  %-32s %lld\n", name, static_cast<long long>(value));
  };
  if (report->cut_line > 0) {
    std::printf("%s: the log is truncated at line %lld, which has no end and is left out; before it ",
                options.file.c_str(), static_cast<long long>(report->cut_line));
  } else {
    std::printf("%s: ", options.file.c_str());
  }
  std::printf("the same plans, all rules kept\n");
  line("calls", report->num_lines);
  line("steps", report->num_steps);
  line("sequences", report->num_sequences);
  line("cancelled", report->num_cancelled);
  line("prefill rows", report->prefill_rows);
  line("most of them beside decodes", report->most_prefill_rows);
  line("decode rows", report->decode_rows);
  line("tokens drawn", report->drawn_tokens);
  line("prefix hits", report->prefix_hits);
  line("tokens they gave", report->cached_tokens);
  line("blocks evicted", report->evicted_blocks);
  line("preemptions", report->preemptions);
  line("longest wait, steps", report->longest_wait_steps);
  line("most running", report->most_running);
  line("most context blocks held", report->most_context_blocks);
  return 0;
}

}  // namespace fathom::app
