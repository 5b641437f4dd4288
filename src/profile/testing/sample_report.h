// A small report that keeps every rule: two repeats of three steps of 100 us.
#pragma once

#include "profile/report.h"

namespace fathom {

inline ProfileReport sample_report() {
  ProfileReport report;
  report.run = {.backend = "cpu",
                .device = "a CPU",
                .collector = "scopes",
                .model = "mini-v4",
                .numerics = "serve",
                .variants = {{"sparse_attention", "cpu"}, {"moe_experts", "cpu"}},
                .date = "2026-11-29T21:00:00Z",
                .commit = "0123abc",
                .core_clock_mhz = 3000,
                .memory_clock_mhz = 0,
                .num_threads = 2,
                .batch_sequences = 4,
                .context_tokens = 256,
                .num_steps = 3,
                .num_warmup_steps = 2,
                .num_repeats = 2};
  report.ceilings = {.memory_bytes_per_s = 1e10, .flops_per_s = 1e11, .launch_us = 0.1};
  report.step_us = {{99, 101, 100}, {102, 98, 100}};
  const auto row = [](const char* category, const char* operation, std::int64_t layer, double us) {
    ReportRow r;
    r.category = category;
    r.operation = operation;
    r.variant = r.kernel = "cpu";
    r.layer = layer;
    r.time_us = {us, us};
    r.critical_us = {us, us};
    r.num_launches = 6;
    r.bytes = 1000;
    r.flops = 4000;
    return r;
  };
  report.rows = {row("attention", "sparse_attention", 0, 120), row("experts", "moe_experts", 0, 150)};
  report.host_gaps = {{"schedule", {20, 20}, {18, 18}}, {"sample", {8, 8}, {8, 8}}};
  report.idle_us = {2, 2};
  report.unaccounted_us = {2, 2};
  report.exposed = {{"attention", "", {"repeated", 39, 37, 41, 0.95, 20, true}}};
  report.tokens_per_step = 4;
  report.committed_tokens_per_step = 4;
  report.experts_hit_per_step = 7.5;
  report.notes = {"a \"quoted\" note"};
  return report;
}

}  // namespace fathom
