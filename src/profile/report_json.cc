// report.json: written and read field by field, so that a message can name the field that is wrong.
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "base/mapped_file.h"
#include "profile/report.h"

namespace fathom {
namespace {

using Json = nlohmann::json;
constexpr std::int64_t kMaxReportBytes = 256LL << 20;
constexpr std::size_t kMaxShown = 40;  // characters of a wrong value in a message

// What stands in a field, short enough for a message.
std::string describe(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object: return "an object";
    case Json::value_t::array: return "a list of " + std::to_string(value.size());
    default: return value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, kMaxShown);
  }
}

// Reads fields of one object. The first failure stays; what follows reads nothing more.
class Reader {
 public:
  Reader(const Json& object, std::string path, Status& status)
      : object_(object), path_(std::move(path)), status_(status) {
    if (status_.ok() && !object_.is_object()) fail(path_, object_, "an object");
  }

  void text(const char* name, std::string& out) {
    const Json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_string()) return fail(name_of(name), *value, "a text");
    out = value->get<std::string>();
  }
  void number(const char* name, double& out) {
    const Json* value = find(name);
    if (value != nullptr) as_number(*value, [&] { return name_of(name); }, out);
  }
  void count(const char* name, std::int64_t& out, bool may_be_negative = false) {
    const Json* value = find(name);
    if (value == nullptr) return;
    const bool fits = value->is_number_unsigned()
                          ? value->get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX)
                          : value->is_number_integer() && (may_be_negative || value->get<std::int64_t>() >= 0);
    if (!fits) {
      return fail(name_of(name), *value, may_be_negative ? "a whole number" : "a whole number of at least 0");
    }
    out = value->get<std::int64_t>();
  }
  void flag(const char* name, bool& out) {
    const Json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_boolean()) return fail(name_of(name), *value, "true or false");
    out = value->get<bool>();
  }
  void numbers(const char* name, std::vector<double>& out) {
    const Json* value = list(name);
    if (value != nullptr) as_numbers(*value, name_of(name), out);
  }
  void texts(const char* name, std::vector<std::string>& out) {
    const Json* value = list(name);
    if (value == nullptr) return;
    for (std::size_t i = 0; i < value->size(); ++i) {
      const Json& item = (*value)[i];
      if (!item.is_string()) return fail(name_of(name) + "[" + std::to_string(i) + "]", item, "a text");
      out.push_back(item.get<std::string>());
    }
  }
  void text_map(const char* name, std::map<std::string, std::string>& out) {
    const Json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_object()) return fail(name_of(name), *value, "an object");
    for (const auto& [key, item] : value->items()) {
      if (!item.is_string()) return fail(name_of(name) + "." + key, item, "a text");
      out[key] = item.get<std::string>();
    }
  }
  void number_lists(const char* name, std::vector<std::vector<double>>& out) {
    const Json* value = list(name);
    if (value == nullptr) return;
    for (std::size_t i = 0; i < value->size() && status_.ok(); ++i) {
      const std::string item_name = name_of(name) + "[" + std::to_string(i) + "]";
      if (!(*value)[i].is_array()) return fail(item_name, (*value)[i], "a list");
      as_numbers((*value)[i], item_name, out.emplace_back());
    }
  }
  template <typename Read>
  void object(const char* name, Read&& read) {
    const Json* value = find(name);
    if (value == nullptr) return;
    Reader inner(*value, name_of(name), status_);
    read(inner);
  }
  template <typename Item, typename Read>
  void objects(const char* name, std::vector<Item>& out, Read&& read) {
    const Json* value = list(name);
    if (value == nullptr) return;
    for (std::size_t i = 0; i < value->size() && status_.ok(); ++i) {
      Reader inner((*value)[i], name_of(name) + "[" + std::to_string(i) + "]", status_);
      read(inner, out.emplace_back());
    }
  }

 private:
  std::string name_of(std::string_view name) const {
    return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
  }

  const Json* find(const char* name) {
    if (!status_.ok()) return nullptr;
    const auto found = object_.find(name);
    if (found == object_.end()) {
      status_ = data_loss(name_of(name) + ": missing");
      return nullptr;
    }
    return &*found;
  }
  const Json* list(const char* name) {
    const Json* value = find(name);
    if (value == nullptr || value->is_array()) return value;
    fail(name_of(name), *value, "a list");
    return nullptr;
  }
  template <typename Name>
  void as_number(const Json& value, Name&& name, double& out) {
    if (!value.is_number() || !std::isfinite(value.get<double>())) return fail(name(), value, "a finite number");
    out = value.get<double>();
  }
  void as_numbers(const Json& list, const std::string& name, std::vector<double>& out) {
    out.reserve(list.size());
    for (std::size_t i = 0; i < list.size() && status_.ok(); ++i) {
      as_number(list[i], [&] { return name + "[" + std::to_string(i) + "]"; }, out.emplace_back());
    }
  }
  void fail(const std::string& name, const Json& found, const char* expected) {
    if (status_.ok()) status_ = data_loss(name + ": found " + describe(found) + ", expected " + expected);
  }

  const Json& object_;
  std::string path_;
  Status& status_;
};

void read_run(Reader& in, RunDescription& run) {
  in.text("backend", run.backend);
  in.text("device", run.device);
  in.text("collector", run.collector);
  in.text("model", run.model);
  in.text("numerics", run.numerics);
  in.text_map("variants", run.variants);
  in.text("date", run.date);
  in.text("commit", run.commit);
  in.number("core_clock_mhz", run.core_clock_mhz);
  in.number("memory_clock_mhz", run.memory_clock_mhz);
  in.count("num_threads", run.num_threads);
  in.count("batch_sequences", run.batch_sequences);
  in.count("context_tokens", run.context_tokens);
  in.count("num_steps", run.num_steps);
  in.count("num_warmup_steps", run.num_warmup_steps);
  in.count("num_repeats", run.num_repeats);
}

Json run_json(const RunDescription& run) {
  return {{"backend", run.backend},
          {"device", run.device},
          {"collector", run.collector},
          {"model", run.model},
          {"numerics", run.numerics},
          {"variants", run.variants},
          {"date", run.date},
          {"commit", run.commit},
          {"core_clock_mhz", run.core_clock_mhz},
          {"memory_clock_mhz", run.memory_clock_mhz},
          {"num_threads", run.num_threads},
          {"batch_sequences", run.batch_sequences},
          {"context_tokens", run.context_tokens},
          {"num_steps", run.num_steps},
          {"num_warmup_steps", run.num_warmup_steps},
          {"num_repeats", run.num_repeats}};
}

void read_report(Reader& in, ProfileReport& report) {
  in.object("run", [&](Reader& run) { read_run(run, report.run); });
  in.object("ceilings", [&](Reader& ceilings) {
    ceilings.number("memory_bytes_per_s", report.ceilings.memory_bytes_per_s);
    ceilings.number("flops_per_s", report.ceilings.flops_per_s);
    ceilings.number("launch_us", report.ceilings.launch_us);
  });
  in.number_lists("step_us", report.step_us);
  in.objects("rows", report.rows, [](Reader& row, ReportRow& out) {
    row.text("category", out.category);
    row.text("operation", out.operation);
    row.text("variant", out.variant);
    row.count("layer", out.layer, /*may_be_negative=*/true);
    row.text("kernel", out.kernel);
    row.numbers("time_us", out.time_us);
    row.numbers("critical_us", out.critical_us);
    row.count("num_launches", out.num_launches);
    row.number("bytes", out.bytes);
    row.number("flops", out.flops);
  });
  in.objects("host_gaps", report.host_gaps, [](Reader& gap, HostGap& out) {
    gap.text("name", out.name);
    gap.numbers("time_us", out.time_us);
    gap.numbers("critical_us", out.critical_us);
  });
  in.numbers("idle_us", report.idle_us);
  in.numbers("unaccounted_us", report.unaccounted_us);
  in.objects("exposed", report.exposed, [](Reader& entry, ExposedEntry& out) {
    entry.text("category", out.category);
    entry.text("operation", out.operation);
    entry.text("method", out.exposed.method);
    entry.number("us", out.exposed.us);
    entry.number("low_us", out.exposed.low_us);
    entry.number("high_us", out.exposed.high_us);
    entry.number("confidence", out.exposed.confidence);
    entry.count("num_samples", out.exposed.num_samples);
    entry.flag("output_unchanged", out.exposed.output_unchanged);
  });
  in.number("tokens_per_step", report.tokens_per_step);
  in.number("committed_tokens_per_step", report.committed_tokens_per_step);
  in.number("experts_hit_per_step", report.experts_hit_per_step);
  in.texts("notes", report.notes);
}

Json rows_json(const ProfileReport& report) {
  Json rows = Json::array();
  for (const ReportRow& row : report.rows) {
    rows.push_back({{"category", row.category},
                    {"operation", row.operation},
                    {"variant", row.variant},
                    {"layer", row.layer},
                    {"kernel", row.kernel},
                    {"time_us", row.time_us},
                    {"critical_us", row.critical_us},
                    {"num_launches", row.num_launches},
                    {"bytes", row.bytes},
                    {"flops", row.flops}});
  }
  return rows;
}

Json exposed_json(const ProfileReport& report) {
  Json entries = Json::array();
  for (const ExposedEntry& entry : report.exposed) {
    entries.push_back({{"category", entry.category},
                       {"operation", entry.operation},
                       {"method", entry.exposed.method},
                       {"us", entry.exposed.us},
                       {"low_us", entry.exposed.low_us},
                       {"high_us", entry.exposed.high_us},
                       {"confidence", entry.exposed.confidence},
                       {"num_samples", entry.exposed.num_samples},
                       {"output_unchanged", entry.exposed.output_unchanged}});
  }
  return entries;
}

Status check_format(const Json& json) {
  const auto format = json.find("format");
  if (format == json.end() || !format->is_string() || format->get_ref<const std::string&>() != kReportFormat) {
    return data_loss("format: found " + (format == json.end() ? std::string("nothing") : describe(*format)) +
                     ", expected \"" + std::string(kReportFormat) + "\": not a profile's report.json");
  }
  const auto version = json.find("version");
  if (version == json.end() || !version->is_number_integer() || version->get<std::int64_t>() != kReportVersion) {
    return failed_precondition(
        "version: found " + (version == json.end() ? std::string("nothing") : describe(*version)) + ", expected " +
        std::to_string(kReportVersion) + ": written by another version of fathom; profile again with this one");
  }
  return {};
}

}  // namespace

Result<std::string> report_to_json(const ProfileReport& report) {
  FATHOM_RETURN_IF_ERROR(check_report(report));
  Json gaps = Json::array();
  for (const HostGap& gap : report.host_gaps) {
    gaps.push_back({{"name", gap.name}, {"time_us", gap.time_us}, {"critical_us", gap.critical_us}});
  }
  const Json json = {{"format", kReportFormat},
                     {"version", kReportVersion},
                     {"run", run_json(report.run)},
                     {"ceilings",
                      {{"memory_bytes_per_s", report.ceilings.memory_bytes_per_s},
                       {"flops_per_s", report.ceilings.flops_per_s},
                       {"launch_us", report.ceilings.launch_us}}},
                     {"step_us", report.step_us},
                     {"rows", rows_json(report)},
                     {"host_gaps", gaps},
                     {"idle_us", report.idle_us},
                     {"unaccounted_us", report.unaccounted_us},
                     {"exposed", exposed_json(report)},
                     {"tokens_per_step", report.tokens_per_step},
                     {"committed_tokens_per_step", report.committed_tokens_per_step},
                     {"experts_hit_per_step", report.experts_hit_per_step},
                     {"notes", report.notes},
                     // For readers of the file; opening it derives them again.
                     {"derived",
                      {{"mean_step_us", report.mean_step_us()},
                       {"steps_per_s", report.steps_per_s()},
                       {"tokens_per_s", report.tokens_per_s()},
                       {"accounted_us", report.accounted_us()},
                       {"total_step_us", report.total_step_us()}}}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<ProfileReport> parse_report(std::string_view text, std::string_view source) {
  const auto fail = [&](const Status& status) { return status.with_context(source); };
  if (text.empty()) return fail(data_loss("an empty file: the profile did not finish"));
  Json json;
  try {
    json = Json::parse(text.begin(), text.end());
  } catch (const Json::parse_error& error) {
    const bool at_end = error.byte >= text.size();
    return fail(data_loss("no JSON at byte " + std::to_string(error.byte) + " of " + std::to_string(text.size()) +
                          (at_end ? ": truncated" : ": corrupt")));
  } catch (const Json::exception& error) {
    return fail(data_loss(std::string("a number that no double holds: ") + error.what()));
  }
  if (!json.is_object()) return fail(data_loss("found " + describe(json) + ", expected an object"));
  if (Status status = check_format(json); !status.ok()) return fail(status);
  ProfileReport report;
  Status status;
  Reader reader(json, "", status);
  read_report(reader, report);
  if (!status.ok()) return fail(status);
  if (Status broken = check_report(report); !broken.ok()) return fail(data_loss(broken.message()));
  return report;
}

Result<ProfileReport> open_report(const std::string& path) {
  std::error_code error;
  const bool is_folder = std::filesystem::is_directory(path, error);
  const std::string file = is_folder ? (std::filesystem::path(path) / "report.json").string() : path;
  FATHOM_ASSIGN_OR_RETURN(const std::string text, read_text_file(file, kMaxReportBytes));
  return parse_report(text, file);
}

Status write_report(const std::string& path, const ProfileReport& report) {
  FATHOM_ASSIGN_OR_RETURN(const std::string text, report_to_json(report));
  return write_file_atomically(path, std::as_bytes(std::span(text)));
}

}  // namespace fathom
