// The load generator's figures as a table, as JSON and as a page.
#include <algorithm>
#include <cstdio>

#include "server/json_writer.h"
#include "server/load_generator.h"

namespace fathom {
namespace {

std::string format(const char* pattern, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, pattern, value);
  return buffer;
}

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

void write_percentiles(JsonWriter& json, const char* name, const Percentiles& p) {
  json.key(name).begin_object().member("p50", p.p50).member("p90", p.p90).member("p99", p.p99);
  json.member("mean", p.mean).member("count", p.count).end_object();
}

void write_spread(JsonWriter& json, const char* name, const Spread& s) {
  json.key(name).begin_object().member("median", s.median).member("lowest", s.lowest).member("highest", s.highest);
  json.end_object();
}

std::string shape(const LoadReport& report) {
  const LoadTestOptions& o = report.options;
  return report.model + ", fathom " + report.version + ": " + std::to_string(o.input_tokens) + " tokens in, " +
         std::to_string(o.output_tokens) + " out, shared prefix " + format("%.0f %%", o.shared_prefix * 100) +
         ", cancelled " + format("%.0f %%", o.cancelled * 100) + ", seed " + std::to_string(o.seed) + ", " +
         std::to_string(o.repeats) + " repeats of " + std::to_string(o.requests_per_client) + " requests a client";
}

// Three digits that say something.
std::string milliseconds(double value) {
  return format(value < 10 ? "%.2f ms" : value < 100 ? "%.1f ms" : "%.0f ms", value);
}

// Bars of p50, p90 and p99 for each level, on one scale.
std::string bars(const LoadReport& report, const char* title, Percentiles LoadLevel::* figure) {
  double top = 1e-9;
  for (const auto& level : report.levels) top = std::max(top, (level.*figure).p99);
  const int height = static_cast<int>(report.levels.size()) * 74 + 10;
  std::string out = "<h2>" + std::string(title) + "</h2><svg viewBox=\"0 0 720 " + std::to_string(height) + "\">";
  int y = 6;
  for (const auto& level : report.levels) {
    out += "<text x=\"0\" y=\"" + std::to_string(y + 32) + "\">" + std::to_string(level.concurrency) +
           (level.concurrency == 1 ? " client" : " clients") + "</text>";
    const Percentiles& p = level.*figure;
    const std::pair<const char*, double> rows[] = {{"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}};
    int row = y;
    for (const auto& [name, value] : rows) {
      out += "<rect class=\"" + std::string(name) + "\" x=\"90\" y=\"" + std::to_string(row) +
             "\" height=\"16\" width=\"" + format("%.1f", 500.0 * value / top) + "\"/><text class=\"v\" x=\"" +
             format("%.1f", 96 + 500.0 * value / top) + "\" y=\"" + std::to_string(row + 13) + "\">" + name + "  " +
             milliseconds(value) + "</text>";
      row += 20;
    }
    y += 74;
  }
  return out + "</svg>";
}

// Tokens a second by level: the median repeat, a line from the slowest to the fastest.
std::string throughput(const LoadReport& report) {
  double top = 1e-9;
  for (const auto& level : report.levels) top = std::max(top, level.output_tokens_per_s.highest);
  const int height = static_cast<int>(report.levels.size()) * 40 + 10;
  std::string out = "<h2>Output tokens a second</h2><svg viewBox=\"0 0 720 " + std::to_string(height) + "\">";
  int y = 8;
  for (const auto& level : report.levels) {
    const Spread& s = level.output_tokens_per_s;
    const auto x = [&](double value) { return format("%.1f", 90 + 480.0 * value / top); };
    const std::string middle = std::to_string(y + 12);
    out += "<text x=\"0\" y=\"" + std::to_string(y + 17) + "\">" + std::to_string(level.concurrency) +
           (level.concurrency == 1 ? " client" : " clients") + "</text><rect class=\"p50\" rx=\"3\" x=\"90\" y=\"" +
           std::to_string(y) + "\" height=\"24\" width=\"" + format("%.1f", 480.0 * s.median / top) +
           "\"/><path class=\"w\" d=\"M" + x(s.lowest) + " " + middle + "H" + x(s.highest) + "M" + x(s.lowest) + " " +
           std::to_string(y + 6) + "v12M" + x(s.highest) + " " + std::to_string(y + 6) +
           "v12\"/><text class=\"v\" x=\"" + format("%.1f", 100 + 480.0 * s.highest / top) + "\" y=\"" +
           std::to_string(y + 16) + "\">" + format("%.1f", s.median) + "</text>";
    y += 40;
  }
  return out + "</svg>";
}

}  // namespace

std::string load_table(const LoadReport& report) {
  std::string out = shape(report) + "\n";
  out +=
      "clients |   TTFT ms p50/p90/p99     | inter-token ms p50/p90/p99 |  output tok/s (lowest-highest)  | done, "
      "cancelled, refused, failed\n";
  char line[256];
  for (const auto& l : report.levels) {
    std::snprintf(
        line, sizeof line, "%7d | %7.1f %7.1f %9.1f | %8.2f %8.2f %8.2f | %9.1f (%.1f-%.1f) | %lld, %lld, %lld, %lld\n",
        l.concurrency, l.ttft_ms.p50, l.ttft_ms.p90, l.ttft_ms.p99, l.inter_token_ms.p50, l.inter_token_ms.p90,
        l.inter_token_ms.p99, l.output_tokens_per_s.median, l.output_tokens_per_s.lowest, l.output_tokens_per_s.highest,
        static_cast<long long>(l.num_done), static_cast<long long>(l.num_cancelled),
        static_cast<long long>(l.num_refused), static_cast<long long>(l.num_failed));
    out += line;
    std::snprintf(line, sizeof line, "        %.1f steps/s", l.steps_per_s);
    out += line;
    if (l.tokens_per_step > 0) {
      std::snprintf(line, sizeof line, ", drafts: %.1f %% accepted, %.2f tokens a verified step",
                    100 * l.draft_acceptance, l.tokens_per_step);
      out += line;
    }
    out += "\n";
    if (!l.first_failure.empty()) out += "        first failure: " + l.first_failure + "\n";
  }
  out += std::string("the two answers: ") + (report.right_before ? "right" : "WRONG") + " before, " +
         (report.right_after ? "right" : "WRONG") + " after\n";
  return out;
}

std::string load_json(const LoadReport& report) {
  std::string out;
  JsonWriter json(out);
  const LoadTestOptions& o = report.options;
  json.begin_object().member("model", report.model).member("version", report.version);
  json.member("input_tokens", o.input_tokens).member("output_tokens", o.output_tokens);
  json.member("shared_prefix", o.shared_prefix).member("cancelled", o.cancelled).member("seed", std::to_string(o.seed));
  json.member("repeats", o.repeats).member("requests_per_client", o.requests_per_client);
  json.member("right_before", report.right_before).member("right_after", report.right_after);
  json.key("levels").begin_array();
  for (const auto& level : report.levels) {
    json.begin_object().member("concurrency", level.concurrency);
    write_percentiles(json, "ttft_ms", level.ttft_ms);
    write_percentiles(json, "inter_token_ms", level.inter_token_ms);
    write_percentiles(json, "request_ms", level.request_ms);
    write_spread(json, "output_tokens_per_s", level.output_tokens_per_s);
    write_spread(json, "requests_per_s", level.requests_per_s);
    write_spread(json, "ttft_p50_ms", level.ttft_p50_ms);
    write_spread(json, "inter_token_p50_ms", level.inter_token_p50_ms);
    json.member("steps_per_s", level.steps_per_s).member("draft_acceptance", level.draft_acceptance);
    json.member("tokens_per_step", level.tokens_per_step);
    json.member("done", level.num_done).member("cancelled", level.num_cancelled);
    json.member("refused", level.num_refused).member("failed", level.num_failed);
    json.member_or_null("first_failure", level.first_failure).end_object();
  }
  json.end_array().end_object();
  return out + "\n";
}

std::string load_html(const LoadReport& report) {
  std::string out =
      "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>fathom bench serve</title><style>"
      ":root{--ink:#16242b;--soft:#5a6d76;--line:#dfe6ea;--bg:#fff;--a:#17707f;--b:#67a9b4;--c:#b9d8dd;--warn:#a0470b}"
      "@media(prefers-color-scheme:dark){:root{--ink:#e4ecef;--soft:#8fa2ab;--line:#26333a;--bg:#0e1518;--a:#4fb3c2;"
      "--b:#2f7480;--c:#1d4851;--warn:#f0a266}}"
      "body{font:15px/1.5 system-ui,sans-serif;max-width:780px;margin:2em auto;padding:0 1em;color:var(--ink);"
      "background:var(--bg)}"
      "h1{font-size:1.4em}h2{font-size:1.05em;margin:1.6em 0 .4em}table{border-collapse:collapse;width:100%}"
      "td,th{text-align:right;padding:.3em .7em;border-bottom:1px solid var(--line);font-variant-numeric:tabular-nums}"
      "svg{width:100%}svg text{font:13px system-ui,sans-serif;fill:var(--ink)}svg .v{fill:var(--soft);font-size:12px}"
      ".w{stroke:var(--ink);stroke-width:1.4;fill:none}.soft{color:var(--soft)}"
      ".p50{fill:var(--a)}.p90{fill:var(--b)}.p99{fill:var(--c)}.bad{color:var(--warn)}</style><h1>fathom bench "
      "serve</h1>";
  out += "<p class=\"soft\">" + escape(shape(report)) + "</p>";
  if (!report.right_before || !report.right_after) out += "<p class=\"bad\">The two answers were wrong: no result.</p>";
  out +=
      "<table><tr><th>clients<th>output "
      "tok/s<th>lowest–highest<th>requests/s<th>done<th>cancelled<th>refused<th>failed";
  for (const auto& l : report.levels) {
    out += "<tr><td>" + std::to_string(l.concurrency) + "<td>" + format("%.1f", l.output_tokens_per_s.median) + "<td>" +
           format("%.1f", l.output_tokens_per_s.lowest) + "–" + format("%.1f", l.output_tokens_per_s.highest) + "<td>" +
           format("%.2f", l.requests_per_s.median) + "<td>" + std::to_string(l.num_done) + "<td>" +
           std::to_string(l.num_cancelled) + "<td>" + std::to_string(l.num_refused) + "<td>" +
           std::to_string(l.num_failed);
  }
  out += "</table>";
  if (report.right_before && report.right_after) {
    out += "<p class=\"soft\">The two answers were right before and after. Lines: slowest and fastest repeat.</p>";
  }
  out += throughput(report);
  out += bars(report, "Time to the first token", &LoadLevel::ttft_ms);
  out += bars(report, "Between tokens", &LoadLevel::inter_token_ms);
  out += bars(report, "Whole request", &LoadLevel::request_ms);
  return out + "</html>\n";
}

}  // namespace fathom
