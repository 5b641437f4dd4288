#include "profile/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <nlohmann/json.hpp>

#include "profile/attribute.h"
#include "profile/report_text.h"
#include "telemetry/step_trace_json.h"

namespace fathom {
namespace {

using testing::HasSubstr;

TracedStep sample_trace() {
  TracedStep trace;
  trace.step = 41;
  trace.num_tokens = trace.num_sequences = trace.num_committed = 2;
  trace.turn_us = 5;
  trace.schedule_us = 10;
  trace.launch_us = 100;
  trace.step_us = 121;
  trace.prepare_us = 6;
  trace.forward_us = 80;
  trace.sample_us = 12;
  trace.detokenise_us = 7;
  trace.samples = {{{-1, "embed", "cpu"}, 7, 3, {100, 0}}, {{0, "linear", "reference"}, 12, 30.125, {3000, 6000}}};
  return trace;
}

constexpr const char* kRun =
    "\"http_us\":12.5,\"run\":{\"backend\":\"cpu\",\"device\":\"a CPU\",\"model\":\"mini\",\"numerics\":\"serve\","
    "\"threads\":2,\"variants\":{\"linear\":\"cpu\"}}";

TEST(Capture, JsonKeepsTheSteps) {
  const std::vector<TracedStep> traces = {sample_trace(), sample_trace()};
  const auto capture = parse_capture(captured_steps_json(traces, kRun), "x");
  ASSERT_TRUE(capture.ok()) << capture.status().message();
  EXPECT_EQ(capture->run.backend, "cpu");
  EXPECT_EQ(capture->run.variants.at("linear"), "cpu");
  EXPECT_DOUBLE_EQ(capture->http_us, 12.5);
  ASSERT_EQ(capture->steps.size(), 2u);
  const TimelineStep& read = capture->steps[1];
  const TimelineStep direct = step_of_trace(traces[1]);
  EXPECT_EQ(read.step, 41);
  EXPECT_DOUBLE_EQ(read.total_us, direct.total_us);
  ASSERT_EQ(read.calls.size(), 2u);
  EXPECT_EQ(read.calls[0].layer, -1);
  EXPECT_EQ(read.calls[1].operation, "linear");
  EXPECT_EQ(read.calls[1].variant, "reference");
  EXPECT_DOUBLE_EQ(read.calls[1].begin_us, direct.calls[1].begin_us);
  EXPECT_DOUBLE_EQ(read.calls[1].time_us, 30.125);
  EXPECT_DOUBLE_EQ(read.calls[1].flops, 6000);
  ASSERT_EQ(read.phases.size(), direct.phases.size());
}

TEST(Capture, EveryTruncationIsRefusedWithAReason) {
  const std::vector<TracedStep> traces = {sample_trace()};
  const std::string text = captured_steps_json(traces, kRun);
  for (std::size_t n = 0; n + 2 < text.size(); n += 3) {
    const auto capture = parse_capture(std::string_view(text).substr(0, n), "here");
    ASSERT_FALSE(capture.ok()) << n;
    EXPECT_THAT(capture.status().message(), HasSubstr("here")) << n;
  }
}

TEST(Capture, SaysWhatIsWrong) {
  const auto message = [](std::string_view text) { return parse_capture(text, "x").status().message(); };
  EXPECT_THAT(message("  \n"), HasSubstr("an empty capture"));
  EXPECT_THAT(message("[]"), HasSubstr("expected a capture"));
  EXPECT_THAT(message("{\"format\":\"fathom-capture\",\"version\":9}"), HasSubstr("found version 9"));
  EXPECT_THAT(message(captured_steps_json({}, kRun)), HasSubstr("holds no steps"));
  std::string text = captured_steps_json(std::vector<TracedStep>{sample_trace()}, kRun);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string out = text;
    return out.replace(out.find(from), from.size(), to);
  };
  EXPECT_THAT(message(changed("\"step_us\":121.000", "\"step_us\":-1")), HasSubstr("steps[0].step_us: found -1"));
  EXPECT_THAT(message(changed("\"step_us\":121.000", "\"step_us\":\"a\"")), HasSubstr("expected a number"));
  EXPECT_THAT(message(changed("[1,0,", "[7,0,")), HasSubstr("steps[0].calls[1]"));
  EXPECT_THAT(message(changed("\"turn_us\"", "\"tarn_us\"")), HasSubstr("steps[0].turn_us: found nothing"));
}

TracedStep device_trace() {
  TracedStep trace = sample_trace();
  trace.samples.clear();
  trace.on_device = true;
  trace.device = {{0, 13, "linear", "mma", "gemm<\"2\", 4>", 12, 30.125, {3000, 6000}},
                  {-1, 14, "copy", "copy", "copy", 43, 2, {}}};
  return trace;
}

TEST(Capture, ADevicesSamplesTakeThePlaceOfTheHosts) {
  TracedStep lost = device_trace();
  lost.device_fault = "a \"reason\"";
  const std::vector<TracedStep> traces = {device_trace(), lost, lost};
  const std::string text = captured_steps_json(traces, kRun);
  const auto capture = parse_capture(text, "x");
  ASSERT_TRUE(capture.ok()) << capture.status().message() << text;
  EXPECT_EQ(capture->run.collector, "cupti");
  ASSERT_EQ(capture->steps.size(), 1u) << "a step without its records says nothing";
  ASSERT_EQ(capture->notes.size(), 1u);
  EXPECT_THAT(capture->notes[0], HasSubstr("2 steps are left out"));
  EXPECT_THAT(capture->notes[0], HasSubstr("a \"reason\""));
  const TimelineStep& step = capture->steps[0];
  EXPECT_TRUE(step.on_device);
  ASSERT_EQ(step.calls.size(), 2u);
  EXPECT_EQ(step.calls[0].kernel, "gemm<\"2\", 4>");
  EXPECT_EQ(step.calls[0].operation, "linear");
  EXPECT_EQ(step.calls[0].lane, 13);
  EXPECT_DOUBLE_EQ(step.calls[0].begin_us, 5 + 10 + 12);
  EXPECT_DOUBLE_EQ(step.calls[0].flops, 6000);
  EXPECT_THAT(parse_capture(captured_steps_json(std::vector<TracedStep>{lost}, kRun), "x").status().message(),
              HasSubstr("1 steps are left out"));
  for (std::size_t n = 0; n + 2 < text.size(); n += 7) {
    EXPECT_FALSE(parse_capture(std::string_view(text).substr(0, n), "here").ok()) << n;
  }
  std::string wrong = text;
  wrong.replace(wrong.find("3000,6000,0,13"), 14, "3000,6000,9,13");
  EXPECT_THAT(parse_capture(wrong, "x").status().message(), HasSubstr("steps[0].device[0]"));
}

TEST(ChromeTrace, NamesTheStreamsThatRan) {
  const auto capture = parse_capture(captured_steps_json(std::vector<TracedStep>{device_trace()}, kRun), "x");
  ASSERT_TRUE(capture.ok());
  const auto json = nlohmann::json::parse(chrome_trace_json(capture->steps, "t"));
  std::vector<std::string> names;
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("name") == "thread_name") names.push_back(event.at("args").at("name"));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"host: engine thread", "device: stream 13", "device: stream 14"}));
}

TEST(ChromeTrace, IsJsonWithEveryCallAndPhase) {
  TimelineStep step = step_of_trace(sample_trace());
  step.calls[0].kernel = "a \"kernel\"\n<1>";
  const std::vector<TimelineStep> steps = {step, step};
  const auto json = nlohmann::json::parse(chrome_trace_json(steps, "a \\ title"));
  std::size_t num_slices = 0;
  double last_begin = -1;
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    ++num_slices;
    EXPECT_GE(event.at("dur").get<double>(), 0);
    if (event.at("cat") == "step") {
      EXPECT_GT(event.at("ts").get<double>(), last_begin);
      last_begin = event.at("ts").get<double>();
    }
  }
  EXPECT_EQ(num_slices, 2 * (1 + step.phases.size() + step.calls.size()));
  EXPECT_TRUE(nlohmann::json::parse(chrome_trace_json({}, "none")).contains("traceEvents"));
}

TEST(ChromeTrace, GzipComesBack) {
  const std::string text(100000, 'f');
  const std::string packed = *compress_gzip(text);
  EXPECT_LT(packed.size(), 2000u);
  std::string back(text.size() + 10, '\0');
  z_stream stream{};
  ASSERT_EQ(inflateInit2(&stream, 16 + 15), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(back.data());
  stream.avail_out = static_cast<uInt>(back.size());
  EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
  back.resize(stream.total_out);
  inflateEnd(&stream);
  EXPECT_EQ(back, text);
}

ProfileReport report_of(const std::vector<std::vector<TimelineStep>>& repeats) {
  ProfileReport report;
  report.run.model = "a <model>";
  report.run.backend = "cpu";
  report.run.num_repeats = static_cast<std::int64_t>(repeats.size());
  report.ceilings = {1e10, 1e11, 2};
  attribute_repeats(repeats, {}, report);
  return report;
}

TEST(ReportText, HasEveryTableAndSaysThatRowsSumUp) {
  const std::vector<std::vector<TimelineStep>> repeats(3, std::vector<TimelineStep>(4, step_of_trace(sample_trace())));
  ProfileReport report = report_of(repeats);
  report.exposed = {{"projections", "linear", {"repeated", 30, 29, 31, 0.95, 15, true}},
                    {"projections", "", {"repeated", 3, -9, 31, 0.95, 15, true}}};
  const std::string text = report_text(report);
  for (const char* part : {"by category", "by operation and variant", "linear/reference", "unaccounted", "schedule",
                           "rows sum to 100.0000 % of the step", "not resolved", "by layer", "steady state"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(ReportText, AnEmptyReportSaysSo) {
  EXPECT_THAT(report_text(report_of({})), HasSubstr("nothing was measured: no steps"));
  EXPECT_THAT(report_html(report_of({}), nullptr), HasSubstr("Nothing was measured: no steps"));
  EXPECT_EQ(median_step({}), nullptr);
}

TEST(ReportHtml, IsSelfContainedAndEscapesNames) {
  const std::vector<std::vector<TimelineStep>> repeats(2, std::vector<TimelineStep>(4, step_of_trace(sample_trace())));
  const std::string page = report_html(report_of(repeats), median_step(repeats));
  EXPECT_THAT(page, HasSubstr("a &lt;model&gt;"));
  EXPECT_THAT(page, HasSubstr("Timeline of one step"));
  EXPECT_THAT(page, HasSubstr("Roofline"));
  for (const char* outside : {"http://", "https://", "src=", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
}

}  // namespace
}  // namespace fathom
