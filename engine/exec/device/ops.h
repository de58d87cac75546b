// Queues one compute op on a device's stream: through the op's kernel call with the device's
// kernels, or, for a gate, the device's routing. Both the executor's ranks and the profiler queue
// ops with queue_op(), so that the profiler times what runs in a step. Not here: ops that run on
// the CPU, and collectives.
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "engine/base/units.h"
#include "engine/graph/graph.h"
#include "engine/ops/kernel_call.h"
#include "kernels/device.h"

namespace moe {

/// How long a host thread that waits for a device sleeps before it asks again.
constexpr auto kDevicePoll = std::chrono::microseconds(20);

bool is_gate(const Graph& graph, OpId op);

/// The `element_bytes` of floats on the device, as dtype_bytes() takes it: 0 (each tensor has its
/// own type) with kernels of mixed precision (DeviceTable::mixed), else 4.
Bytes element_bytes(const kernels::DeviceTable& device);

/// Returns the table with the kernels for bf16 activations, or without them (f32 only). Throws
/// UserError when bf16 is requested and the device has no such kernels.
kernels::DeviceTable computing_in(bool bf16, kernels::DeviceTable device);

/// Whether the device's kernels can route this gate op: a built-in gate that takes the k best
/// scores, without biases, and with at most as many experts as the kernels support.
bool routes_on_device(const Graph& graph, OpId op);

/// kNoIndexByte fills the entries of DeviceTable::note_nonfinite before a step, so that each is
/// larger than any index; kNoIndex is the value that an entry then has when all numbers are finite.
constexpr int32_t kNoIndexByte = 0x7f;
constexpr int64_t kNoIndex = 0x7f7f7f7f7f7f7f7f;

/// Returns finite_operands() of an op or collective without losses, which are doubles and checked
/// separately.
std::vector<TensorId> checked_on_device(const Graph& graph, const Op& op);
/// Queues the check of a tensor, whose values are at `data`; `first` gets the index of the first
/// number that is not finite, and stays unchanged if all are finite.
void queue_check(const Tensor& tensor, const void* data, int64_t* first,
                 const kernels::DeviceTable& device, kernels::Stream stream);

/// Queues the computation of the most probable next token of each row of the logits that the loss
/// op reads, which are at `data`.
void queue_predictions(const Graph& graph, const Op& loss, const void* data, int32_t* tokens,
                       const kernels::DeviceTable& device, kernels::Stream stream);

/// Bytes that DeviceOperands::scratch must have for the op. Requires: the op does not run on the
/// CPU.
Bytes device_scratch_bytes(const Graph& graph, OpId op, const kernels::DeviceTable& device);

/// Addresses of the op's inputs and outputs, null for an absent input. They are in memory of the
/// device, except that inputs listed by host_inputs() (graph/op_def.h) are in host memory.
struct DeviceOperands {
  std::span<void*const> inputs, outputs;
  void* scratch = nullptr;
};

/// Whether the op has the kernel that it needs: for bf16 if it stores bf16 and the device has
/// DeviceTable::mixed, else for f32.
bool has_kernel(const Graph& graph, OpId op, const kernels::DeviceTable& device);

/// Queues the op: a gate by the device's routing, a swap_in as memory copies by the device, any
/// other op by its kernel call. Requires: the op has a kernel and does not run on the CPU.
void queue_op(const Graph& graph, OpId op, const DeviceOperands& operands,
              const RankContext& context, const kernels::DeviceTable& device,
              kernels::Stream stream);

}  // namespace moe
