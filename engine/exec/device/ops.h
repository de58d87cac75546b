// What one compute op gives to a device's stream: its glue with the device's kernels, or for a gate
// the device's routing. The ranks of the executor and the profiler queue ops by this, so that what
// is timed alone is what runs in a step. Not here: ops that run on the host, and collectives.
#pragma once

#include <span>
#include <vector>

#include "engine/base/units.h"
#include "engine/graph/graph.h"
#include "engine/ops/kernel_call.h"
#include "kernels/device.h"

namespace moe {

bool is_gate(const Graph& graph, OpId op);

/// What floats take on the device, as dtype_bytes() has it: with kernels of mixed precision
/// (DeviceTable::mixed) each its own type, else 4 bytes.
Bytes element_bytes(const kernels::DeviceTable& device);

/// The device with the kernels for activations of bf16, or else of f32 alone. Throws UserError
/// where it has none of bf16.
kernels::DeviceTable computing_in(bool bf16, kernels::DeviceTable device);

/// Whether the plugin's kernels route this gate op: the built-in gates of the k best scores,
/// without biases.
bool routes_on_device(const Graph& graph, OpId op);

/// Fills the slots of DeviceTable::note_nonfinite with more than any index; and what a slot then
/// holds where all numbers are finite.
constexpr int32_t kNoIndexByte = 0x7f;
constexpr int64_t kNoIndex = 0x7f7f7f7f7f7f7f7f;

/// What must be finite when the op is over, collectives too; losses, which are doubles, are looked
/// at by themselves.
std::vector<TensorId> checked_on_device(const Graph& graph, const Op& op);
/// Queues the look at the tensor, which lies at `data`.
void queue_check(const Tensor& tensor, const void* data, int64_t* first,
                 const kernels::DeviceTable& device, kernels::Stream stream);

/// Queues the look for the most probable next token of each row of the logits, which lie at `data`.
void queue_predictions(const Tensor& logits, const void* data, int32_t* tokens,
                       const kernels::DeviceTable& device, kernels::Stream stream);

/// What DeviceOperands::scratch needs. Requires: the op does not run on the host.
Bytes device_scratch_bytes(const Graph& graph, OpId op, const kernels::DeviceTable& device);

/// By input and output of the op, null for an absent input: on the device, but on the host the
/// inputs that host_inputs() names.
struct DeviceOperands {
  std::span<void*const> inputs, outputs;
  void* scratch = nullptr;
};

/// The op has a kernel of the device's precision.
bool has_kernel(const Graph& graph, OpId op, const kernels::DeviceTable& device);

/// A swap_in is copies by the device, anything else its glue. Requires: the op has a kernel and
/// does not run on the host.
void queue_op(const Graph& graph, OpId op, const DeviceOperands& operands,
              const RankContext& context, const kernels::DeviceTable& device,
              kernels::Stream stream);

}  // namespace moe
