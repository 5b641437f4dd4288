#include "bench_inputs.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace fathom::gpu {

bool asked_for(const char* name, std::int64_t value) {
  const char* text = std::getenv(name);
  return text == nullptr || std::atoll(text) == value;
}
std::vector<int> batches(int most) {
  std::vector<int> some;
  for (const int batch : {1, 8, 32, 64, 128})
    if (batch <= most && asked_for("FATHOM_GPU_BATCH", batch)) some.push_back(batch);
  return some;
}

int copies_for(double bytes) { return static_cast<int>(std::clamp(2.0e8 / std::max(bytes, 1.0), 2.0, 64.0)); }

double copy_gb_per_s() {
  static const double speed = [] {
    Arena arena;
    const std::int64_t n = 2LL << 30;
    std::byte* a = arena.allocate(n);
    std::byte* b = arena.allocate(n);
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    double best = 0;
    for (int i = 0; i < 5; ++i) {
      cudaEventRecord(begin);
      cudaMemcpyAsync(b, a, static_cast<std::size_t>(n), cudaMemcpyDeviceToDevice);
      cudaEventRecord(end);
      cudaEventSynchronize(end);
      float ms = 0;
      cudaEventElapsedTime(&ms, begin, end);
      best = std::max(best, 2.0 * static_cast<double>(n) / ms / 1e6);
    }
    return best;
  }();
  return speed;
}

std::uint64_t next_random(std::uint64_t& state) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state;
}

View random_codes(Arena& arena, DType dtype, Shape shape, std::uint64_t mask) {
  static std::uint64_t state = 0x9e3779b97f4a7c15ull;
  const std::int64_t bytes = shape.num_elements() * dtype_bytes(dtype);
  std::vector<std::uint64_t> host(static_cast<std::size_t>(std::min<std::int64_t>(bytes, 8 << 20) / 8 + 1));
  for (std::uint64_t& word : host) word = next_random(state) & mask;
  std::byte* data = arena.allocate(bytes);
  for (std::int64_t at = 0; at < bytes; at += 8 << 20) {
    cudaMemcpy(data + at, host.data(), static_cast<std::size_t>(std::min<std::int64_t>(8 << 20, bytes - at)),
               cudaMemcpyHostToDevice);
  }
  return make_view(data, dtype, shape);
}
View constant_bytes(Arena& arena, DType dtype, Shape shape, int value) {
  const View v = make_view(arena.allocate(shape.num_elements() * dtype_bytes(dtype)), dtype, shape);
  cudaMemset(v.data, value, static_cast<std::size_t>(v.num_bytes()));
  return v;
}
View random_bf16(Arena& arena, Shape shape) { return random_codes(arena, DType::kBF16, shape, kBf16Mask); }

LinearWeight fp8_weight(Arena& arena, std::int64_t n, std::int64_t k) {
  LinearWeight w;
  w.format = WeightFormat::kFp8Block128;
  w.out_features = n, w.in_features = k;
  w.values = random_codes(arena, DType::kF8E4M3, {n, k}, kE4m3Mask);
  w.scale = constant_bytes(arena, DType::kF8E8M0, {(n + 127) / 128, (k + 127) / 128}, 121);
  return w;
}
LinearWeight bf16_weight(Arena& arena, std::int64_t n, std::int64_t k) {
  LinearWeight w;
  w.format = WeightFormat::kBf16;
  w.out_features = n, w.in_features = k;
  w.values = random_bf16(arena, {n, k});
  return w;
}

void line(const char* name, int batch, double us, double bytes) {
  char text[200];
  std::snprintf(text, sizeof(text), "  %-52s b=%-4d %9.2f us %10.2f MB %7.0f GB/s %5.1f %% of copy", name, batch, us,
                bytes / 1e6, bytes / us / 1e3, 100.0 * bytes / us / 1e3 / copy_gb_per_s());
  report(text);
}

}  // namespace fathom::gpu
