// Descriptors of the emulated cuDNN: which attributes each kind has, and what may be set and read.
// Where version 9.19 of the library refuses a mistake, its status is given; it lets many pass.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "tests/cuda/cudnn/cudnn_parts.h"

namespace emulation {
namespace {

enum class Use { kNeeded, kOptional, kRead };  // kRead: made by the library

/// One attribute.
struct Row {
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  Use use = Use::kNeeded;
  int64_t most = 1;
};
using Rows = std::vector<Row>;

constexpr int64_t kMostDims = 8, kMany = int64_t{1} << 20;
constexpr auto kPart = CUDNN_TYPE_BACKEND_DESCRIPTOR;
using enum Use;

const std::map<cudnnBackendDescriptorType_t, Rows> kRows = {
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR,
     {{CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE},
      {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, kNeeded, kMostDims},
      {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, kNeeded, kMostDims},
      {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64},
      {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64},
      {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, kOptional},
      {CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, kOptional}}},
    {CUDNN_BACKEND_MATMUL_DESCRIPTOR, {{CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE}}},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
     {{CUDNN_ATTR_OPERATION_MATMUL_ADESC, kPart},
      {CUDNN_ATTR_OPERATION_MATMUL_BDESC, kPart},
      {CUDNN_ATTR_OPERATION_MATMUL_CDESC, kPart},
      {CUDNN_ATTR_OPERATION_MATMUL_DESC, kPart}}},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
     {{CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE},
      {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE},
      {CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, kOptional},
      {CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, kOptional}}},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
     {{CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kPart},
      {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, kPart},
      {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, kPart, kOptional},
      {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, kPart, kOptional},
      {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, kPart}}},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
     {{CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE},
      {CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE},
      {CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC, CUDNN_TYPE_BOOLEAN, kOptional}}},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
     {{CUDNN_ATTR_OPERATION_REDUCTION_XDESC, kPart},
      {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, kPart},
      {CUDNN_ATTR_OPERATION_REDUCTION_DESC, kPart}}},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
     {{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, kPart}, {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, kPart}}},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
     {{CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE},
      {CUDNN_ATTR_OPERATIONGRAPH_OPS, kPart, kNeeded, kMany}}},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
     {{CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, kPart},
      {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE},
      {CUDNN_ATTR_ENGINEHEUR_RESULTS, kPart, kRead}}},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR,
     {{CUDNN_ATTR_ENGINE_OPERATION_GRAPH, kPart},
      {CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64},
      {CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, kRead},
      {CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, kRead}}},
    {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, {{CUDNN_ATTR_ENGINECFG_ENGINE, kPart}}},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
     {{CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE},
      {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, kPart},
      {CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, kRead}}},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
     {{CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, kNeeded, kMany},
      {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, kNeeded, kMany},
      {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, kOptional}}}};

std::map<void*, Part>& all_descriptors() {
  static std::map<void*, Part> all;
  return all;
}

std::string number_of(cudnnBackendAttributeName_t name) {
  return "attribute " + std::to_string(name);
}

/// Which kind of descriptor such an attribute holds, where it is not an operation.
cudnnBackendDescriptorType_t kind_held(cudnnBackendAttributeName_t name) {
  switch (name) {
    case CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR:
      return CUDNN_BACKEND_POINTWISE_DESCRIPTOR;
    case CUDNN_ATTR_OPERATION_MATMUL_DESC:
      return CUDNN_BACKEND_MATMUL_DESCRIPTOR;
    case CUDNN_ATTR_OPERATION_REDUCTION_DESC:
      return CUDNN_BACKEND_REDUCTION_DESCRIPTOR;
    case CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH:
    case CUDNN_ATTR_ENGINE_OPERATION_GRAPH:
      return CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR;
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
    case CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG:
      return CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      return CUDNN_BACKEND_ENGINE_DESCRIPTOR;
    default:
      return CUDNN_BACKEND_TENSOR_DESCRIPTOR;
  }
}

size_t element_bytes(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
      return sizeof(void*);
    case CUDNN_TYPE_BOOLEAN:
      return sizeof(bool);
    case CUDNN_TYPE_INT64:
      return sizeof(int64_t);
    default:
      return sizeof(int32_t);  // float and the enumerations
  }
}

/// The row for that attribute and type; null where it is refused.
const Row* find_row(const Descriptor& d, cudnnBackendAttributeName_t name,
                    cudnnBackendAttributeType_t type, cudnnStatus_t& status) {
  bool named = false;
  for (const Row& row : kRows.at(d.kind)) {
    if (row.name == name && row.type == type) return &row;
    named = named || row.name == name;
  }
  status = named ? refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
                          number_of(name) + " is of another type than " + std::to_string(type))
                 : refuse(CUDNN_STATUS_BAD_PARAM,
                          number_of(name) + " is none of descriptor " + std::to_string(d.kind));
  return nullptr;
}

/// What the library checks not at all, and then reads as what it is not, throws.
cudnnStatus_t take_parts(cudnnBackendAttributeName_t name, void* const* elements, Value& value) {
  for (int64_t i = 0; i < value.count; ++i) {
    if (!elements[i])
      return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, number_of(name) + " is given no part");
    const Part part = descriptor_at(elements[i]);
    const bool wants_operations = name == CUDNN_ATTR_OPERATIONGRAPH_OPS;
    if (wants_operations ? !is_operation(part->kind) : part->kind != kind_held(name))
      forbid_cudnn(number_of(name) + " does not hold a descriptor " + std::to_string(part->kind));
    if (wants_operations && !part->finished)
      return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "an operation that is not finalized");
    value.parts.push_back(part);
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finish(Descriptor& d) {
  switch (d.kind) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      return finish_tensor(d);
    case CUDNN_BACKEND_POINTWISE_DESCRIPTOR:
    case CUDNN_BACKEND_REDUCTION_DESCRIPTOR:
    case CUDNN_BACKEND_MATMUL_DESCRIPTOR:
      return finish_math(d);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      return finish_graph(d);
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
      return finish_engine(d);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      return finish_heuristics(d);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      return finish_plan(d);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      return finish_variant_pack(d);
    default:
      return is_operation(d.kind) ? finish_operation(d) : CUDNN_STATUS_SUCCESS;
  }
}

void copy_elements(const Value& value, int64_t count, void* elements) {
  if (value.type != kPart) {
    std::copy_n(value.bytes.data(), static_cast<size_t>(count) * element_bytes(value.type),
                static_cast<char*>(elements));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    Descriptor& to = *descriptor_at(static_cast<void**>(elements)[i]);
    const Descriptor& from = *value.parts[static_cast<size_t>(i)];
    if (to.kind != from.kind) forbid_cudnn("a descriptor of another kind is to be filled");
    to = from;
  }
}

}  // namespace

void forbid_cudnn(const std::string& what) {
  throw std::runtime_error("cuDNN: " + what);
}

cudnnStatus_t refuse(cudnnStatus_t status, const std::string& why) {
  if (status / 1000 == CUDNN_STATUS_BAD_PARAM / 1000) {
    const CudnnLock lock(cudnn_mutex());
    cudnn_calls.bad_params.push_back(why);
  }
  return status;
}

std::recursive_mutex& cudnn_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

Part descriptor_at(void* at) {
  const auto found = all_descriptors().find(at);
  if (found == all_descriptors().end()) forbid_cudnn("a descriptor that is not there");
  return found->second;
}

cudnnStatus_t finished_at(void* at, cudnnBackendDescriptorType_t kind, Part& found) {
  if (!at) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor");
  found = descriptor_at(at);
  if (found->kind != kind)
    return refuse(CUDNN_STATUS_BAD_PARAM, "descriptor " + std::to_string(found->kind) +
                                              " is of another kind than is wanted");
  if (!found->finished)
    return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a descriptor that is not finalized");
  return CUDNN_STATUS_SUCCESS;
}

bool is_operation(cudnnBackendDescriptorType_t kind) {
  return kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR ||
         kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR ||
         kind == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR ||
         kind == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
}

}  // namespace emulation

using namespace emulation;

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind,
                                           cudnnBackendDescriptor_t* descriptor) {
  const CudnnLock lock(cudnn_mutex());
  if (!descriptor) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no place for a descriptor");
  if (kRows.count(kind) == 0)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "descriptor " + std::to_string(kind));
  const auto made = std::make_shared<Descriptor>();
  made->kind = kind;
  *descriptor = made.get();
  all_descriptors()[made.get()] = made;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  const CudnnLock lock(cudnn_mutex());
  if (!descriptor) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor");
  if (all_descriptors().erase(descriptor) == 0) forbid_cudnn("a descriptor destroyed twice");
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  const CudnnLock lock(cudnn_mutex());
  if (!descriptor) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor");
  Descriptor& d = *descriptor_at(descriptor);
  if (d.finished)
    return refuse(CUDNN_STATUS_BAD_PARAM, number_of(name) + " is set of a finalized descriptor");
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  const Row* const row = find_row(d, name, type, status);
  if (!row) return status;
  if (row->use == kRead) return refuse(CUDNN_STATUS_BAD_PARAM, number_of(name) + " is only read");
  if (!elements || count < 1 || count > row->most)
    return refuse(CUDNN_STATUS_BAD_PARAM,
                  number_of(name) + " wants 1 to " + std::to_string(row->most) + " elements");
  Value value = {type, count, {}, {}};
  if (type == kPart) {
    status = take_parts(name, static_cast<void* const*>(elements), value);
  } else {
    const auto* const first = static_cast<const char*>(elements);
    value.bytes.assign(first, first + static_cast<size_t>(count) * element_bytes(type));
  }
  if (status == CUDNN_STATUS_SUCCESS) d.values[name] = std::move(value);
  return status;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested,
                                       int64_t* count, void* elements) {
  const CudnnLock lock(cudnn_mutex());
  if (!descriptor) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor");
  const Descriptor& d = *descriptor_at(descriptor);
  if (!d.finished)
    return refuse(CUDNN_STATUS_NOT_INITIALIZED, "a descriptor that is not finalized is read");
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  if (!find_row(d, name, type, status)) return status;
  if (requested < 0) return refuse(CUDNN_STATUS_BAD_PARAM, "fewer than no elements");
  const auto found = d.values.find(name);
  const int64_t there = found == d.values.end() ? 0 : found->second.count;
  const bool asks_count = requested == 0 || !elements;
  if (count) *count = asks_count ? there : std::min(requested, there);
  if (!asks_count && there > 0) copy_elements(found->second, std::min(requested, there), elements);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  const CudnnLock lock(cudnn_mutex());
  if (!descriptor) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor");
  Descriptor& d = *descriptor_at(descriptor);
  if (d.finished) return refuse(CUDNN_STATUS_BAD_PARAM, "a descriptor is finalized twice");
  for (const Row& row : kRows.at(d.kind)) {
    if (row.use == kNeeded && !d.has(row.name))
      return refuse(CUDNN_STATUS_BAD_PARAM, number_of(row.name) + " is not set");
    if (!d.has(row.name)) continue;
    for (const Part& part : d.values[row.name].parts)
      if (!part->finished)
        return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
                      number_of(row.name) + " is not finalized");
  }
  const cudnnStatus_t status = finish(d);
  d.finished = status == CUDNN_STATUS_SUCCESS;
  return status;
}
