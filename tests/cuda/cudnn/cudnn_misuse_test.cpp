// The emulated cuDNN is strict: what the library refuses is refused with the library's status, and
// what it would not notice throws.
#include "tests/cuda/cudnn/cudnn_builder.h"

using namespace moe::test;
using Catch::Contains;

namespace {

const Dims kDims = {1, 2, 3, 4};

TensorOf real(int64_t id, const Dims& dims = kDims, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
  return {type, dims, dense(dims), id};
}
TensorOf hidden(int64_t id, const Dims& dims = kDims, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
  return virtual_of(type, dims, id);
}

void refused(Descriptor d, cudnnStatus_t status, const std::string& why) {
  CHECK(cudnnBackendFinalize(d) == status);
  CHECK_THAT(last_error(), Contains(why));
}

/// y = exp(x) and its plan, to be executed in wrong ways.
struct Exp {
  Cudnn cudnn;
  alignas(16) float x[32] = {}, y[32] = {};
  void* workspace = nullptr;
  Descriptor plan = nullptr;

  explicit Exp(int64_t alignment = 4, const Dims& out_strides = dense(kDims)) {
    TensorOf in = real(1), out = {in.type, kDims, out_strides, 2};
    in.alignment = out.alignment = alignment;
    const Descriptor op =
        cudnn.finished(cudnn.begin_pointwise(CUDNN_POINTWISE_EXP, {in, hidden(3)}));
    const Descriptor copy =
        cudnn.finished(cudnn.begin_pointwise(CUDNN_POINTWISE_IDENTITY, {hidden(3), out}));
    plan = cudnn.finished(cudnn.begin_plan(cudnn.finished(cudnn.begin_graph({op, copy}))));
    REQUIRE(cudaMalloc(&workspace, 8192) == cudaSuccess);
  }
  ~Exp() { cudaFree(workspace); }
  cudnnStatus_t execute(const std::map<int64_t, void*>& pointers, void* its_workspace) {
    return cudnnBackendExecute(cudnn.handle, plan,
                               cudnn.finished(cudnn.begin_pack(pointers, its_workspace)));
  }
};

}  // namespace

TEST_CASE("cuDNN emulated: attributes of another type, count or descriptor are refused",
          "[cudnn]") {
  Cudnn cudnn;
  const Descriptor t = cudnn.make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const int before = emulation::cudnn_calls.bad_params;
  CHECK(set_enum(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_INT64, 0) ==
        CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
  CHECK(set<int>(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, {0, 0}) ==
        CUDNN_STATUS_BAD_PARAM);
  CHECK(set_enum(t, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 0) ==
        CUDNN_STATUS_BAD_PARAM);
  CHECK(set(t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, Dims(9, 1)) ==
        CUDNN_STATUS_BAD_PARAM);
  CHECK(set(t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, Dims()) == CUDNN_STATUS_BAD_PARAM);
  CHECK(set_flag(nullptr, CUDNN_ATTR_TENSOR_IS_VIRTUAL, true) ==
        CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  CHECK(emulation::cudnn_calls.bad_params == before + 6);
  CHECK_THAT(last_error(), Contains("no descriptor"));
  CHECK(last_error() == "");
  Descriptor none = nullptr;
  CHECK(cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &none) ==
        CUDNN_STATUS_NOT_SUPPORTED);
  const Descriptor op = cudnn.make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  CHECK_THROWS_WITH(set_part(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, op),
                    Contains("does not hold a descriptor 19"));
}

TEST_CASE("cuDNN emulated: a descriptor wants all its attributes, and no more once finalized",
          "[cudnn]") {
  Cudnn cudnn;
  refused(cudnn.make(CUDNN_BACKEND_TENSOR_DESCRIPTOR), CUDNN_STATUS_BAD_PARAM, "901 is not set");
  refused(cudnn.make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR), CUDNN_STATUS_BAD_PARAM, "not set");
  const Descriptor t = cudnn.begin_tensor(real(1));
  int64_t id = 0, count = 0;
  CHECK(cudnnBackendGetAttribute(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &count,
                                 &id) == CUDNN_STATUS_NOT_INITIALIZED);
  const Descriptor op = cudnn.make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  must(set_part(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, t));
  must(set_part(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, cudnn.tensor(real(2))));
  refused(op, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "2200 is not finalized");
  const Descriptor graph = cudnn.make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  CHECK(set_part(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, op) == CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
  cudnn.finished(t);
  refused(t, CUDNN_STATUS_BAD_PARAM, "twice");
  CHECK(set_flag(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, true) == CUDNN_STATUS_BAD_PARAM);
  Dims two(2);
  must(cudnnBackendGetAttribute(t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 2, &count,
                                two.data()));
  CHECK((count == 2 && two == Dims{1, 2}));
}

TEST_CASE("cuDNN emulated: tensors that cannot be are refused", "[cudnn]") {
  Cudnn cudnn;
  const auto wrong = [&](auto change, cudnnStatus_t status, const std::string& why) {
    TensorOf t = real(1);
    change(t);
    refused(cudnn.begin_tensor(t), status, why);
  };
  wrong([](TensorOf& t) { t.strides.pop_back(); }, CUDNN_STATUS_BAD_PARAM, "than of strides");
  wrong([](TensorOf& t) { t.dims[1] = 0; }, CUDNN_STATUS_BAD_PARAM, "below 1");
  wrong([](TensorOf& t) { t.strides[1] = -4; }, CUDNN_STATUS_BAD_PARAM, "below 1");
  wrong([](TensorOf& t) { t.alignment = 3; }, CUDNN_STATUS_BAD_PARAM, "alignment");
  wrong([](TensorOf& t) { t.by_value = true; }, CUDNN_STATUS_BAD_PARAM, "by value");
  wrong([](TensorOf& t) { t.type = static_cast<cudnnDataType_t>(2); },
        CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "type 2");
}

TEST_CASE("cuDNN emulated: shapes and types that do not fit an operation", "[cudnn]") {
  Cudnn cudnn;
  const auto throws = [](Descriptor op, const std::string& why) {
    CHECK_THROWS_WITH(cudnnBackendFinalize(op), Contains(why));
  };
  const auto map = [&](int mode, const std::vector<TensorOf>& tensors, int64_t axis = -1) {
    return cudnn.begin_pointwise(mode, tensors, axis);
  };
  const TensorOf x = real(1), y = real(2), thin = real(3, {1, 2, 3, 2});
  refused(map(CUDNN_POINTWISE_ADD, {x, real(3, {2, 3, 4}), y}), CUDNN_STATUS_BAD_PARAM, "dims");
  refused(map(CUDNN_POINTWISE_ADD, {x, y}), CUDNN_STATUS_BAD_PARAM, "without one of its inputs");
  refused(map(CUDNN_POINTWISE_GEN_INDEX, {x, real(2, kDims, CUDNN_DATA_INT32)}),
          CUDNN_STATUS_BAD_PARAM, "axis");
  throws(map(CUDNN_POINTWISE_ADD, {x, thin, y}), "tensor 3 does not fit");
  throws(map(CUDNN_POINTWISE_EXP, {x, thin}), "tensor 3 is not as large");
  throws(map(CUDNN_POINTWISE_EXP, {x, x, y}), "does not read");
  throws(map(CUDNN_POINTWISE_CMP_GE, {x, x, y}), "tensor 2 is of a type");
  throws(map(CUDNN_POINTWISE_BINARY_SELECT, {x, x, x, y}), "tensor 1 is of a type");

  const TensorOf a = real(4, {1, 2, 3, 5}), b = real(5, {1, 2, 5, 4});
  refused(cudnn.begin_matmul(a, x, y), CUDNN_STATUS_BAD_PARAM, "do not fit");
  refused(cudnn.begin_matmul(a, real(5, {1, 3, 5, 4}), y), CUDNN_STATUS_BAD_PARAM, "matrices");
  throws(cudnn.begin_matmul(a, real(5, b.dims, CUDNN_DATA_BFLOAT16), y), "types that do not fit");

  const int max = CUDNN_REDUCE_TENSOR_MAX;
  refused(cudnn.begin_reduction(max, x, real(3, {1, 2, 3, 3})), CUDNN_STATUS_BAD_PARAM, "reduced");
  refused(cudnn.begin_reduction(max, x, real(3, {1, 2, 3})), CUDNN_STATUS_BAD_PARAM, "number of");
  throws(cudnn.begin_reduction(max, x, thin), "neither");
  refused(cudnn.begin_reshape(x, thin), CUDNN_STATUS_BAD_PARAM, "number of elements");
  throws(cudnn.begin_reshape(x, {x.type, {1, 2, 4, 3}, {24, 24, 6, 2}, 2}), "other places");
}

TEST_CASE("cuDNN emulated: graphs whose tensors are not written before they are read", "[cudnn]") {
  Cudnn cudnn;
  const auto exp_of = [&](const TensorOf& x, const TensorOf& y) {
    return cudnn.finished(cudnn.begin_pointwise(CUDNN_POINTWISE_EXP, {x, y}));
  };
  const auto throws = [&](const std::vector<Descriptor>& operations, const std::string& why) {
    CHECK_THROWS_WITH(cudnnBackendFinalize(cudnn.begin_graph(operations)), Contains(why));
  };
  throws({exp_of(hidden(1), real(2))}, "virtual tensor 1 is read");
  throws({exp_of(hidden(1), real(2)), exp_of(real(3), hidden(1))}, "virtual tensor 1 is read");
  throws({exp_of(real(1), real(2)), exp_of(real(3), real(1))}, "tensor 1 is read before");
  throws({exp_of(real(1), real(1))}, "tensor 1 is read before or while");
  refused(cudnn.begin_graph({exp_of(real(1), hidden(2)), exp_of(real(1), hidden(2))}),
          CUDNN_STATUS_BAD_PARAM, "tensor 2 is written twice");
  TensorOf other = hidden(2);
  other.strides[0] = 99;
  refused(cudnn.begin_graph({exp_of(real(1), hidden(2)), exp_of(other, real(3))}),
          CUDNN_STATUS_BAD_PARAM, "two tensors with the id 2");
}

TEST_CASE("cuDNN emulated: a plan wants each real tensor where it may be, and its workspace",
          "[cudnn]") {
  Exp e;
  must(e.execute({{1, e.x}, {2, e.y}}, e.workspace));
  CHECK(e.y[23] == 1);
  CHECK(e.y[24] == 0);
  const auto throws = [&](Exp& call, const std::map<int64_t, void*>& pointers, void* workspace,
                          const std::string& why) {
    INFO(why);
    CHECK_THROWS_WITH(call.execute(pointers, workspace), Contains(why));
  };
  throws(e, {{1, e.x}}, e.workspace, "tensor 2 has no pointer");
  throws(e, {{1, e.x}, {2, nullptr}}, e.workspace, "tensor 2 is nowhere");
  throws(e, {{1, e.x}, {2, e.y}, {3, e.y}}, e.workspace, "tensor 3, which is virtual");
  throws(e, {{1, e.x}, {2, e.y}, {9, e.y}}, e.workspace, "tensor 9, which the graph has not");
  throws(e, {{1, e.x}, {2, e.x + 8}}, e.workspace, "output 2 overlaps tensor 1");
  throws(e, {{1, e.x}, {2, e.y}}, nullptr, "workspace");
  throws(e, {{1, e.x}, {2, e.y}}, static_cast<char*>(e.workspace) + 4097, "workspace");
  throws(e, {{1, e.x}, {2, static_cast<char*>(e.workspace) + 64}}, e.workspace,
         "workspace that overlaps tensor 2");
  Exp aligned(16);
  throws(aligned, {{1, aligned.x}, {2, aligned.y + 1}}, aligned.workspace, "not at 16 bytes");
  Exp folded(4, {12, 4, 4, 1});
  throws(folded, {{1, folded.x}, {2, folded.y}}, folded.workspace, "output 2 has elements at one");

  const Descriptor unfinished = e.cudnn.begin_pack({{1, e.x}, {2, e.y}}, e.workspace);
  CHECK(cudnnBackendExecute(e.cudnn.handle, e.plan, unfinished) ==
        CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
  must(set(unfinished, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, Dims{1, 1}));
  refused(unfinished, CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "one id");
  must(set(unfinished, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, Dims{1, 2, 3}));
  refused(unfinished, CUDNN_STATUS_BAD_PARAM, "not as many pointers");
}
