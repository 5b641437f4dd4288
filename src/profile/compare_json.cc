// A comparison for programs.
#include <nlohmann/json.hpp>

#include "profile/compare.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

Json change_json(const Change& change) {
  Json json = {{"before_us", change.before_us}, {"after_us", change.after_us}, {"change_us", change.difference.mean}};
  if (change.difference.known) {
    json["low_us"] = change.difference.low;
    json["high_us"] = change.difference.high;
  }
  json["significant"] = change.significant();
  return json;
}

Json exposed_json(const std::optional<ExposedTime>& exposed) {
  if (!exposed) return nullptr;
  return {{"us", exposed->us},
          {"low_us", exposed->low_us},
          {"high_us", exposed->high_us},
          {"confidence", exposed->confidence},
          {"method", exposed->method}};
}

Json rows_json(const std::vector<ComparedRow>& rows) {
  Json list = Json::array();
  for (const ComparedRow& row : rows) {
    Json json = {{"category", row.category}};
    if (!row.operation.empty()) json["operation"] = row.operation;
    if (!row.kernel.empty()) json["kernel"] = row.kernel;
    json["presence"] = row.presence == Presence::kNew ? "new" : row.presence == Presence::kVanished ? "gone" : "both";
    json["critical"] = change_json(row.critical);
    json["summed"] = change_json(row.summed);
    json["launches"] = {row.launches_before, row.launches_after};
    json["bytes"] = {row.bytes_before, row.bytes_after};
    if (row.exposed_before || row.exposed_after) {
      json["exposed_before"] = exposed_json(row.exposed_before);
      json["exposed_after"] = exposed_json(row.exposed_after);
    }
    list.push_back(std::move(json));
  }
  return list;
}

Json labels(const std::vector<const ComparedRow*>& rows) {
  Json list = Json::array();
  for (const ComparedRow* row : rows) {
    list.push_back({{"name", row->label()}, {"category", row->category}, {"change_us", row->critical.difference.mean}});
  }
  return list;
}

}  // namespace

std::string comparison_json(const Comparison& c) {
  Json differences = Json::array();
  for (const RunDifference& difference : c.differences) {
    differences.push_back(
        {{"kind", difference_name(difference.kind)}, {"text", difference.text}, {"intended", difference.intended}});
  }
  Json json = {{"format", "fathom-comparison"},
               {"version", 1},
               {"before", c.name_before},
               {"after", c.name_after},
               {"verdict", verdict_name(c.verdict)},
               {"judged_by", &c.judged() == &c.step ? "step" : "token"},
               {"change_percent", c.percent(c.judged())},
               {"differences", differences},
               {"notes", c.notes},
               {"method", significance_sentence(c)},
               {"repeats", {c.repeats_before, c.repeats_after}},
               {"step", change_json(c.step)},
               {"token", c.token.has_value() ? change_json(*c.token) : Json(nullptr)},
               {"steps_per_s", {c.steps_per_s_before, c.steps_per_s_after}},
               {"tokens_per_s", {c.tokens_per_s_before, c.tokens_per_s_after}},
               {"rose", labels(c.risen())},
               {"fell", labels(c.fallen())},
               {"new", labels(c.kernels_of(Presence::kNew))},
               {"gone", labels(c.kernels_of(Presence::kVanished))},
               {"categories", rows_json(c.categories)},
               {"operations", rows_json(c.operations)},
               {"kernels", rows_json(c.kernels)},
               {"host", rows_json(c.host)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fathom
