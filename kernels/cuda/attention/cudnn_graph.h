// An operation graph of cuDNN's backend interface, the engines that cuDNN offers to run it, and a
// plan that runs it. Graphs and offers can be made without a device if the properties of a device
// are given. Which ops attention consists of is in cudnn_attention.cpp.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attention/cudnn_calls.h"

namespace moe::kernels::cuda {

/// Thrown when cuDNN returns an error status or offers no deterministic engine.
struct CudnnRefusal {
  std::string what;  // "cudnnBackendFinalize: CUDNN_STATUS_NOT_SUPPORTED"
};

/// A backend descriptor, which is destroyed with this object.
class CudnnDescriptor {
 public:
  CudnnDescriptor() = default;
  /// Throws CudnnRefusal when cuDNN returns an error status, as do all functions below.
  CudnnDescriptor(const CudnnCalls& calls, cudnnBackendDescriptorType_t type);
  CudnnDescriptor(CudnnDescriptor&& other) noexcept
      : calls_(other.calls_), handle_(std::exchange(other.handle_, nullptr)) {}
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept {
    std::swap(calls_, other.calls_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~CudnnDescriptor();

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
           const void* values);
  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set(name, type, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& part);
  /// Returns the attribute's number of values; writes at most `count` of them if `values` is set.
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
              void* values) const;
  void finalize();
  cudnnBackendDescriptor_t handle() const { return handle_; }

 private:
  const CudnnCalls* calls_ = nullptr;
  cudnnBackendDescriptor_t handle_ = nullptr;
};

/// The device for which a graph is made: exactly one of the two members is set.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  cudnnBackendDescriptor_t properties = nullptr;  // properties of a device that need not be present
};

/// One way in which cuDNN can run a graph.
struct CudnnEngine {
  CudnnDescriptor config;
  bool deterministic;  // cuDNN does not mark it as nondeterministic
};

/// Ops in the order in which they are added; each function returns the tensor that the op writes.
class CudnnGraph {
 public:
  using Sizes = std::array<int64_t, 4>;
  struct Tensor {
    Sizes dims;
    size_t at;  // index in tensors_
  };

  explicit CudnnGraph(const CudnnCalls& calls) : calls_(calls) {}

  /// A tensor in device memory, aligned to 16 bytes; run() gets its pointer under `id`.
  Tensor real(int64_t id, cudnnDataType_t type, const Sizes& dims, const Sizes& strides);
  /// A float in CPU memory, read when run() queues the graph on a stream.
  Tensor scalar(int64_t id);
  /// A tensor between two ops, packed or with the given strides.
  Tensor between(const Sizes& dims, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  Tensor between(const Sizes& dims, const Sizes& strides, cudnnDataType_t type);
  static Sizes packed(const Sizes& d) { return {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1}; }

  /// c = a b over the last two axes.
  Tensor matmul(const Tensor& a, const Tensor& b, const Tensor& c);
  Tensor unary(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& y);
  Tensor binary(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& b, const Tensor& y);
  /// y = the index of each element along the axis; x gives the sizes.
  Tensor index(const Tensor& x, int64_t axis);
  /// y[i] = where[i] ? x[i] : otherwise, which is a scalar.
  Tensor select(const Tensor& where, const Tensor& x, const Tensor& otherwise, const Tensor& y);
  /// Reduces over the axes in which y has size 1.
  Tensor reduce(cudnnReduceTensorOp_t op, const Tensor& x, const Tensor& y);
  /// Returns x's values in the layout of y.
  Tensor reshape(const Tensor& x, const Tensor& y);

  /// Returns the engines that the heuristic offers, the best first; empty if it has none.
  std::vector<CudnnEngine> offers(const CudnnTarget& target);

 private:
  Tensor add(const Sizes& dims, const Sizes& strides, cudnnDataType_t type, int64_t id,
             bool is_virtual, bool by_value);
  CudnnDescriptor& pointwise(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& y,
                             cudnnDataType_t computed_in, int64_t axis);
  void part(CudnnDescriptor& of, cudnnBackendAttributeName_t name, const Tensor& tensor);

  const CudnnCalls& calls_;
  int64_t next_between_ = int64_t{1} << 32;
  std::vector<CudnnDescriptor> tensors_, math_, ops_;
  CudnnDescriptor graph_;  // made for the last target
};

/// Runs a graph with the first offered deterministic engine for which a plan can be made.
class CudnnPlan {
 public:
  /// Throws CudnnRefusal if there is no such engine.
  CudnnPlan(const CudnnCalls& calls, CudnnGraph graph, cudnnHandle_t handle);
  int64_t workspace_bytes() const { return workspace_bytes_; }
  /// Queues the graph on a stream. `data`: the pointer for each id of the graph.
  void run(cudnnHandle_t handle, cudaStream_t stream,
           const std::vector<std::pair<int64_t, void*>>& data, void* workspace) const;

 private:
  const CudnnCalls* calls_;
  CudnnGraph graph_;
  CudnnDescriptor config_, plan_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace moe::kernels::cuda
