// What the kernels keep for streams, here any addresses: only the emulation takes these as handles.
#include "kernels/cuda/device_functions.h"
#include "tests/cuda/emulation/emulated.h"

using namespace moe;

TEST_CASE("a stream's work area grows, stays where it was for what was queued, and ends with it") {
  char handle = 0;
  const size_t alive = emulation::things_alive();
  void* const small = kernels::cuda::work_area(&handle, 0);
  CHECK(kernels::cuda::work_area(&handle, 1) == small);
  void* const large = kernels::cuda::work_area(&handle, 5000);
  CHECK((large != small && emulation::is_allocated(large, 5000)));
  CHECK((kernels::cuda::work_area(&handle, 4) == large && emulation::is_allocated(small, 1)));
  kernels::cuda::forget_gemm(&handle);
  CHECK(emulation::things_alive() == alive);
}
