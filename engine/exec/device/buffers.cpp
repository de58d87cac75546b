#include "engine/exec/device/buffers.h"

#include <algorithm>
#include <map>

#include "engine/base/errors.h"
#include "engine/exec/device/ops.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

using Where = DeviceStorage::Where;

Bytes aligned(Bytes bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Returns the offset of each tensor's host copy (-1: none), and the total size as the last entry.
/// Tensors of a joined block share the block's memory.
std::vector<Bytes> host_offsets(const Plan& plan, const DeviceProgram& program,
                                Bytes element_bytes) {
  std::vector<Bytes> offsets;
  std::map<int32_t, Bytes> blocks;  // indexed by joined block: its offset
  Bytes end = 0;
  const auto take = [&](Bytes bytes) { return std::exchange(end, end + aligned(bytes)); };
  for (size_t t = 0; t < plan.graph.tensors().size(); ++t) {
    const Buffer& buffer = plan.memory.buffers[t];
    if (!program.mirrored[t]) {
      offsets.push_back(-1);
    } else if (buffer.joined < 0) {
      offsets.push_back(take(tensor_bytes(plan.graph.tensors()[t], element_bytes)));
    } else {
      const JoinedBlock& block = plan.memory.joined[static_cast<size_t>(buffer.joined)];
      if (!blocks.contains(buffer.joined)) blocks[buffer.joined] = take(block.bytes);
      offsets.push_back(blocks[buffer.joined] + buffer.offset - block.offset);
    }
  }
  offsets.push_back(end);
  return offsets;
}

/// Returns the offset of each tensor on the device: as in the plan, but persistent tensors move to
/// lower offsets to fill the gaps of the tensors that stay in host memory.
std::vector<Bytes> device_offsets(const Plan& plan, const DeviceProgram& program) {
  // Key: the offset of a host-only tensor in the plan; value: bytes saved up to and including it.
  std::map<Bytes, Bytes> saved;
  Bytes sum = 0;
  for (size_t t = 0; t < program.host_only.size(); ++t) {
    const Buffer& buffer = plan.memory.buffers[t];
    if (program.host_only[t]) saved[buffer.offset] = sum += buffer.bytes;
  }
  std::vector<Bytes> offsets;
  for (const Buffer& buffer : plan.memory.buffers) {
    const auto after = saved.upper_bound(buffer.offset);
    const bool moves = buffer.persistent && after != saved.begin();
    offsets.push_back(buffer.offset - (moves ? std::prev(after)->second : 0));
  }
  return offsets;
}

std::vector<Bytes> offsets_of(const std::vector<Bytes>& sizes) {
  std::vector<Bytes> offsets = {0};
  for (const Bytes size : sizes) offsets.push_back(offsets.back() + aligned(size));
  return offsets;
}

Bytes largest_host_scratch(const Plan& plan, const DeviceProgram& program) {
  Bytes largest = 0;
  for (const DeviceStep& step : program.steps) {
    const OpDef& def = plan.graph.def(step.op);
    if (!program.on_host[step.op.index()] || def.scratch_bytes == nullptr) continue;
    largest =
        std::max(largest, def.scratch_bytes(plan.graph, plan.graph.op(step.op), sizeof(float)));
  }
  return largest;
}

}  // namespace

Bytes host_only_bytes(const Plan& plan, const DeviceProgram& program) {
  Bytes bytes = 0;
  for (size_t t = 0; t < program.host_only.size(); ++t) {
    if (program.host_only[t]) bytes += plan.memory.buffers[t].bytes;
  }
  return bytes;
}

void check_device(const kernels::DeviceTable& device, std::string_view what) {
  const std::string message = device.take_error();
  if (!message.empty()) throw run_error("{}: {}", what, message);
}

DeviceStorage::DeviceStorage(const kernels::DeviceTable& device, Where where, Bytes bytes)
    : bytes_(bytes),
      data_(nullptr, {where == Where::kDevice ? device.release : device.release_host}) {
  if (bytes == 0) return;
  void* const p = where == Where::kDevice ? device.allocate(bytes) : device.allocate_host(bytes);
  if (p == nullptr) {
    throw run_error("{}: {} bytes for tensors cannot be allocated: {}",
                    where == Where::kDevice ? "device memory" : "pinned host memory", bytes,
                    device.take_error());
  }
  data_.reset(static_cast<std::byte*>(p));
}

DeviceBuffers::DeviceBuffers(const Plan& plan, const DeviceProgram& program,
                             const kernels::DeviceTable& device, const std::vector<Bytes>& scratch)
    : plan_(plan),
      program_(program),
      element_bytes_(moe::element_bytes(device)),
      device_offset_(device_offsets(plan, program)),
      host_offset_(host_offsets(plan, program, element_bytes_)),
      scratch_offset_(offsets_of(scratch)),
      arena_(device, Where::kDevice, plan.memory.arena_bytes),
      persistent_(device, Where::kDevice,
                  plan.memory.persistent_bytes - host_only_bytes(plan, program)),
      scratch_(device, Where::kDevice, scratch_offset_.back()),
      host_(device, Where::kHost, host_offset_.back()),
      host_scratch_(device, Where::kHost, largest_host_scratch(plan, program)) {
  for (size_t t = 0; t < plan.graph.tensors().size(); ++t) {
    const Buffer& buffer = plan.memory.buffers[t];
    const Bytes end = device_offset_[t] + bytes(plan.graph.tensors()[t]);
    if (!program.host_only[t] && end > (buffer.persistent ? persistent_ : arena_).size()) {
      throw user_error(
          "tensor {}: it ends at byte {} in the run's precision, outside the {} bytes that the "
          "plan reserves; make the plan for this precision",
          plan.graph.tensors()[t].name, end, (buffer.persistent ? persistent_ : arena_).size());
    }
  }
}

void* DeviceBuffers::at(TensorId tensor) const {
  if (!tensor.valid() || program_.host_only[tensor.index()]) return nullptr;
  const bool persistent = plan_.memory.buffers[tensor.index()].persistent;
  return (persistent ? persistent_ : arena_).data() + device_offset_[tensor.index()];
}

void* DeviceBuffers::host(TensorId tensor) const {
  if (!tensor.valid() || host_offset_[tensor.index()] < 0) return nullptr;
  return host_.data() + host_offset_[tensor.index()];
}

}  // namespace moe
