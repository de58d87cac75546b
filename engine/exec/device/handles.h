// RAII owners of a device's streams, events and recordings. Memory is owned by DeviceStorage
// (buffers.h).
#pragma once

#include <utility>

#include "kernels/device.h"

namespace moe {

/// Owns a handle and ends it with the table's function kEnd. The handle is null when the device
/// could not make it; check_device() then gives the reason.
template <auto kEnd>
class DeviceHandle {
 public:
  DeviceHandle() = default;
  DeviceHandle(const kernels::DeviceTable& device, void* handle)
      : device_(&device), handle_(handle) {}
  DeviceHandle(DeviceHandle&& other) noexcept
      : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}
  DeviceHandle& operator=(DeviceHandle&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~DeviceHandle() {
    if (handle_ != nullptr) (device_->*kEnd)(handle_);
  }
  void* get() const { return handle_; }

 private:
  const kernels::DeviceTable* device_ = nullptr;
  void* handle_ = nullptr;
};

struct DeviceStream : DeviceHandle<&kernels::DeviceTable::end_stream> {
  DeviceStream() = default;
  DeviceStream(const kernels::DeviceTable& device, bool urgent)
      : DeviceHandle(device, device.make_stream(urgent)) {}
};

struct DeviceEvent : DeviceHandle<&kernels::DeviceTable::end_event> {
  DeviceEvent() = default;
  DeviceEvent(const kernels::DeviceTable& device, bool timed)
      : DeviceHandle(device, device.make_event(timed)) {}
};

using DeviceRecording = DeviceHandle<&kernels::DeviceTable::release_recording>;

}  // namespace moe
