// Rows to the experts' slots and back. All are gathers, the gradients too: each element is written
// by one thread, which adds in the order of the choices. A warp takes a row.
#include "kernels/cuda/device.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

template <class V>
__global__ void dispatch_kernel(V* out, const V* x, const int32_t* slot_choice, int64_t slots,
                                int64_t k, int64_t hidden) {
  const int64_t s = warp_number();
  if (s >= slots) return;
  const int32_t choice = slot_choice[s];
  for (int64_t c = lane(); c < hidden; c += kWarp)
    out[s * hidden + c] = choice < 0 ? V{} : x[choice / k * hidden + c];
}

template <class V>
__global__ void dispatch_dx_kernel(V* dx, const V* dout, const int32_t* choice_slot, const V* acc,
                                   int64_t tokens, int64_t k, int64_t hidden) {
  const int64_t t = warp_number();
  if (t >= tokens) return;
  for (int64_t c = lane(); c < hidden; c += kWarp) {
    V sum = acc ? acc[t * hidden + c] : V{};
    for (int64_t j = 0; j < k; ++j) {
      const int64_t slot = choice_slot[t * k + j];
      if (slot >= 0) sum = plus(sum, dout[slot * hidden + c]);
    }
    dx[t * hidden + c] = sum;
  }
}

template <class V>
__global__ void combine_kernel(V* y, const V* in, const float* weight, const int32_t* choice_slot,
                               const V* residual, int64_t tokens, int64_t k, int64_t hidden) {
  const int64_t t = warp_number();
  if (t >= tokens) return;
  for (int64_t c = lane(); c < hidden; c += kWarp) {
    V sum = residual ? residual[t * hidden + c] : V{};
    for (int64_t j = 0; j < k; ++j) {
      const int64_t slot = choice_slot[t * k + j];
      if (slot >= 0) sum = plus(sum, times(weight[t * k + j], in[slot * hidden + c]));
    }
    y[t * hidden + c] = sum;
  }
}

template <class V>
__global__ void combine_dx_kernel(V* din, const V* dy, const float* weight,
                                  const int32_t* slot_choice, int64_t slots, int64_t k,
                                  int64_t hidden) {
  const int64_t s = warp_number();
  if (s >= slots) return;
  const int32_t choice = slot_choice[s];
  for (int64_t c = lane(); c < hidden; c += kWarp)
    din[s * hidden + c] = choice < 0 ? V{} : times(weight[choice], dy[choice / k * hidden + c]);
}

__global__ void combine_dweight_kernel(float* dweight, const float* dy, const float* in,
                                       const int32_t* choice_slot, int64_t choices, int64_t k,
                                       int64_t hidden) {
  const int64_t choice = warp_number();
  if (choice >= choices) return;  // the whole warp
  const int64_t slot = choice_slot[choice];
  float sum = 0;
  for (int64_t c = lane(); c < hidden && slot >= 0; c += kWarp)
    sum += dy[choice / k * hidden + c] * in[slot * hidden + c];
  sum = warp_sum(sum);
  if (lane() == 0) dweight[choice] = sum;
}

const float4* four(const float* p) {
  return reinterpret_cast<const float4*>(p);
}
float4* four(float* p) {
  return reinterpret_cast<float4*>(p);
}

}  // namespace

void dispatch(float* out, const float* x, const int32_t* slot_choice, int64_t slots, int64_t k,
              int64_t hidden, Stream stream) {
  const int64_t blocks = blocks_of(slots, kWarps);
  if (vectorable(hidden, out, x)) {
    launch(dispatch_kernel<float4>, blocks, kThreads, stream, four(out), four(x), slot_choice,
           slots, k, hidden / 4);
  } else {
    launch(dispatch_kernel<float>, blocks, kThreads, stream, out, x, slot_choice, slots, k, hidden);
  }
}

void dispatch_dx(float* dx, const float* dout, const int32_t* choice_slot, const float* acc,
                 int64_t tokens, int64_t k, int64_t hidden, Stream stream) {
  const int64_t blocks = blocks_of(tokens, kWarps);
  if (vectorable(hidden, dx, dout, acc)) {
    launch(dispatch_dx_kernel<float4>, blocks, kThreads, stream, four(dx), four(dout), choice_slot,
           four(acc), tokens, k, hidden / 4);
  } else {
    launch(dispatch_dx_kernel<float>, blocks, kThreads, stream, dx, dout, choice_slot, acc, tokens,
           k, hidden);
  }
}

void combine(float* y, const float* in, const float* weight, const int32_t* choice_slot,
             const float* residual, int64_t tokens, int64_t k, int64_t hidden, Stream stream) {
  const int64_t blocks = blocks_of(tokens, kWarps);
  if (vectorable(hidden, y, in, residual)) {
    launch(combine_kernel<float4>, blocks, kThreads, stream, four(y), four(in), weight, choice_slot,
           four(residual), tokens, k, hidden / 4);
  } else {
    launch(combine_kernel<float>, blocks, kThreads, stream, y, in, weight, choice_slot, residual,
           tokens, k, hidden);
  }
}

void combine_dx(float* din, const float* dy, const float* weight, const int32_t* slot_choice,
                int64_t slots, int64_t k, int64_t hidden, Stream stream) {
  const int64_t blocks = blocks_of(slots, kWarps);
  if (vectorable(hidden, din, dy)) {
    launch(combine_dx_kernel<float4>, blocks, kThreads, stream, four(din), four(dy), weight,
           slot_choice, slots, k, hidden / 4);
  } else {
    launch(combine_dx_kernel<float>, blocks, kThreads, stream, din, dy, weight, slot_choice, slots,
           k, hidden);
  }
}

void combine_dweight(float* dweight, const float* dy, const float* in, const int32_t* choice_slot,
                     int64_t tokens, int64_t k, int64_t hidden, Stream stream) {
  const int64_t choices = tokens * k;
  launch(combine_dweight_kernel, blocks_of(choices, kWarps), kThreads, stream, dweight, dy, in,
         choice_slot, choices, k, hidden);
}

}  // namespace moe::kernels::cuda
