// The host's arrays of one kernel call in device memory, each in an allocation of its own that is
// no larger than the kernel may touch, so that a memory checker sees each access beyond it. What a
// kernel is to write whole is NaN before.
#pragma once

#include <algorithm>
#include <type_traits>

#include "tests/gpu/gpu.h"

namespace moe::test {

/// The arrays of one call. An array that is both read and written is named twice, in any order.
class Stage {
 public:
  /// n values that the kernel reads.
  template <class T>
  const T* in(const T* host, int64_t n) {
    return load(host, n);
  }
  /// n values that the kernel writes, all of them.
  template <class T>
  T* out(T* host, int64_t n) {
    Array* array = find(host, n);
    if (array == nullptr) return nullptr;
    array->comes_back = true;
    return reinterpret_cast<T*>(array->device);
  }
  /// n values of which the kernel writes some, or which it also reads.
  template <class T>
  T* both(T* host, int64_t n) {
    load(host, n);
    return out(host, n);
  }
  kernels::Stream stream() const { return stream_; }

  /// Waits for the kernel and takes the results to the host. What the kernel said when it was given
  /// to the stream is kept in `said`; what fails later throws.
  void end(std::string& said) {
    if (const std::string now = gpu().take_error(); said.empty()) said = now;
    for (const Array& array : arrays_)
      if (array.comes_back) gpu().copy(array.host, array.device, array.bytes, stream_);
    finish(gpu(), stream_);
  }

  Stage() = default;
  Stage(const Stage&) = delete;
  ~Stage() {
    for (const Array& array : arrays_) gpu().release(array.memory);
  }

 private:
  struct Array {
    void* host;
    char *memory, *device;  // device lies in memory where host lies among 16 bytes
    int64_t bytes;
    bool loaded, comes_back;
  };

  template <class T>
  Array* find(const T* host_values, int64_t n) {
    static constexpr int64_t kAlign = 16;
    if (host_values == nullptr) return nullptr;
    void* host = const_cast<std::remove_const_t<T>*>(host_values);
    for (Array& array : arrays_)
      if (array.host == host) return &array;
    const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
    const int64_t shift = static_cast<int64_t>(reinterpret_cast<uintptr_t>(host)) % kAlign;
    char* memory = static_cast<char*>(gpu().allocate(std::max(kAlign, shift + bytes)));
    if (memory == nullptr) throw std::runtime_error(gpu().take_error());
    arrays_.push_back({host, memory, memory + shift, bytes, false, false});
    gpu().fill(memory + shift, 0xff, bytes, stream_);
    return &arrays_.back();
  }

  template <class T>
  T* load(T* host, int64_t n) {
    Array* array = find(host, n);
    if (array == nullptr) return nullptr;
    if (!array->loaded) gpu().copy(array->device, host, array->bytes, stream_);
    array->loaded = true;
    return reinterpret_cast<T*>(array->device);
  }

  /// One for all calls, never ended: GEMMs make a handle of cuBLAS for each stream.
  static kernels::Stream the_stream() {
    static const kernels::Stream stream = gpu().make_stream(false);
    return stream;
  }

  const kernels::Stream stream_ = the_stream();
  std::vector<Array> arrays_;
};

}  // namespace moe::test
