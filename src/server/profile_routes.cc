// A capture of engine steps: begun, and taken as JSON (telemetry/step_trace_json.h has the format).
#include "server/json_writer.h"
#include "server/request_fields.h"
#include "server/routes.h"
#include "telemetry/step_trace_json.h"

namespace fathom {
namespace {

constexpr std::int32_t kDefaultSteps = 1000;

std::string run_members(const RouteCall& call, double http_us) {
  std::string out;
  JsonWriter json(out);
  json.begin_object().member("http_us", http_us).key("run").begin_object();
  const RunFacts& facts = call.model->run;
  json.member("backend", facts.backend).member("device", facts.device).member("model", facts.model);
  json.member("commit", facts.commit);
  json.member("numerics", facts.numerics).member("threads", facts.num_threads).key("variants").begin_object();
  for (const auto& [operation, variant] : facts.variants) json.member(operation, variant);
  json.end_object().end_object().end_object();
  return out.substr(1, out.size() - 2);  // its members
}

}  // namespace

void handle_start_profile(RouteCall& call) {
  std::int32_t num_steps = kDefaultSteps;
  if (!call.request().body.empty()) {
    ApiError error;
    const auto body = parse_body(call.request().body, error);
    if (!body) return call.reply_error(error);
    RequestFields fields(*body);
    if (const auto asked = fields.integer("num_steps", 1, kMaxCapturedSteps)) {
      num_steps = static_cast<std::int32_t>(*asked);
    }
    if (fields.failed()) return call.reply_error(fields.error());
  }
  if (const Status status = call.model->engine->start_capture(num_steps); !status.ok()) {
    return call.reply_error({409, status.message() + "; /stop_profile ends it", {}, "capture_running"});
  }
  call.server->capture_workers_busy_us = call.server->workers_busy_us();
  call.server->has_capture.store(true);
  std::string out;
  JsonWriter(out).begin_object().member("capturing", true).member("num_steps", num_steps).end_object();
  call.reply_json(std::move(out));
}

void handle_stop_profile(RouteCall& call) {
  if (!call.server->has_capture.exchange(false)) {
    return call.reply_error({409, "no capture was begun: /start_profile begins one", {}, "no_capture"});
  }
  const double http_us = call.server->workers_busy_us() - call.server->capture_workers_busy_us;
  const std::vector<TracedStep> steps = call.model->engine->stop_capture();
  call.reply_json(captured_steps_json(steps, run_members(call, std::max(0.0, http_us))));
}

}  // namespace fathom
