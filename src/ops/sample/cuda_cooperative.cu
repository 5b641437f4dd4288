// sample/cooperative: the blocks of a row meet at a counter in device memory, on any card. A cooperative launch has all
// of them at work at once; teams take rows in turn.
#include <algorithm>

#include "ops/sample/team_draw.cuh"

namespace fathom::cuda {

void sample_rows_block(ExecutionContext& context, const SampleRowsPlan& plan, const SampleRowsArgs& args);

void sample_rows_cooperative(ExecutionContext& context, const SampleRowsPlan& plan, const SampleRowsArgs& args) {
  const auto kernel = sample_by_teams<false>;
  const int share = team_share(plan.vocab);
  const std::size_t shared_bytes = static_cast<std::size_t>(share) * 4;
  // How many teams a card holds at once: asked once, since a program has one vocabulary at a time.
  static thread_local std::int64_t asked_vocab = 0;
  static thread_local int num_teams = 0;
  if (asked_vocab != plan.vocab) {
    int device = 0, multiprocessors = 0, blocks = 0;
    const bool fits =
        plan.vocab <= kMaxTeamVocab && cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) == cudaSuccess &&
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)) ==
            cudaSuccess &&
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kTeamThreads, shared_bytes) == cudaSuccess;
    if (!fits) static_cast<void>(cudaGetLastError());
    num_teams = fits ? std::min(kMaxTeams, blocks * multiprocessors / kTeamBlocks) : 0;
    asked_vocab = plan.vocab;
  }
  if (num_teams == 0) return sample_rows_block(context, plan, args);
  const auto rows = static_cast<int>(args.logits.shape[0]);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kTeamBlocks, static_cast<unsigned>(std::min(rows, num_teams)));
  config.blockDim = dim3(kTeamThreads);
  config.dynamicSmemBytes = shared_bytes;
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
