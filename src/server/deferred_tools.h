// Tools that may be called and are not shown at the head of the prompt, but where they come up: what a client's search
// found, what a note of the system's added. At the head they would change it, and the prefix of the conversation so far
// would not be found.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>

#include "text/json_value.h"

namespace fathom {

class DeferredTools {
 public:
  // `tools`: in chat's form, or null. Those named in `deferred` are not shown at the head; where no other is left, all
  // are: the head tells the model how calls are written.
  DeferredTools(const JsonValue* tools, const std::set<std::string>& deferred);

  // The tools at the head.
  const JsonValue& shown() const { return shown_; }
  // What the model reads where these tools come up: the definitions of those that are not at the head, the first time
  // each comes up, and the names of the others. So all texts together are no longer than the body that names them.
  std::string text_of(std::span<const std::string> names);

 private:
  JsonValue shown_;
  std::map<std::string, std::string> definitions_;  // JSON by name, of those that the model has not read yet
};

}  // namespace fathom
