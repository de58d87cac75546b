#include "kernels/cuda/attention/cudnn_graph.h"

#include <algorithm>

namespace moe::kernels::cuda {
namespace {

void take(const CudnnCalls& calls, cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS)
    throw CudnnRefusal{std::string(call) + ": " + calls.error_string(status)};
}

/// Returns `config`, which cuDNN's heuristic offers, with whether its engine is deterministic.
CudnnEngine described(const CudnnCalls& calls, CudnnDescriptor config) {
  CudnnDescriptor engine(calls, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t part = engine.handle();
  config.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
  std::vector<cudnnBackendNumericalNote_t> notes(CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  const int64_t count = engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes.data());
  notes.resize(static_cast<size_t>(std::min<int64_t>(count, CUDNN_NUMERICAL_NOTE_TYPE_COUNT)));
  const bool varies = std::count(notes.begin(), notes.end(), CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
  return {std::move(config), !varies};
}

}  // namespace

CudnnDescriptor::CudnnDescriptor(const CudnnCalls& calls, cudnnBackendDescriptorType_t type)
    : calls_(&calls) {
  take(calls, calls.create_descriptor(type, &handle_), "cudnnBackendCreateDescriptor");
}

CudnnDescriptor::~CudnnDescriptor() {
  if (handle_ != nullptr) calls_->destroy_descriptor(handle_);
}

void CudnnDescriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                          int64_t count, const void* values) {
  take(*calls_, calls_->set_attribute(handle_, name, type, count, values),
       "cudnnBackendSetAttribute");
}

void CudnnDescriptor::set(cudnnBackendAttributeName_t name, const CudnnDescriptor& part) {
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, part.handle_);
}

int64_t CudnnDescriptor::get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                             int64_t count, void* values) const {
  int64_t there = 0;
  take(*calls_, calls_->get_attribute(handle_, name, type, count, &there, values),
       "cudnnBackendGetAttribute");
  return there;
}

void CudnnDescriptor::finalize() {
  take(*calls_, calls_->finalize(handle_), "cudnnBackendFinalize");
}

CudnnGraph::Tensor CudnnGraph::add(const Sizes& dims, const Sizes& strides, cudnnDataType_t type,
                                   int64_t id, bool is_virtual, bool by_value) {
  constexpr int64_t kAlignment = 16;
  CudnnDescriptor t(calls_, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  t.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  t.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.data());
  t.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
  t.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  t.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignment);
  t.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual);
  t.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value);
  t.finalize();
  tensors_.push_back(std::move(t));
  return {dims, tensors_.size() - 1};
}

CudnnGraph::Tensor CudnnGraph::real(int64_t id, cudnnDataType_t type, const Sizes& dims,
                                    const Sizes& strides) {
  return add(dims, strides, type, id, false, false);
}

CudnnGraph::Tensor CudnnGraph::scalar(int64_t id) {
  return add({1, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_DATA_FLOAT, id, false, true);
}

CudnnGraph::Tensor CudnnGraph::between(const Sizes& dims, cudnnDataType_t type) {
  return between(dims, packed(dims), type);
}

CudnnGraph::Tensor CudnnGraph::between(const Sizes& dims, const Sizes& strides,
                                       cudnnDataType_t type) {
  return add(dims, strides, type, next_between_++, true, false);
}

void CudnnGraph::part(CudnnDescriptor& of, cudnnBackendAttributeName_t name, const Tensor& tensor) {
  of.set(name, tensors_[tensor.at]);
}

CudnnGraph::Tensor CudnnGraph::matmul(const Tensor& a, const Tensor& b, const Tensor& c) {
  CudnnDescriptor& math = math_.emplace_back(calls_, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  math.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  math.finalize();
  CudnnDescriptor& op = ops_.emplace_back(calls_, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  part(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  part(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  part(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
  op.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, math);
  op.finalize();
  return c;
}

CudnnDescriptor& CudnnGraph::pointwise(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& y,
                                       cudnnDataType_t computed_in, int64_t axis) {
  CudnnDescriptor& math = math_.emplace_back(calls_, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  math.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  math.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, computed_in);
  if (axis >= 0) math.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  math.finalize();
  CudnnDescriptor& op = ops_.emplace_back(calls_, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, math);
  part(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  part(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  return op;
}

CudnnGraph::Tensor CudnnGraph::unary(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& y) {
  pointwise(mode, x, y, CUDNN_DATA_FLOAT, -1).finalize();
  return y;
}

CudnnGraph::Tensor CudnnGraph::binary(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& b,
                                      const Tensor& y) {
  const bool compares = mode == CUDNN_POINTWISE_CMP_GE;
  CudnnDescriptor& op = pointwise(mode, x, y, compares ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT, -1);
  part(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  op.finalize();
  return y;
}

CudnnGraph::Tensor CudnnGraph::index(const Tensor& x, int64_t axis) {
  const Tensor y = between(x.dims, CUDNN_DATA_INT32);
  pointwise(CUDNN_POINTWISE_GEN_INDEX, x, y, CUDNN_DATA_FLOAT, axis).finalize();
  return y;
}

CudnnGraph::Tensor CudnnGraph::select(const Tensor& where, const Tensor& x, const Tensor& otherwise,
                                      const Tensor& y) {
  CudnnDescriptor& op = pointwise(CUDNN_POINTWISE_BINARY_SELECT, x, y, CUDNN_DATA_FLOAT, -1);
  part(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, otherwise);
  part(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, where);
  op.finalize();
  return y;
}

CudnnGraph::Tensor CudnnGraph::reduce(cudnnReduceTensorOp_t reduction, const Tensor& x,
                                      const Tensor& y) {
  CudnnDescriptor& math = math_.emplace_back(calls_, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  math.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, reduction);
  math.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  math.finalize();
  CudnnDescriptor& op = ops_.emplace_back(calls_, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  part(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  part(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, math);
  op.finalize();
  return y;
}

CudnnGraph::Tensor CudnnGraph::reshape(const Tensor& x, const Tensor& y) {
  CudnnDescriptor& op = ops_.emplace_back(calls_, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  part(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  part(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
  op.finalize();
  return y;
}

std::vector<CudnnEngine> CudnnGraph::offers(const CudnnTarget& target) {
  std::vector<cudnnBackendDescriptor_t> ops;
  for (const CudnnDescriptor& op : ops_) ops.push_back(op.handle());
  graph_ = CudnnDescriptor(calls_, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
             static_cast<int64_t>(ops.size()), ops.data());
  if (target.handle != nullptr)
    graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
  graph_.finalize();

  CudnnDescriptor heuristic(calls_, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  if (target.properties != nullptr)
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                  target.properties);
  heuristic.finalize();

  int64_t count =
      heuristic.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
  std::vector<CudnnDescriptor> configs;
  std::vector<cudnnBackendDescriptor_t> room;
  for (int64_t i = 0; i < count; ++i)
    room.push_back(configs.emplace_back(calls_, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).handle());
  count = heuristic.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count,
                        room.data());
  std::vector<CudnnEngine> engines;
  for (int64_t i = 0; i < count; ++i)
    engines.push_back(described(calls_, std::move(configs[static_cast<size_t>(i)])));
  return engines;
}

CudnnPlan::CudnnPlan(const CudnnCalls& calls, CudnnGraph graph, cudnnHandle_t handle)
    : calls_(&calls), graph_(std::move(graph)) {
  CudnnRefusal last = {"cuDNN offers no deterministic engine for the graph"};
  for (CudnnEngine& engine : graph_.offers({.handle = handle})) {
    if (!engine.deterministic) continue;
    try {
      CudnnDescriptor plan(calls, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine.config);
      plan.finalize();
      plan.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &workspace_bytes_);
      config_ = std::move(engine.config);
      plan_ = std::move(plan);
      return;
    } catch (const CudnnRefusal& refusal) {
      last = refusal;
    }
  }
  throw last;
}

void CudnnPlan::run(cudnnHandle_t handle, cudaStream_t stream,
                    const std::vector<std::pair<int64_t, void*>>& data, void* workspace) const {
  std::vector<int64_t> ids;
  std::vector<void*> pointers;
  for (const auto& [id, pointer] : data) {
    ids.push_back(id);
    pointers.push_back(pointer);
  }
  const auto count = static_cast<int64_t>(ids.size());
  CudnnDescriptor pack(*calls_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize();
  take(*calls_, calls_->set_stream(handle, stream), "cudnnSetStream");
  take(*calls_, calls_->execute(handle, plan_.handle(), pack.handle()), "cudnnBackendExecute");
}

}  // namespace moe::kernels::cuda
