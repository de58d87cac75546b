// The cases of this folder on the host's emulation. Nothing here runs on a GPU.
#include "tests/cuda/emulated.h"

#include "kernels/cuda/functions.h"

namespace moe::test {

const kernels::KernelTable<float>& device_table() {
  return kernels::cuda::table();
}

const kernels::KernelTable<kernels::Bf16>& device_table_mixed() {
  static constexpr kernels::KernelTable<kernels::Bf16> table = {
      .name = "cuda mixed, emulated",
      .attention = kernels::cuda::attention_mixed,
      .attention_dx = kernels::cuda::attention_dx_mixed,
      .attention_work_bytes = kernels::cuda::attention_mixed_work_bytes};
  return table;
}

std::string device_error() {
  return kernels::cuda::take_error();
}

void begin_run(uint64_t run) {
  emulation::set_order(run);
}

}  // namespace moe::test
