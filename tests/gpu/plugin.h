// Opens libmoe_cuda.so as the program does, for what runs on a GPU: test_gpu and bench_gpu. The
// library is the one of this build, or the one that MOEBENCH_CUDA_PLUGIN names.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device.h"

namespace moe::test {

struct OpenedPlugin {
  const kernels::DeviceTable* table;  // null: not to be had
  bool skip;                          // there is no GPU; otherwise something is broken
  std::string reason;                 // why table is null
};

/// Device 0 becomes the thread's device.
OpenedPlugin open_plugin();

/// Waits until the stream has done what it was given so far. Throws std::runtime_error with the
/// device's message where the work failed, or with `timeout_s` where it does not end.
void finish(const kernels::DeviceTable& gpu, kernels::Stream stream, double timeout_s = 60);

/// Device memory that ends with its scope. Throws std::runtime_error where there is too little.
template <class T>
class DeviceArray {
 public:
  DeviceArray(const kernels::DeviceTable& gpu, int64_t n)
      : gpu_(&gpu), n_(n), data_(static_cast<T*>(gpu.allocate(n > 0 ? bytes() : 1))) {
    if (data_ == nullptr) throw std::runtime_error(gpu.take_error());
  }
  DeviceArray(const kernels::DeviceTable& gpu, const std::vector<T>& values)
      : DeviceArray(gpu, static_cast<int64_t>(values.size())) {
    write(values);
  }
  DeviceArray(DeviceArray&& other) noexcept
      : gpu_(other.gpu_), n_(other.n_), data_(std::exchange(other.data_, nullptr)) {}
  ~DeviceArray() {
    if (data_ != nullptr) gpu_->release(data_);
  }

  T* data() const { return data_; }
  int64_t size() const { return n_; }
  int64_t bytes() const { return n_ * static_cast<int64_t>(sizeof(T)); }
  /// Both return when it is done, on a stream of its own: not in order with other streams.
  void write(const std::vector<T>& values) const { move(data_, values.data()); }
  std::vector<T> read() const {
    std::vector<T> values(static_cast<size_t>(n_));
    move(values.data(), data_);
    return values;
  }

 private:
  void move(void* to, const void* from) const {
    const kernels::Stream stream = gpu_->make_stream(false);
    gpu_->copy(to, from, bytes(), stream);
    finish(*gpu_, stream);
    gpu_->end_stream(stream);
  }

  const kernels::DeviceTable* gpu_;
  int64_t n_;
  T* data_;
};

}  // namespace moe::test
