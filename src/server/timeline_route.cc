// GET /v1/requests/ID/timeline: where a request's time went.
#include "engine/timeline.h"

#include <algorithm>
#include <unordered_map>

#include "server/answer.h"
#include "server/json_writer.h"
#include "server/routes.h"

namespace fathom {
namespace {

class TimelineWriter {
 public:
  // others: by the engine's number, the ids that may be told.
  TimelineWriter(JsonWriter& json, std::int64_t start_us, const std::unordered_map<std::int64_t, std::string>& others)
      : json_(json), start_us_(start_us), others_(others) {}

  void choice(const ChoiceTimeline& line, std::size_t prompt, std::size_t choice) {
    json_.begin_object().member("prompt", prompt).member("choice", choice).member("complete", line.complete);
    json_.member("finished", line.finished).member("cached_tokens", line.cached_tokens);
    json_.member("preemptions", line.num_preemptions).key("spans").begin_array();
    for (const TimelineSpan& span : line.spans) write(span);
    json_.end_array().end_object();
  }

 private:
  static double ms(std::int64_t us) { return static_cast<double>(us) / 1000.0; }

  void write(const TimelineSpan& span) {
    json_.begin_object().member("kind", span_kind_name(span.kind));
    json_.member("from_ms", ms(span.begin_us - start_us_)).member("to_ms", ms(span.end_us - start_us_));
    if (span.num_steps > 0) json_.member("steps", span.num_steps);
    if (span.kind == SpanKind::kPrefill) json_.member("position", span.position).member("rows", span.num_rows);
    if (span.num_tokens > 0) json_.member("tokens", span.num_tokens);
    if (!span.causes.empty()) {
      json_.key("beside").begin_array();
      for (const SpanCause& cause : span.causes) {
        const auto known = others_.find(cause.request.value);
        json_.begin_object().member_or_null("request", known != others_.end() ? known->second : std::string());
        json_.member("engine_id", cause.request.value)
            .member("prefill_rows", cause.num_rows)
            .member("ms", ms(cause.us));
        json_.end_object();
      }
      json_.end_array();
    }
    json_.end_object();
  }

  JsonWriter& json_;
  std::int64_t start_us_;
  const std::unordered_map<std::int64_t, std::string>& others_;
};

}  // namespace

void reply_timeline(RouteCall& call, std::string_view id) {
  const auto all = request_records(*call.server);
  const RequestRecord* const record = find_record(call, all, id);
  const auto model = call.server->model();
  if (record == nullptr) return;
  if (model == nullptr) return call.reply_error(not_available("the server is shutting down"));
  std::unordered_map<std::int64_t, std::string> others;
  for (const RequestRecord& each : all) {
    if (!may_see(call, each)) continue;
    for (const std::int64_t engine_id : each.engine_ids) others.emplace(engine_id, each.id);
  }
  std::int64_t next = 0;
  const std::vector<EngineEvent> events = model->engine->events(&next);
  std::vector<std::vector<ChoiceTimeline>> prompts;
  std::int64_t start_us = 0;
  for (const std::int64_t engine_id : record->engine_ids) {
    prompts.push_back(make_timelines(events, RequestId(engine_id)));
    if (start_us == 0 && !prompts.back().empty() && !prompts.back().front().spans.empty()) {
      start_us = prompts.back().front().spans.front().begin_us;
    }
  }
  std::string out;
  JsonWriter json(out);
  json.begin_object().member("id", record->id).member("state", record->state).key("choices").begin_array();
  TimelineWriter writer(json, start_us, others);
  for (std::size_t prompt = 0; prompt < prompts.size(); ++prompt) {
    for (std::size_t choice = 0; choice < prompts[prompt].size(); ++choice) {
      writer.choice(prompts[prompt][choice], prompt, choice);
    }
  }
  json.end_array().end_object();
  call.reply_json(std::move(out));
}

}  // namespace fathom
