// Where JSON stands in an answer with tool calls (spec 8.3): in the parameters that say string="false".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

class JsonInCalls {
 public:
  // The bytes of one token more.
  void push(std::string_view bytes);
  // The last tokens did not come after all.
  void pop(std::int32_t num_tokens);

  bool in_json() const { return now().in_json; }
  bool in_string() const { return now().in_string; }

 private:
  struct State {
    std::string tail;  // the last bytes, as many as the opening tag's end has
    bool in_json = false;
    bool in_string = false;  // of that JSON
    bool is_escaped = false;
  };
  const State& now() const { return states_.back(); }

  std::vector<State> states_{State{}};  // after each token
};

}  // namespace fathom
