// One line on standard error that fills up; silent when that is no terminal, or when the work is quick: done
// within 300 ms, or as many as FATHOM_PROGRESS_AFTER_MS says.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace fathom::app {

class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  // Erases the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(std::int64_t done, std::int64_t total);

 private:
  std::string label_;
  bool is_terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point show_after_;
};

}  // namespace fathom::app
