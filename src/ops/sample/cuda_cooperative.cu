// sample/cooperative: the blocks of a row meet at a counter in device memory, on any card. A cooperative launch has all
// of them at work at once; teams take rows in turn.
#include <algorithm>

#include "ops/cuda/card_limits.cuh"
#include "ops/sample/team_draw.cuh"

namespace fathom::cuda {

void sample_rows_block(ExecutionContext& context, const SampleRowsPlan& plan, const SampleRowsArgs& args);

void sample_rows_cooperative(ExecutionContext& context, const SampleRowsPlan& plan, const SampleRowsArgs& args) {
  const auto kernel = sample_by_teams<false>;
  // How many blocks a card holds at once: asked once, since a program has one vocabulary at a time.
  static thread_local std::int64_t asked_vocab = 0;
  static thread_local int num_blocks = 0, num_multiprocessors = 0;
  if (asked_vocab != plan.vocab) {
    const std::size_t most_bytes = static_cast<std::size_t>(team_share(plan.vocab, kTeamBlocks)) * 4;
    int each = 0;
    num_multiprocessors = card_limits().num_multiprocessors;
    const bool fits =
        plan.vocab <= kMaxTeamVocab &&
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most_bytes)) ==
            cudaSuccess &&
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, kTeamThreads, most_bytes) == cudaSuccess;
    if (!fits) static_cast<void>(cudaGetLastError());
    num_blocks = fits ? each * num_multiprocessors : 0;
    asked_vocab = plan.vocab;
  }
  if (num_blocks < kTeamBlocks) return sample_rows_block(context, plan, args);
  const auto rows = static_cast<int>(args.logits.shape[0]);
  int size = kTeamMost;  // where rows are few, as many multiprocessors as there are
  while (size > kTeamBlocks && rows * size > num_multiprocessors) size /= 2;
  const int share = team_share(plan.vocab, size);
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(size), static_cast<unsigned>(std::min({rows, num_blocks / size, kMaxTeams})));
  config.blockDim = dim3(kTeamThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(share) * 4;
  config.stream = stream_of(context);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  // A failure shows as the launch's.
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, args.logits.as<float>(), args,
                                       reinterpret_cast<TeamArea*>(args.exchange.data), rows,
                                       static_cast<int>(plan.vocab), share));
}

}  // namespace fathom::cuda
