// The one file that knows whether CUDA was compiled in.
#include "backend/open_cuda.h"

#if defined(FATHOM_HAS_CUDA)
#include "backend/cuda/cuda_backend.h"
#include "ops/cuda/variants.h"
#endif

namespace fathom {

#if defined(FATHOM_HAS_CUDA)

bool built_with_cuda() { return true; }
Result<std::unique_ptr<Backend>> open_cuda_backend() { return cuda::make_cuda_backend(); }
void register_cuda_variants_if_built(OpRegistry& registry) { register_cuda_variants(registry); }

#else

bool built_with_cuda() { return false; }
Result<std::unique_ptr<Backend>> open_cuda_backend() {
  return failed_precondition("this program was built without CUDA; build it with FATHOM_CUDA=ON to use a GPU");
}
void register_cuda_variants_if_built(OpRegistry&) {}

#endif

}  // namespace fathom
