// Invariants. A failed check is a bug in fathom, never the user's input: it prints and aborts.
#pragma once

namespace fathom {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* message);

}  // namespace fathom

// FATHOM_CHECK(condition, "what must hold"): on in every build.
#define FATHOM_CHECK(condition, message)                               \
  do {                                                                 \
    if (!(condition)) [[unlikely]] {                                   \
      ::fathom::check_failed(__FILE__, __LINE__, #condition, message); \
    }                                                                  \
  } while (0)
