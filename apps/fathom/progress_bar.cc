#include "progress_bar.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

namespace fathom::app {

namespace {
constexpr auto kQuick = std::chrono::milliseconds(300);  // work that ends before shows nothing
constexpr int kWidth = 32;
}  // namespace

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), is_terminal_(::isatty(STDERR_FILENO) == 1), begin_(std::chrono::steady_clock::now()) {}

ProgressBar::~ProgressBar() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::update(std::int64_t done, std::int64_t total) {
  if (!is_terminal_ || total <= 0 || std::chrono::steady_clock::now() - begin_ < kQuick) return;
  shown_ = true;
  const auto filled = static_cast<int>(done * kWidth / total);
  std::string bar(static_cast<std::size_t>(kWidth), ' ');
  for (int i = 0; i < filled; ++i) bar[static_cast<std::size_t>(i)] = '#';
  std::fprintf(stderr, "\r%s [%s] %3d %%", label_.c_str(), bar.c_str(), static_cast<int>(done * 100 / total));
  std::fflush(stderr);
}

}  // namespace fathom::app
