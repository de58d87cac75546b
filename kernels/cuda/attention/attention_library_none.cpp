// The functions of attention_library.h for a plugin that is built without cuDNN's headers.
#include "kernels/cuda/attention/attention_library.h"

namespace moe::kernels::cuda {

std::string attention_library_version() {
  return "no cuDNN";
}

bool library_has_attention(AttentionShape) {
  return false;
}

int64_t library_attention_work_bytes(AttentionShape) {
  return 0;
}

bool library_attention(Bf16*, float*, const Bf16*, AttentionShape, void*, Stream) {
  return false;
}

bool library_attention_dx(Bf16*, const Bf16*, const Bf16*, const Bf16*, const float*,
                          AttentionShape, void*, Stream) {
  return false;
}

}  // namespace moe::kernels::cuda
