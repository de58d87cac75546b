// The memory of one rank on a device, in the plan's layout without the tensors that stay in host
// memory (that of the CPU), and host copies of the tensors that the CPU reads or computes for ops.
// A host copy has its own memory for the whole step, so that a transfer to or from the device in
// progress never overlaps another tensor; tensors of a joined block share host memory as they share
// device memory. Memory of CPU ranks is in exec/buffers.h.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "engine/exec/buffers.h"
#include "engine/exec/device/program.h"
#include "kernels/device.h"

namespace moe {

/// Throws RunError "WHAT: MESSAGE" when an earlier device call of this thread failed.
void check_device(const kernels::DeviceTable& device, std::string_view what);

/// Device memory, or pinned host memory, which the device reads and writes asynchronously. Throws
/// RunError, which names the bytes, when there is not enough memory.
class DeviceStorage {
 public:
  enum class Where : uint8_t { kDevice, kHost };
  DeviceStorage(const kernels::DeviceTable& device, Where where, Bytes bytes);
  std::byte* data() const { return data_.get(); }
  Bytes size() const { return bytes_; }

 private:
  struct Release {
    void (*release)(void*);
    void operator()(std::byte* p) const { release(p); }
  };
  Bytes bytes_;
  std::unique_ptr<std::byte, Release> data_;
};

/// Bytes of the plan's memory that a device does not need, because DeviceProgram::host_only keeps
/// these tensors in host memory.
Bytes host_only_bytes(const Plan& plan, const DeviceProgram& program);

class DeviceBuffers {
 public:
  /// `scratch` has the bytes of each lane's scratch area on the device. The first three arguments
  /// must outlive the buffers.
  DeviceBuffers(const Plan& plan, const DeviceProgram& program, const kernels::DeviceTable& device,
                const std::vector<Bytes>& scratch);

  /// Address on the device; null for an invalid id, and for a tensor that is only in host memory.
  void* at(TensorId tensor) const;
  /// Address of the tensor's host copy; null when it has none.
  void* host(TensorId tensor) const;
  Bytes bytes(const Tensor& tensor) const { return tensor_bytes(tensor, element_bytes_); }
  void* scratch(LaneId lane) const { return scratch_.data() + scratch_offset_[lane.index()]; }
  /// Scratch memory, on the CPU, of the ops that run there.
  void* host_scratch() const { return host_scratch_.data(); }
  /// Bytes allocated on the device.
  Bytes allocated() const { return arena_.size() + persistent_.size() + scratch_.size(); }

 private:
  const Plan& plan_;
  const DeviceProgram& program_;
  const Bytes element_bytes_;
  std::vector<Bytes> device_offset_;   // indexed by tensor
  std::vector<Bytes> host_offset_;     // indexed by tensor; -1: no host copy
  std::vector<Bytes> scratch_offset_;  // indexed by lane
  DeviceStorage arena_, persistent_, scratch_, host_, host_scratch_;
};

}  // namespace moe
