#include "server/deferred_tools.h"

#include "server/json_build.h"

namespace fathom {

DeferredTools::DeferredTools(const JsonValue* tools, const std::set<std::string>& deferred) : shown_(json_array()) {
  if (tools == nullptr) return;
  for (const JsonValue& tool : tools->items) {
    const JsonValue* function = tool.find("function");
    const std::string name = function != nullptr ? json_text_of(function->find("name")) : std::string();
    if (deferred.contains(name)) {
      definitions_.emplace(name, dump_python_json(*function));
    } else {
      shown_.items.push_back(tool);
    }
  }
  if (shown_.items.empty()) {
    shown_ = *tools;
    definitions_.clear();
  }
}

std::string DeferredTools::text_of(std::span<const std::string> names) {
  std::string definitions, others;
  for (const std::string& name : names) {
    const auto found = definitions_.find(name);
    if (found != definitions_.end()) {
      definitions += "<function>" + found->second + "</function>\n";
      definitions_.erase(found);
    } else {
      others += (others.empty() ? "" : "\n") + ("[tool_reference " + name + "]");
    }
  }
  if (definitions.empty()) return others;
  return "<functions>\n" + definitions + "</functions>" + (others.empty() ? "" : "\n" + others);
}

}  // namespace fathom
