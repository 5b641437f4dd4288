#include "engine/selftest.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "ops/simd/ceilings.h"
#include "tensor/scalar_formats.h"

namespace fathom {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMedianBound = 5e-3, kTailBound = 5e-2;
// A variant takes the default's place only where it is faster by more than what such timings differ by.
constexpr double kClearlyFaster = 0.9;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Rows of values, one after the other, with the places where a row's values lie.
struct Rows {
  std::vector<float> values;
  std::vector<std::size_t> ends;

  void add(std::span<const float> more, std::size_t width) {
    values.insert(values.end(), more.begin(), more.end());
    for (std::size_t i = 0; i < more.size() / width; ++i) ends.push_back((ends.empty() ? 0 : ends.back()) + width);
  }
};

// The relative L2 of each row; infinite where a value is no number or the rows are not the same ones.
std::vector<double> row_errors(const Rows& got, const Rows& want) {
  std::vector<double> errors;
  if (got.ends != want.ends) return {INFINITY};
  std::size_t begin = 0;
  for (const std::size_t end : want.ends) {
    double error = 0, norm = 0;
    for (; begin < end; ++begin) {
      const double difference = double{got.values[begin]} - want.values[begin];
      error += difference * difference;
      norm += double{want.values[begin]} * want.values[begin];
    }
    const double relative = std::sqrt(error / std::max(norm, 1e-30));
    errors.push_back(std::isfinite(relative) ? relative : INFINITY);
  }
  std::sort(errors.begin(), errors.end());
  return errors;
}

// A model with one prompt's caches, and steps over it under any table of variants.
class Probe {
 public:
  static Result<std::unique_ptr<Probe>> make(const SelftestOptions& options, DeviceChoice device,
                                             const std::string& path) {
    auto probe = std::unique_ptr<Probe>(new Probe);
    probe->num_rows_ = options.prompt_rows;
    LoadOptions load;
    load.device = device;
    load.num_threads = options.num_threads;
    load.max_step_tokens = std::max<std::int64_t>(options.prompt_rows, kSelftestBatch);
    load.max_logit_rows = kSelftestBatch;
    load.register_more = options.register_more;
    FATHOM_ASSIGN_OR_RETURN(probe->loaded_, load_model(path, load));
    FATHOM_RETURN_IF_ERROR(probe->allocate(options.prompt_rows));
    return probe;
  }

  Model& model() { return *loaded_.model; }
  const VariantTable& defaults() const { return *loaded_.variants; }
  Backend& backend() { return *loaded_.backend; }

  // The prompt's rows (num > 1) or `batch` copies of the row behind them.
  Status set_rows(std::int64_t first, std::int64_t num, int batch) {
    step_.clear();
    SequenceRows rows;
    rows.tokens = std::span(ids_).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(num));
    rows.start = first;
    rows.context_table = rows.window_table = table_;
    for (int i = 0; i < batch; ++i) {
      step_.add(rows);
      step_.add_logit_row(static_cast<std::int32_t>((i + 1) * num - 1));
    }
    return step_.upload();
  }

  // Streams before each layer, as the table's own forward passes them on: [layers + 1], of the rows set.
  Result<std::vector<std::vector<float>>> streams(const VariantTable& table) {
    const ModelConfig& config = model().config();
    const auto width = static_cast<std::size_t>(config.hc_mult * config.hidden_size);
    std::vector<std::vector<float>> all(1);
    const TensorInfo* embed = loaded_.checkpoint->catalog.find("embed.weight");
    if (embed == nullptr) return not_found("selftest: the model has no embed.weight");
    const std::byte* rows = loaded_.checkpoint->catalog.bytes(*embed).data();
    for (std::int64_t t = 0; t < num_rows_; ++t) {
      const auto hidden = static_cast<std::size_t>(config.hidden_size);
      const auto id = static_cast<std::size_t>(ids_[static_cast<std::size_t>(t)]);
      for (std::size_t i = 0; i < width; ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, rows + 2 * (id * hidden + i % hidden), 2);
        all[0].push_back(bf16_to_float(bits));
      }
    }
    FATHOM_RETURN_IF_ERROR(set_rows(0, num_rows_, 1));
    ExecutionContext context = context_of(table);
    for (std::int32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      std::vector<float> out(all.back().size());
      FATHOM_RETURN_IF_ERROR(model().run_layer_alone(context, layer, step_, all.back(), out, pools_));
      all.push_back(std::move(out));
    }
    return all;
  }

  // What comes out under `table`: every layer alone on `streams`, the prompt's rows and a decode step's; then logits.
  Result<Rows> outputs(const VariantTable& table, const std::vector<std::vector<float>>& streams) {
    const ModelConfig& config = model().config();
    const auto width = static_cast<std::size_t>(config.hc_mult * config.hidden_size);
    ExecutionContext context = context_of(table);
    Rows rows;
    for (const bool decode : {false, true}) {
      FATHOM_RETURN_IF_ERROR(decode ? set_rows(num_rows_, 1, 1) : set_rows(0, num_rows_, 1));
      for (std::size_t layer = 0; layer + 1 < streams.size(); ++layer) {
        std::span<const float> in = streams[layer];
        if (decode) in = in.last(width);
        std::vector<float> out(in.size());
        FATHOM_RETURN_IF_ERROR(
            model().run_layer_alone(context, static_cast<std::int32_t>(layer), step_, in, out, pools_));
        rows.add(out, width);
      }
    }
    const View logits = model().forward(context, step_, pools_);
    FATHOM_RETURN_IF_ERROR(add_logits(logits, rows));
    if (model().draft_kind() == DraftKind::kMtp) {
      FATHOM_RETURN_IF_ERROR(add_logits(model().draft_mtp(context, step_, model().final_streams(), pools_), rows));
    }
    return rows;
  }

  // Operations that run at all, in this model's prompt and decode steps.
  Result<std::set<std::string>> reached() {
    StepTrace trace;
    ExecutionContext context = context_of(defaults());
    context.trace = &trace;
    FATHOM_RETURN_IF_ERROR(set_rows(num_rows_, 1, 1));
    static_cast<void>(model().forward(context, step_, pools_));
    if (model().draft_kind() == DraftKind::kMtp) {
      static_cast<void>(model().draft_mtp(context, step_, model().final_streams(), pools_));
    }
    FATHOM_RETURN_IF_ERROR(backend().finish());
    std::set<std::string> names;
    for (const OpSample& sample : trace.samples) names.emplace(sample.scope.operation);
    return names;
  }

  struct Timed {
    double us = 0;  // of all calls of one step
    int num_calls = 0;
    OpCost cost;
  };
  // Time of each operation in a decode step of `batch` rows: the least of several steps.
  Result<std::map<std::string, Timed>> time_step(const VariantTable& table, int batch) {
    FATHOM_RETURN_IF_ERROR(set_rows(num_rows_, 1, batch));
    ExecutionContext context = context_of(table);
    std::map<std::string, Timed> best;
    for (int round = 0; round < 6; ++round) {
      std::map<std::string, Timed> now;
      if (backend().is_host_memory()) {
        StepTrace trace;
        context.trace = &trace;
        static_cast<void>(model().forward(context, step_, pools_));
        for (const OpSample& sample : trace.samples) add(now, sample.scope, sample.time_us, sample.cost);
      } else {
        context.segments = SegmentTiming::kOperations;
        context.capture_max_position = num_rows_;
        FATHOM_RETURN_IF_ERROR(backend().launch_captured({-1, batch, batch, batch, false}, context, [&](auto& c) {
          static_cast<void>(model().forward(c, step_, pools_));
        }));
        FATHOM_RETURN_IF_ERROR(backend().finish());
        const auto captured = backend().last_captured();
        if (captured == nullptr) continue;
        FATHOM_ASSIGN_OR_RETURN(const std::vector<double> times, backend().segment_times_us(*captured));
        for (std::size_t i = 0; i < times.size(); ++i) {
          const CapturedCall& call = captured->calls[static_cast<std::size_t>(captured->segments[i].first_call)];
          add(now, call.scope, times[i], call.cost);
        }
      }
      for (const auto& [name, timed] : now) {
        const auto [entry, is_new] = best.try_emplace(name, timed);
        if (!is_new && timed.us < entry->second.us) entry->second = timed;
      }
    }
    return best;
  }

 private:
  Probe() = default;

  Status allocate(std::int64_t num_rows) {
    const CacheLayout& layout = model().cache_layout();
    const std::int64_t blocks = num_context_blocks(num_rows + 1);
    FATHOM_ASSIGN_OR_RETURN(context_pool_, backend().allocate(blocks * layout.context_block_bytes, "selftest caches"));
    FATHOM_ASSIGN_OR_RETURN(window_pool_, backend().allocate(blocks * layout.window_block_bytes, "selftest caches"));
    FATHOM_ASSIGN_OR_RETURN(state_pool_, backend().allocate(layout.state_slot_bytes, "selftest caches"));
    pools_ = {context_pool_.data,        layout.context_block_bytes, window_pool_.data,
              layout.window_block_bytes, state_pool_.data,           layout.state_slot_bytes};
    const std::int64_t most = std::max<std::int64_t>(num_rows, kSelftestBatch);
    FATHOM_ASSIGN_OR_RETURN(step_, StepInput::make(backend(), {most, kSelftestBatch, kSelftestBatch,
                                                               blocks * kSelftestBatch, blocks * kSelftestBatch}));
    for (std::int64_t i = 0; i < blocks; ++i) table_.push_back(static_cast<std::int32_t>(blocks - 1 - i));
    std::uint64_t state = 9;
    for (std::int64_t i = 0; i <= num_rows; ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      ids_.push_back(static_cast<TokenId>((state >> 33) % static_cast<std::uint64_t>(model().config().vocab_size)));
    }
    return {};
  }

  ExecutionContext context_of(const VariantTable& table) {
    ExecutionContext context = model().make_context();
    context.variants = &table;
    return context;
  }

  Status add_logits(const View& logits, Rows& rows) {
    std::vector<float> host(static_cast<std::size_t>(logits.shape.num_elements()));
    FATHOM_RETURN_IF_ERROR(
        backend().download(reinterpret_cast<std::byte*>(host.data()), logits.data, logits.num_bytes()));
    FATHOM_RETURN_IF_ERROR(backend().finish());
    rows.add(host, static_cast<std::size_t>(logits.shape[1]));
    return {};
  }

  static void add(std::map<std::string, Timed>& all, const OpScope& scope, double us, const OpCost& cost) {
    Timed& timed = all[std::string(scope.operation)];
    timed.us += us;
    ++timed.num_calls;
    timed.cost.bytes += cost.bytes;
    timed.cost.flops += cost.flops;
  }

  std::int64_t num_rows_ = 0;  // of the prompt
  LoadedModel loaded_;
  DeviceMemory context_pool_, window_pool_, state_pool_;
  CachePools pools_;
  StepInput step_;
  std::vector<std::int32_t> table_;
  std::vector<TokenId> ids_;
};

// Bytes a second that a large copy on the device reads and writes.
Result<double> copy_speed(Backend& backend) {
  const std::int64_t num_bytes = std::int64_t{1} << 30;
  FATHOM_ASSIGN_OR_RETURN(const DeviceMemory from, backend.allocate(num_bytes, "a copy to time"));
  FATHOM_ASSIGN_OR_RETURN(const DeviceMemory to, backend.allocate(num_bytes, "a copy to time"));
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    FATHOM_RETURN_IF_ERROR(backend.finish());
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < 8; ++i) FATHOM_RETURN_IF_ERROR(backend.copy(to.data, from.data, num_bytes));
    FATHOM_RETURN_IF_ERROR(backend.finish());
    best = std::max(best, 16.0 * static_cast<double>(num_bytes) / seconds_since(begin));
  }
  return best;
}

class Selftest {
 public:
  explicit Selftest(const SelftestOptions& options) : options_(options) {}

  Result<SelftestResult> run() {
    const Clock::time_point begin = Clock::now();
    registry_ = registry_for(options_.device, options_.register_more);
    FATHOM_ASSIGN_OR_RETURN(probe_, Probe::make(options_, options_.device, options_.model));
    result_.device_name = probe_->backend().device_name();
    result_.compute_capability = probe_->backend().device().compute_capability;
    result_.key = variant_choices_key(probe_->backend(), registry_);
    FATHOM_RETURN_IF_ERROR(compare());
    FATHOM_RETURN_IF_ERROR(time());
    choose();
    result_.seconds = seconds_since(begin);
    return std::move(result_);
  }

 private:
  BackendKind kind() { return probe_->backend().device().backend; }
  void tell(const std::string& what) const {
    if (options_.progress) options_.progress(what);
  }

  VariantTable with(VariantChoices base, const Variant& variant) {
    base.emplace_back(op_name(variant.op), variant.name);
    return *VariantTable::choose(registry_, kind(), base);
  }

  // The slow twin of an operation: what its other variants are held against.
  static const Variant& twin_of(const std::vector<Variant>& variants) {
    for (const Variant& variant : variants) {
      if (variant.name == "naive" || variant.name == "reference") return variant;
    }
    return variants.front();
  }

  Status compare() {
    // Where all twins are fast (a GPU) they are the surroundings; on a CPU the defaults are.
    VariantChoices base;
    if (kind() == BackendKind::kCuda) {
      for (int op = 0; op < kNumOpKinds; ++op) {
        const std::vector<Variant> variants = registry_.variants_of(static_cast<OpKind>(op), kind());
        if (!variants.empty()) base.emplace_back(op_name(static_cast<OpKind>(op)), twin_of(variants).name);
      }
    }
    const VariantTable surroundings = *VariantTable::choose(registry_, kind(), base);
    FATHOM_ASSIGN_OR_RETURN(const std::vector<std::vector<float>> streams, probe_->streams(surroundings));
    FATHOM_ASSIGN_OR_RETURN(const std::set<std::string> reached, probe_->reached());
    Rows of_cpu;
    if (kind() == BackendKind::kCuda) {
      // Operations with one variant have no twin on the card: all of them together are held against the CPU's.
      tell("the CPU's layers");
      FATHOM_ASSIGN_OR_RETURN(const auto cpu, Probe::make(cpu_options(), DeviceChoice::kCpu, options_.model));
      FATHOM_ASSIGN_OR_RETURN(of_cpu, cpu->outputs(cpu->defaults(), streams));
    }
    for (int op = 0; op < kNumOpKinds; ++op) {
      const auto op_kind = static_cast<OpKind>(op);
      const std::vector<Variant> variants = registry_.variants_of(op_kind, kind());
      if (variants.empty()) continue;
      const Variant& twin = twin_of(variants);
      const std::string name(op_name(op_kind));
      tell(name);
      Rows want;
      const bool runs = reached.contains(name);
      if (runs && variants.size() > 1) {
        FATHOM_ASSIGN_OR_RETURN(want, probe_->outputs(with(base, twin), streams));
      } else if (runs && !of_cpu.ends.empty()) {
        want = of_cpu;
      }
      for (const Variant& variant : variants) {
        VariantReport report;
        report.op = op_kind;
        report.variant = variant.name;
        report.is_default = probe_->defaults()[op_kind].run == variant.run;
        const bool is_twin = variant.run == twin.run;
        if (runs && is_twin && (variants.size() > 1 || want.ends.empty())) {
          report.verdict = Verdict::kTwin;
        } else if (runs) {
          FATHOM_ASSIGN_OR_RETURN(const Rows got, probe_->outputs(with(base, variant), streams));
          const std::vector<double> errors = row_errors(got, want);
          report.median_error = errors[errors.size() / 2];
          report.worst_error = errors[errors.size() * 99 / 100];
          const bool right = report.median_error <= kMedianBound && report.worst_error <= kTailBound;
          report.verdict = right ? Verdict::kRight : Verdict::kWrong;
        }
        result_.variants.push_back(std::move(report));
      }
    }
    return {};
  }

  SelftestOptions cpu_options() const {
    SelftestOptions options = options_;
    options.register_more = {};
    return options;
  }

  Status time() {
    const bool wide = !options_.timed_model.empty();
    tell(wide ? "times at full width" : "times");
    std::unique_ptr<Probe> other;
    if (wide) {
      FATHOM_ASSIGN_OR_RETURN(other, Probe::make(options_, options_.device, options_.timed_model));
    }
    Probe& probe = wide ? *other : *probe_;
    if (wide) {
      // The caches of the prompt's rows.
      FATHOM_RETURN_IF_ERROR(probe.streams(probe.defaults()).status());
    }
    double flops = 0;
    if (probe.backend().is_host_memory()) {
      const simd::Ceilings ceilings = simd::measure_ceilings(*probe.backend().make_context().threads, 2);
      result_.ceiling_bytes_per_s = ceilings.memory_bytes_per_s;
      flops = ceilings.flops_per_s;
    } else {
      FATHOM_ASSIGN_OR_RETURN(result_.ceiling_bytes_per_s, copy_speed(probe.backend()));
    }
    for (VariantReport& report : result_.variants) {
      if (report.verdict == Verdict::kNotReached || report.verdict == Verdict::kWrong) continue;
      const VariantTable table = with({}, *find(report));
      const std::string name(op_name(report.op));
      for (const int batch : {1, kSelftestBatch}) {
        // Scalar references of a wide batch take long and win nothing.
        if (batch > 1 && report.variant == "reference") continue;
        FATHOM_ASSIGN_OR_RETURN(const auto times, probe.time_step(table, batch));
        const auto found = times.find(name);
        if (found == times.end()) continue;
        const Probe::Timed& timed = found->second;
        (batch == 1 ? report.us_one : report.us_many) = timed.us / timed.num_calls;
        if (batch > 1) continue;
        const double floor_s =
            std::max(timed.cost.bytes / result_.ceiling_bytes_per_s, flops > 0 ? timed.cost.flops / flops : 0.0);
        report.share_of_ceiling = floor_s / (timed.us * 1e-6);
      }
      probe.backend().drop_captured();
    }
    return {};
  }

  const Variant* find(const VariantReport& report) const {
    for (const Variant& variant : registry_.variants()) {
      if (variant.op == report.op && variant.name == report.variant) return &variant;
    }
    return nullptr;
  }

  // Of the right ones the default, unless another is clearly faster over both batches.
  void choose() {
    for (int op = 0; op < kNumOpKinds; ++op) {
      VariantReport* best = nullptr;
      for (const bool defaults : {true, false}) {
        for (VariantReport& report : result_.variants) {
          if (report.op != static_cast<OpKind>(op) || report.is_default != defaults) continue;
          if (report.verdict == Verdict::kWrong) continue;
          const double margin = best != nullptr && best->is_default ? kClearlyFaster : 1.0;
          if (best == nullptr || is_faster(report, *best, margin)) best = &report;
        }
      }
      if (best == nullptr) continue;
      best->is_chosen = true;
    }
  }
  static bool is_faster(const VariantReport& a, const VariantReport& b, double margin) {
    if (a.us_one <= 0 || b.us_one <= 0) return false;
    if (a.us_many <= 0 || b.us_many <= 0) return a.us_one / b.us_one < margin;
    return std::sqrt(a.us_one / b.us_one * (a.us_many / b.us_many)) < margin;
  }

  SelftestOptions options_;
  OpRegistry registry_;
  std::unique_ptr<Probe> probe_;
  SelftestResult result_;
};

}  // namespace

bool SelftestResult::all_right() const {
  return std::none_of(variants.begin(), variants.end(),
                      [](const VariantReport& report) { return report.verdict == Verdict::kWrong; });
}

VariantChoices SelftestResult::choices() const {
  VariantChoices out;
  for (const VariantReport& report : variants) {
    if (report.is_chosen) out.emplace_back(std::string(op_name(report.op)), report.variant);
  }
  return out;
}

Result<SelftestResult> run_selftest(const SelftestOptions& options) { return Selftest(options).run(); }

}  // namespace fathom
