// The host's arrays of one kernel call in device memory, each in an allocation of its own that is
// no larger than the kernel may touch, so that a memory checker sees each access beyond it.
#pragma once

#include "tests/gpu/gpu.h"
#include "tests/kernels/operands.h"

namespace moe::test {

/// Memory of Copies (operands.h) on the GPU; it is released with the object.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  ~DeviceMemory() {
    for (void* const memory : all_) gpu().release(memory);
  }
  /// The array lies in its memory where the host's lies among 16 bytes.
  char* make(const void* host, int64_t bytes, int64_t) {
    static constexpr int64_t kAlign = 16;
    const int64_t shift = static_cast<int64_t>(reinterpret_cast<uintptr_t>(host)) % kAlign;
    char* const memory = static_cast<char*>(gpu().allocate(std::max(kAlign, shift + bytes)));
    if (memory == nullptr) throw std::runtime_error(gpu().take_error());
    all_.push_back(memory);
    gpu().fill(memory + shift, 0xff, bytes, stream());
    return memory + shift;
  }
  void copy(void* to, const void* from, int64_t bytes) { gpu().copy(to, from, bytes, stream()); }
  /// One for all calls, never ended: GEMMs make a handle of cuBLAS for each stream.
  static kernels::Stream stream() {
    static const kernels::Stream stream = gpu().make_stream(false);
    return stream;
  }

 private:
  std::vector<void*> all_;
};

/// A place (operands.h) for the arrays of one call of a kernel of `table`.
template <class T>
class Stage : public Copies<DeviceMemory> {
 public:
  explicit Stage(const kernels::KernelTable<T>& table) : Copies(memory_), table_(table) {}
  char* work(void* p, kernels::AttentionShape shape) {
    return out(static_cast<char*>(p), table_.attention_work_bytes(shape));
  }
  /// Waits for the kernel and takes the results to the host. What the kernel said when it was given
  /// to the stream is kept in `said`; what fails later throws.
  void end(std::string& said) {
    if (const std::string now = gpu().take_error(); said.empty()) said = now;
    take_back();
    finish(gpu(), DeviceMemory::stream());
  }

 private:
  DeviceMemory memory_;
  const kernels::KernelTable<T>& table_;
};

}  // namespace moe::test
