#include "profile/timeline.h"

#include <zlib.h>

#include <algorithm>

namespace fathom {

TimelineStep step_of_trace(const StepTrace& trace) {
  TimelineStep step;
  step.step = trace.step;
  step.num_tokens = trace.num_tokens;
  step.num_sequences = trace.num_sequences;
  step.committed_tokens = trace.num_committed;
  step.total_us = trace.turn_us + trace.step_us;
  step.collect_us = trace.collect_us;
  double at = 0;
  const auto add = [&](const char* name, double time_us, bool container = false) {
    if (time_us > 0) step.phases.push_back({name, at, time_us, container});
    at += time_us;
  };
  add("turn", trace.turn_us);
  add("schedule", trace.schedule_us);
  const double origin = at;
  add("prepare", trace.prepare_us);
  add("forward", trace.forward_us, true);
  add("sample", trace.sample_us);
  add("draft", trace.draft_us, true);
  // What launch and wait hold beside those parts.
  add("launch", std::max(0.0, origin + trace.launch_us - at));
  at = origin + trace.launch_us;
  add("wait", trace.wait_us, true);
  add("commit", trace.commit_us);
  add("detokenise", trace.detokenise_us);
  step.calls.reserve(trace.samples.size());
  for (const OpSample& sample : trace.samples) {
    TimelineCall call;
    call.begin_us = origin + sample.begin_us;
    call.time_us = sample.time_us;
    call.layer = sample.scope.layer;
    call.operation = sample.scope.operation;
    call.variant = sample.scope.variant;
    call.bytes = sample.cost.bytes;
    call.flops = sample.cost.flops;
    step.calls.push_back(std::move(call));
  }
  return step;
}

Result<std::string> compress_gzip(std::string_view text) {
  z_stream stream{};
  // 16 + 15: a gzip header around the largest window.
  if (deflateInit2(&stream, 6, Z_DEFLATED, 16 + 15, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    return internal_error("zlib cannot begin to compress");
  }
  std::string out(deflateBound(&stream, static_cast<uLong>(text.size())), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int code = deflate(&stream, Z_FINISH);
  const std::size_t size = stream.total_out;
  deflateEnd(&stream);
  if (code != Z_STREAM_END) return internal_error("zlib did not compress to the end: code " + std::to_string(code));
  out.resize(size);
  return out;
}

}  // namespace fathom
