// fathom_gpu_check: proves every CUDA variant on the machine's GPU. Without one it says so and passes.
#include "device.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  fathom::gpu::has_device();
  return RUN_ALL_TESTS();
}
