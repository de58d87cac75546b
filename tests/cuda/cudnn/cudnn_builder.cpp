#include "tests/cuda/cudnn/cudnn_builder.h"

namespace moe::test {

Descriptor Cudnn::begin_tensor(const TensorOf& t) {
  const Descriptor d = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  must(set_enum(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, t.type));
  must(set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, t.dims));
  must(set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, t.strides));
  must(set<int64_t>(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, {t.id}));
  must(set<int64_t>(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, {t.alignment}));
  must(set_flag(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, t.is_virtual));
  must(set_flag(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, t.by_value));
  return d;
}

Descriptor Cudnn::begin_matmul(const TensorOf& a, const TensorOf& b, const TensorOf& c) {
  const Descriptor how = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  must(set_enum(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT));
  const Descriptor d = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  must(set_part(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, tensor(a)));
  must(set_part(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, tensor(b)));
  must(set_part(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, tensor(c)));
  must(set_part(d, CUDNN_ATTR_OPERATION_MATMUL_DESC, finished(how)));
  return d;
}

Descriptor Cudnn::begin_pointwise(int mode, const std::vector<TensorOf>& tensors, int64_t axis) {
  const Descriptor how = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  must(set_enum(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode));
  must(set_enum(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT));
  if (axis >= 0) must(set<int64_t>(how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, {axis}));
  const Descriptor d = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  must(set_part(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, finished(how)));
  constexpr cudnnBackendAttributeName_t kInputs[] = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                                                     CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                                     CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
  for (size_t i = 0; i + 1 < tensors.size(); ++i) must(set_part(d, kInputs[i], tensor(tensors[i])));
  must(set_part(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensor(tensors.back())));
  return d;
}

Descriptor Cudnn::begin_reduction(int how, const TensorOf& x, const TensorOf& y) {
  const Descriptor r = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  must(set_enum(r, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, how));
  must(set_enum(r, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT));
  const Descriptor d = make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  must(set_part(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, tensor(x)));
  must(set_part(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, tensor(y)));
  must(set_part(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, finished(r)));
  return d;
}

Descriptor Cudnn::begin_reshape(const TensorOf& x, const TensorOf& y) {
  const Descriptor d = make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  must(set_part(d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, tensor(x)));
  must(set_part(d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, tensor(y)));
  return d;
}

Descriptor Cudnn::begin_graph(const std::vector<Descriptor>& finished_operations) {
  const Descriptor d = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  must(set<cudnnHandle_t>(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, {handle}));
  must(set(d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, finished_operations));
  return d;
}

Descriptor Cudnn::begin_plan(Descriptor graph, int64_t engine) {
  const Descriptor heuristics = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  must(set_part(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph));
  must(set_enum(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A));
  finished(heuristics);
  std::vector<Descriptor> configs;
  for (int64_t i = 0; i <= engine; ++i) configs.push_back(make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
  int64_t count = 0;
  must(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                CUDNN_TYPE_BACKEND_DESCRIPTOR, engine + 1, &count, configs.data()));
  REQUIRE(count == engine + 1);
  const Descriptor plan = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  must(set<cudnnHandle_t>(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, {handle}));
  must(set_part(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configs.back()));
  return plan;
}

Descriptor Cudnn::begin_pack(const std::map<int64_t, void*>& pointers, void* workspace) {
  Dims ids;
  std::vector<void*> places;
  for (const auto& [id, at] : pointers) {
    ids.push_back(id);
    places.push_back(at);
  }
  const Descriptor d = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  must(set(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids));
  must(set(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, places));
  must(set<void*>(d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, {workspace}));
  return d;
}

void Cudnn::run(const std::vector<Descriptor>& operations,
                const std::map<int64_t, void*>& pointers) {
  for (const Descriptor op : operations) finished(op);
  const Descriptor plan = finished(begin_plan(finished(begin_graph(operations))));
  void* workspace = nullptr;
  REQUIRE(cudaMalloc(&workspace, 4096) == cudaSuccess);
  must(cudnnBackendExecute(handle, plan, finished(begin_pack(pointers, workspace))));
  REQUIRE(cudaFree(workspace) == cudaSuccess);
}

}  // namespace moe::test
