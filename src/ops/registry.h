// Variants by name, chosen once at start (architecture: Pinned 6), and the one way a call is made.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "ops/execution_context.h"
#include "ops/op_kind.h"
#include "telemetry/op_observer.h"

namespace fathom {

enum class BackendKind : std::uint8_t { kCpu, kCuda };

// What plans are made for: pure facts about the machine.
struct DeviceInfo {
  BackendKind backend = BackendKind::kCpu;
  std::int32_t num_threads = 1;                    // CPU
  std::int32_t num_multiprocessors = 0;            // CUDA
  std::int32_t compute_capability = 0;             // CUDA: 90, 120, 80
  std::int64_t shared_memory_per_block_bytes = 0;  // CUDA: opt-in maximum
};

using ErasedFn = void (*)();

struct Variant {
  OpKind op;
  std::string_view name;  // "reference", "cpu", "mma_splitk", ...: a string literal
  BackendKind backend;
  ErasedFn run;  // void(ExecutionContext&, const XPlan&, const XArgs&)
};

template <typename Plan, typename Args>
Variant make_variant(OpKind op, std::string_view name, BackendKind backend,
                     void (*run)(ExecutionContext&, const Plan&, const Args&)) {
  return {op, name, backend, reinterpret_cast<ErasedFn>(run)};
}

// Every variant linked into this program, in registration order (later = preferred by default).
class OpRegistry {
 public:
  void add(Variant variant) { variants_.push_back(variant); }
  std::span<const Variant> variants() const { return variants_; }
  // The variants of one operation on one backend.
  std::vector<Variant> variants_of(OpKind op, BackendKind backend) const;

 private:
  std::vector<Variant> variants_;
};

// `reference` and `cpu` of every operation.
void register_cpu_variants(OpRegistry& registry);

// The chosen variant of each operation.
class VariantTable {
 public:
  // The last registered variant of each operation on `backend`, then overrides like
  // {"sparse_attention", "simt"} or {"*", "reference"}. Unknown names: an error that lists the choices.
  static Result<VariantTable> choose(const OpRegistry& registry, BackendKind backend,
                                     std::span<const std::pair<std::string, std::string>> overrides = {});

  const Variant& operator[](OpKind op) const {
    const Variant& variant = chosen_[static_cast<std::size_t>(op)];
    FATHOM_CHECK(variant.run != nullptr, "operation has no variant on this backend");
    return variant;
  }
  bool has(OpKind op) const { return chosen_[static_cast<std::size_t>(op)].run != nullptr; }

 private:
  std::array<Variant, kNumOpKinds> chosen_{};
};

// What run_operation leaves behind.
inline void add_op_time(OpTimes& times, OpKind op, std::chrono::steady_clock::duration time) {
  times.time_us[static_cast<std::size_t>(op)] += std::chrono::duration<double, std::micro>(time).count();
  ++times.num_calls[static_cast<std::size_t>(op)];
}
void add_op_sample(ExecutionContext& context, OpKind op, std::string_view variant,
                   std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end, OpCost cost);

// Runs one operation: picks the variant, repeats it if asked, records its OpScope, time and cost.
// `cost` is called only when a trace is being taken or an observer told.
template <typename Plan, typename Args, typename Cost>
void run_operation(ExecutionContext& context, OpKind op, const Plan& plan, const Args& args, Cost&& cost) {
  const Variant& variant = (*context.variants)[op];
  FATHOM_CHECK(context.scratch_bytes >= plan.workspace_bytes, "scratch covers the plan's workspace");
  const auto run = reinterpret_cast<void (*)(ExecutionContext&, const Plan&, const Args&)>(variant.run);
  const std::int32_t repeats = context.repeats[static_cast<std::size_t>(op)];
  const bool timed = context.trace != nullptr || context.op_times != nullptr;
  const auto begin = timed ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point{};
  if (context.observer != nullptr) context.observer->begin_operation({context.layer, op_name(op), variant.name});
  for (std::int32_t i = repeats; i > 0; --i) run(context, plan, args);
  if (context.observer != nullptr) {
    context.observer->end_operation({context.layer, op_name(op), variant.name}, repeats, cost());
  }
  if (!timed) return;
  const auto end = std::chrono::steady_clock::now();
  if (context.op_times != nullptr) add_op_time(*context.op_times, op, end - begin);
  if (context.trace != nullptr) add_op_sample(context, op, variant.name, begin, end, cost());
}

}  // namespace fathom
