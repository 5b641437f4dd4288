// Decode steps of a few layers at Flash's full width: random weights in the official formats, one captured graph a
// step, every row at the end of its own context.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "checkpoint/synthesise.h"
#include "device.h"
#include "engine/load_model.h"

namespace fathom::gpu {
namespace {

struct Batch {
  DeviceMemory context, window, state;
  CachePools pools;
  StepInput step;
};

Batch make_batch(Model& model, int batch, std::int64_t length) {
  Backend& backend = model.backend();
  const CacheLayout& layout = model.cache_layout();
  const std::int64_t context_blocks = num_context_blocks(length), window_blocks = 2;
  Batch b;
  b.context = *backend.allocate(context_blocks * batch * layout.context_block_bytes, "context blocks");
  b.window = *backend.allocate(window_blocks * batch * layout.window_block_bytes, "window blocks");
  b.state = *backend.allocate(batch * layout.state_slot_bytes, "states");
  // Small finite numbers in every format.
  for (const DeviceMemory* memory : {&b.context, &b.window, &b.state})
    cudaMemset(memory->data, 0x38, static_cast<std::size_t>(memory->num_bytes));
  cudaDeviceSynchronize();
  b.pools = {b.context.data, layout.context_block_bytes, b.window.data, layout.window_block_bytes,
             b.state.data,   layout.state_slot_bytes};
  b.step = *StepInput::make(backend, {batch, batch, batch, context_blocks * batch, window_blocks * batch});
  b.step.clear();
  std::mt19937 random(7);
  for (int s = 0; s < batch; ++s) {
    std::vector<std::int32_t> context_table(static_cast<std::size_t>(context_blocks)),
        window_table(static_cast<std::size_t>(window_blocks));
    for (std::int64_t i = 0; i < context_blocks; ++i)
      context_table[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(s * context_blocks + i);
    for (std::int64_t i = 0; i < window_blocks; ++i)
      window_table[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(s * window_blocks + i);
    const TokenId token = static_cast<TokenId>(random() % 129280);
    SequenceRows rows;
    rows.tokens = {&token, 1};
    rows.start = length - 2;  // closes no compressor group
    rows.context_table = context_table;
    rows.window_first = static_cast<std::int32_t>(std::max<std::int64_t>(0, rows.start + 1 - 128) / 128);
    rows.window_table = window_table;
    rows.state_slot = s;
    b.step.add(rows);
    b.step.add_logit_row(s);
  }
  EXPECT_TRUE(b.step.upload().ok());
  return b;
}

TEST(Synthetic, flash_decode) {
  FATHOM_NEEDS_GPU();
  const char* layers_text = std::getenv("FATHOM_FLASH_LAYERS");
  const int layers = layers_text != nullptr ? std::atoi(layers_text) : 4;
  const std::string directory = (std::filesystem::temp_directory_path() / "fathom-flash").string();
  std::filesystem::remove_all(directory);
  SynthesiseOptions synth;
  synth.config = *shrink_config(flash_config(), layers, 0);
  synth.tensors.draft = DraftKind::kNone;
  synth.directory = directory;
  const Result<SynthesiseResult> written = synthesise_checkpoint(synth);
  ASSERT_TRUE(written.ok()) << written.status().message();
  LoadOptions options;
  options.device = DeviceChoice::kCuda;
  options.max_step_tokens = 128;
  options.max_logit_rows = 128;
  options.draft = false;
  Result<LoadedModel> loaded = load_model(directory, options);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  Model& model = *loaded->model;
  const auto stream = static_cast<cudaStream_t>(model.make_context().stream);
  for (const std::int64_t length : {1024, 8192, 131072}) {
    for (const int batch : {1, 8, 32, 64, 128}) {
      Batch b = make_batch(model, batch, length);
      ExecutionContext context = model.make_context();
      context.capture_max_position = length - 1;
      static_cast<void>(model.forward(context, b.step, b.pools));
      ASSERT_TRUE(model.backend().finish().ok());
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      static_cast<void>(model.forward(context, b.step, b.pools));
      ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
      std::size_t nodes = 0;
      ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
      ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
      cudaEvent_t begin = nullptr, end = nullptr;
      cudaEventCreate(&begin);
      cudaEventCreate(&end);
      double best = 1e30;
      for (int i = 0; i < 8; ++i) {
        cudaEventRecord(begin, stream);
        cudaGraphLaunch(exec, stream);
        cudaEventRecord(end, stream);
        ASSERT_EQ(cudaEventSynchronize(end), cudaSuccess);
        float ms = 0;
        cudaEventElapsedTime(&ms, begin, end);
        if (i >= 2) best = std::min(best, 1e3 * ms);
      }
      char text[160];
      std::snprintf(text, sizeof(text), "  flash, %d layers + head: context %6lld b=%-3d %9.1f us a step, %3zu kernels",
                    layers, static_cast<long long>(length), batch, best, nodes);
      report(text);
      cudaEventDestroy(begin);
      cudaEventDestroy(end);
      cudaGraphExecDestroy(exec);
      cudaGraphDestroy(graph);
    }
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace fathom::gpu
