// An operation graph of cuDNN's backend interface, what the library offers to run it with, and a
// plan that runs it. Graph and offer are made without a device where its properties are given.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attention/cudnn_calls.h"

namespace moe::kernels::cuda {

/// A call that the library did not take.
struct CudnnRefusal {
  std::string what;  // "cudnnBackendFinalize: CUDNN_STATUS_NOT_SUPPORTED"
};

class CudnnDescriptor {
 public:
  CudnnDescriptor() = default;
  /// Throws CudnnRefusal, as all that follows.
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
  /// How many values there are, of which at most `count` were written; null: none.
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
              void* values) const;
  void finalize();
  cudnnBackendDescriptor_t handle() const { return handle_; }

 private:
  const CudnnCalls* calls_ = nullptr;
  cudnnBackendDescriptor_t handle_ = nullptr;
};

/// For whom a graph is made: one of both is given.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  cudnnBackendDescriptor_t properties = nullptr;  // of a device that need not be there
};

/// One way to run a graph.
struct CudnnEngine {
  CudnnDescriptor config;
  bool deterministic;  // the library says nothing else
};

/// Ops in the order in which they are added; each gives the tensor that it writes.
class CudnnGraph {
 public:
  using Sizes = std::array<int64_t, 4>;
  struct Tensor {
    Sizes dims;
    size_t at;  // among the descriptors
  };

  explicit CudnnGraph(const CudnnCalls& calls) : calls_(calls) {}

  /// In device memory that `id` stands for when the graph runs, at a multiple of 16 bytes.
  Tensor real(int64_t id, cudnnDataType_t type, const Sizes& dims, const Sizes& strides);
  /// A float on the host, read when the graph is given to a stream.
  Tensor scalar(int64_t id);
  /// What ops hand to each other: packed, or as the strides say.
  Tensor between(const Sizes& dims, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  Tensor between(const Sizes& dims, const Sizes& strides, cudnnDataType_t type);
  static Sizes packed(const Sizes& d) { return {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1}; }

  /// Over the last two axes.
  Tensor matmul(const Tensor& a, const Tensor& b, const Tensor& c);
  Tensor unary(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& y);
  Tensor binary(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& b, const Tensor& y);
  /// y[i] = i's number along the axis; x gives the sizes.
  Tensor index(const Tensor& x, int64_t axis);
  /// y = where[i] ? x : otherwise.
  Tensor select(const Tensor& where, const Tensor& x, const Tensor& otherwise, const Tensor& y);
  /// Over the axes that y has not.
  Tensor reduce(cudnnReduceTensorOp_t op, const Tensor& x, const Tensor& y);
  /// x's values as y is laid out.
  Tensor reshape(const Tensor& x, const Tensor& y);

  /// What the heuristic offers, its first choice first; empty where it has nothing.
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
  CudnnDescriptor graph_;  // of the last target
};

/// Runs a graph with the first engine that is deterministic and that the library can make.
class CudnnPlan {
 public:
  /// Throws CudnnRefusal where there is none.
  CudnnPlan(const CudnnCalls& calls, CudnnGraph graph, cudnnHandle_t handle);
  int64_t workspace_bytes() const { return workspace_bytes_; }
  /// data: what the graph's ids stand for.
  void run(cudnnHandle_t handle, cudaStream_t stream,
           const std::vector<std::pair<int64_t, void*>>& data, void* workspace) const;

 private:
  const CudnnCalls* calls_;
  CudnnGraph graph_;
  CudnnDescriptor config_, plan_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace moe::kernels::cuda
