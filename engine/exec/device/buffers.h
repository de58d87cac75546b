// One rank's memory on a device, as the plan lays it out less what stays on the host, and the
// copies on the host of what the glue of its ops reads or makes there. A host copy has room of its
// own for the whole step, so that a copy under way never meets another tensor; tensors that ops
// join share it as they do on the device.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "engine/exec/buffers.h"
#include "engine/exec/device/program.h"
#include "kernels/device.h"

namespace moe {

/// Throws RunError "WHAT: MESSAGE" where the calling thread's last calls of the device failed.
void check_device(const kernels::DeviceTable& device, std::string_view what);

/// Device memory or, for the host's side, memory that copies without a stop. Throws RunError naming
/// the bytes where there is none left.
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

/// What DeviceProgram::host_only saves of the plan's memory on a device.
Bytes host_only_bytes(const Plan& plan, const DeviceProgram& program);

class DeviceBuffers {
 public:
  /// scratch: bytes of each lane's on the device. The first three outlive the buffers.
  DeviceBuffers(const Plan& plan, const DeviceProgram& program, const kernels::DeviceTable& device,
                const std::vector<Bytes>& scratch);

  /// On the device; null for an invalid id, and for what the program keeps on the host alone.
  void* at(TensorId tensor) const;
  /// On the host; null where the tensor has no copy there.
  void* host(TensorId tensor) const;
  Bytes bytes(const Tensor& tensor) const { return tensor_bytes(tensor, element_bytes_); }
  void* scratch(LaneId lane) const { return scratch_.data() + scratch_offset_[lane.index()]; }
  /// Of the glue that works on the host.
  void* host_scratch() const { return host_scratch_.data(); }
  /// On the device.
  Bytes allocated() const { return arena_.size() + persistent_.size() + scratch_.size(); }

 private:
  const Plan& plan_;
  const DeviceProgram& program_;
  const Bytes element_bytes_;
  std::vector<Bytes> device_offset_;   // by tensor
  std::vector<Bytes> host_offset_;     // by tensor; -1: no copy
  std::vector<Bytes> scratch_offset_;  // by lane
  DeviceStorage arena_, persistent_, scratch_, host_, host_scratch_;
};

}  // namespace moe
