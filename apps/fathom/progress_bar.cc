#include "progress_bar.h"

#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace fathom::app {

namespace {
constexpr int kWidth = 32;

// Work that ends before shows nothing.
std::chrono::milliseconds quick_time() {
  int value = 300;
  if (const char* text = std::getenv("FATHOM_PROGRESS_AFTER_MS"); text != nullptr) {
    const char* end = text + std::strlen(text);
    std::from_chars(text, end, value);
  }
  return std::chrono::milliseconds(value);
}
}  // namespace

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)),
      is_terminal_(::isatty(STDERR_FILENO) == 1),
      show_after_(std::chrono::steady_clock::now() + quick_time()) {}

ProgressBar::~ProgressBar() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::update(std::int64_t done, std::int64_t total) {
  if (!is_terminal_ || total <= 0 || std::chrono::steady_clock::now() < show_after_) return;
  shown_ = true;
  const auto filled = static_cast<int>(done * kWidth / total);
  std::string bar(static_cast<std::size_t>(kWidth), ' ');
  for (int i = 0; i < filled; ++i) bar[static_cast<std::size_t>(i)] = '#';
  std::fprintf(stderr, "\r%s [%s] %3d %%", label_.c_str(), bar.c_str(), static_cast<int>(done * 100 / total));
  std::fflush(stderr);
}

}  // namespace fathom::app
