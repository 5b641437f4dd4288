// A custom tool's input out of the arguments of a call, as they arrive.
#pragma once

#include <string>
#include <string_view>

namespace fathom {

// The model calls a custom tool as a function with one text, "input". Where it begins with that, the text is given as
// it comes; else at the call's end: "input" wherever it stands, or the only argument, or all of them as JSON.
class CustomInput {
 public:
  // More of the arguments' JSON, as OutputParser writes it: cut anywhere but inside an escape. Returns more input.
  std::string push(std::string_view arguments);
  // The call is whole. Returns the rest of the input.
  std::string finish();

 private:
  std::string arguments_;
  bool streams_ = false;
  std::size_t next_ = 0;  // streams_: the first byte of arguments_ that is not given out
  bool closed_ = false;   // streams_: the text's closing quote is there
};

}  // namespace fathom
