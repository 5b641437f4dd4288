// sample/cluster: the blocks of a row are a cluster of sm_90, which meets at the cluster's barrier.
#include <algorithm>

#include "ops/cuda/kernel_image.cuh"
#include "ops/sample/team_draw.cuh"

namespace fathom::cuda {

void sample_rows_cooperative(ExecutionContext& context, const SampleRowsPlan& plan, const SampleRowsArgs& args);

void sample_rows_cluster(ExecutionContext& context, const SampleRowsPlan& plan, const SampleRowsArgs& args) {
  const auto kernel = sample_by_teams<true>;
  static const bool clusters = compiled_for_sm90(kernel);
  const int share = team_share(plan.vocab, kTeamBlocks);
  const std::size_t shared_bytes = static_cast<std::size_t>(share) * 4;
  if (!clusters || plan.vocab > kMaxTeamVocab) return sample_rows_cooperative(context, plan, args);
  const auto rows = static_cast<int>(args.logits.shape[0]);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kTeamBlocks, kMaxTeams);
  config.blockDim = dim3(kTeamThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream_of(context);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = kTeamBlocks;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  // As many as the card holds at once: asked once, since a program has one vocabulary at a time.
  static thread_local std::int64_t asked_vocab = 0;
  static thread_local int num_teams = 0;
  if (asked_vocab != plan.vocab) {
    const bool fits = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(shared_bytes)) == cudaSuccess &&
                      cudaOccupancyMaxActiveClusters(&num_teams, kernel, &config) == cudaSuccess;
    if (!fits || num_teams < 1) num_teams = 1;  // a failure shows as the launch's
    asked_vocab = plan.vocab;
  }
  config.gridDim.y = static_cast<unsigned>(std::min({rows, num_teams, kMaxTeams}));
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, args.logits.as<float>(), args,
                                       reinterpret_cast<TeamArea*>(args.exchange.data), rows,
                                       static_cast<int>(plan.vocab), share));
}

}  // namespace fathom::cuda
