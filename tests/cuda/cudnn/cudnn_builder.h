// Builds graphs of the emulated cuDNN for its tests and executes them; misuse goes through the same
// functions. Not the way in which kernels/cuda builds them.
#pragma once

#include <cudnn.h>

#include <catch2/catch.hpp>
#include <map>
#include <vector>

namespace moe::test {

using Descriptor = cudnnBackendDescriptor_t;
using Dims = std::vector<int64_t>;

struct TensorOf {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  Dims dims, strides;
  int64_t id = 0, alignment = 4;
  bool is_virtual = false, by_value = false;
};

inline Dims dense(const Dims& dims) {
  Dims strides(dims.size());
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0; stride *= dims[i]) strides[i] = stride;
  return strides;
}
inline TensorOf virtual_of(cudnnDataType_t type, const Dims& dims, int64_t id) {
  return {type, dims, dense(dims), id, 4, true, false};
}

template <class T>
cudnnStatus_t set(Descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  const std::vector<T>& v) {
  return cudnnBackendSetAttribute(d, name, type, static_cast<int64_t>(v.size()), v.data());
}
inline cudnnStatus_t set_flag(Descriptor d, cudnnBackendAttributeName_t name, bool v) {
  return cudnnBackendSetAttribute(d, name, CUDNN_TYPE_BOOLEAN, 1, &v);
}
inline cudnnStatus_t set_part(Descriptor d, cudnnBackendAttributeName_t name, Descriptor part) {
  return set<Descriptor>(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, {part});
}
inline cudnnStatus_t set_enum(Descriptor d, cudnnBackendAttributeName_t name,
                              cudnnBackendAttributeType_t type, int v) {
  return set<int>(d, name, type, {v});
}
inline std::string last_error() {
  char text[200];
  cudnnGetLastErrorString(text, sizeof text);
  return text;
}
inline void must(cudnnStatus_t status) {
  INFO(last_error());
  REQUIRE(status == CUDNN_STATUS_SUCCESS);
}

/// A handle and descriptors, destroyed with it.
class Cudnn {
 public:
  Cudnn() { must(cudnnCreate(&handle)); }
  ~Cudnn() {
    for (const Descriptor d : all_) cudnnBackendDestroyDescriptor(d);
    cudnnDestroy(handle);
  }
  Cudnn(const Cudnn&) = delete;

  Descriptor make(cudnnBackendDescriptorType_t kind) {
    Descriptor d = nullptr;
    must(cudnnBackendCreateDescriptor(kind, &d));
    all_.push_back(d);
    return d;
  }
  /// Set, not finalized.
  Descriptor begin_tensor(const TensorOf& t);
  Descriptor tensor(const TensorOf& t) { return finished(begin_tensor(t)); }
  Descriptor begin_matmul(const TensorOf& a, const TensorOf& b, const TensorOf& c);
  /// Of x, b, t and then y.
  Descriptor begin_pointwise(int mode, const std::vector<TensorOf>& tensors, int64_t axis = -1);
  Descriptor begin_reduction(int how, const TensorOf& x, const TensorOf& y);
  Descriptor begin_reshape(const TensorOf& x, const TensorOf& y);
  Descriptor begin_graph(const std::vector<Descriptor>& finished_operations);
  Descriptor finished(Descriptor d) {
    must(cudnnBackendFinalize(d));
    return d;
  }
  /// Of the first engine that the heuristics offer; not finalized.
  Descriptor begin_plan(Descriptor graph, int64_t engine = 0);
  Descriptor begin_pack(const std::map<int64_t, void*>& pointers, void* workspace);
  /// A graph of these, all the way. The workspace is that of the emulation's default.
  void run(const std::vector<Descriptor>& operations, const std::map<int64_t, void*>& pointers);

  cudnnHandle_t handle = nullptr;

 private:
  std::vector<Descriptor> all_;
};

}  // namespace moe::test
