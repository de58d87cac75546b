// What the emulated cuDNN is made of, beneath <cudnn.h>: descriptors as bags of attributes
// (cudnn_descriptors.cpp), the tensors and operations that finished ones describe
// (cudnn_operations.cpp), and what works them off (cudnn_run.cpp). Engines, plans and handles are
// in cudnn_plans.cpp.
#pragma once

#include <cudnn.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace emulation {

/// For what the library would not notice.
[[noreturn]] void forbid_cudnn(const std::string& what);
/// Keeps the sentence where it is the parameters that are wrong.
cudnnStatus_t refuse(cudnnStatus_t status, const std::string& why);
/// Ranks may be threads; held by every call.
std::recursive_mutex& cudnn_mutex();
using CudnnLock = std::lock_guard<std::recursive_mutex>;

struct Tensor {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::vector<int64_t> dims, strides;  // in elements
  int64_t id = 0, alignment = 0;
  bool is_virtual = false, by_value = false;
  bool operator==(const Tensor&) const = default;
  bool is_number() const { return type != CUDNN_DATA_BOOLEAN; }
};

/// One of pointwise, matmul, reduction, reshape.
struct Operation {
  cudnnBackendDescriptorType_t kind = CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
  int mode = 0;  // of a pointwise one or a reduction
  int64_t axis = -1;
  std::vector<Tensor> in;  // x, b, t; a, b
  Tensor out;
};

/// A graph: each virtual tensor is written before it is read, each tensor once.
struct Program {
  std::vector<Operation> operations;
  std::map<int64_t, Tensor> tensors;
  std::set<int64_t> written;
};

struct Descriptor;
using Part = std::shared_ptr<Descriptor>;

struct Value {
  cudnnBackendAttributeType_t type = CUDNN_TYPE_INT64;
  int64_t count = 0;
  std::vector<char> bytes;
  std::vector<Part> parts;  // instead of bytes
};

struct Descriptor {
  cudnnBackendDescriptorType_t kind = CUDNN_BACKEND_TENSOR_DESCRIPTOR;
  bool finished = false;
  std::map<cudnnBackendAttributeName_t, Value> values;
  // What finishing it made of the values.
  Tensor tensor;
  Operation operation;
  std::shared_ptr<const Program> program;

  bool has(cudnnBackendAttributeName_t name) const { return values.count(name) == 1; }
  template <class T>
  std::vector<T> all(cudnnBackendAttributeName_t name) const {
    const auto found = values.find(name);
    if (found == values.end()) return {};
    const auto* const first = reinterpret_cast<const T*>(found->second.bytes.data());
    return std::vector<T>(first, first + found->second.count);
  }
  template <class T>
  T one(cudnnBackendAttributeName_t name, T otherwise = {}) const {
    if (!has(name)) return otherwise;
    T value;
    std::memcpy(&value, values.at(name).bytes.data(), sizeof value);
    return value;
  }
  const Descriptor& part(cudnnBackendAttributeName_t name) const {
    return *values.at(name).parts[0];
  }
  template <class T>
  void make(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
            const std::vector<T>& elements) {
    const auto* const first = reinterpret_cast<const char*>(elements.data());
    values[name] = {type,
                    static_cast<int64_t>(elements.size()),
                    {first, first + elements.size() * sizeof(T)},
                    {}};
  }
  void make(cudnnBackendAttributeName_t name, const std::vector<Part>& parts) {
    values[name] = {CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(parts.size()), {}, parts};
  }
};

/// Throws where there is none.
Part descriptor_at(void* at);
/// Of that kind and finished, or a refusal.
cudnnStatus_t finished_at(void* at, cudnnBackendDescriptorType_t kind, Part& found);
bool is_operation(cudnnBackendDescriptorType_t kind);

/// Each reads the values, all there and their parts finished, and makes what they describe.
cudnnStatus_t finish_tensor(Descriptor& d);
cudnnStatus_t finish_math(Descriptor& d);
cudnnStatus_t finish_operation(Descriptor& d);
cudnnStatus_t finish_graph(Descriptor& d);
cudnnStatus_t finish_engine(Descriptor& d);
cudnnStatus_t finish_heuristics(Descriptor& d);
cudnnStatus_t finish_plan(Descriptor& d);
cudnnStatus_t finish_variant_pack(Descriptor& d);

int64_t num_elements(const std::vector<int64_t>& dims);
/// Where the elements lie, in row-major order of the dims.
std::vector<int64_t> places(const std::vector<int64_t>& dims, const std::vector<int64_t>& strides);
size_t bytes_of(cudnnDataType_t type);
/// The element at a place, and a number rounded into it.
double read_element(cudnnDataType_t type, const void* at, int64_t place);
void write_element(cudnnDataType_t type, void* at, int64_t place, double value);

/// Where the real tensors are, and the numbers of those by value.
struct Bindings {
  std::map<int64_t, void*> pointers;
  std::map<int64_t, double> values;
};
void run_program(const Program& program, const Bindings& bindings);

}  // namespace emulation
