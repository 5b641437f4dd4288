// Checks on the rows of a step that every cache operation makes.
#pragma once

#include "ops/check_view.h"
#include "ops/step_rows.h"

namespace fathom {

inline void check_step_rows(const StepRows* rows) {
  FATHOM_CHECK(rows != nullptr, "a cache operation is given the step's rows");
  check_view(rows->positions, DType::kI32, rows->num_tokens, 1);
  check_view(rows->sequence_of, DType::kI32, rows->num_tokens, 1);
  check_view(rows->sequence_begin, DType::kI32, rows->num_sequences + 1, 1);
}

inline void check_window_tables(const StepRows& rows) {
  check_view(rows.window_begin, DType::kI32, rows.num_tokens, 1);
  check_view(rows.window_end, DType::kI32, rows.num_tokens, 1);
  check_view(rows.window_offset, DType::kI64, rows.num_sequences, 1);
  check_view(rows.window_first, DType::kI32, rows.num_sequences, 1);
  FATHOM_CHECK(rows.window_table.dtype == DType::kI32, "block tables are I32");
}

inline void check_context_tables(const StepRows& rows) {
  check_view(rows.context_offset, DType::kI64, rows.num_sequences, 1);
  FATHOM_CHECK(rows.context_table.dtype == DType::kI32, "block tables are I32");
}

}  // namespace fathom
