// The emulated cuDNN on a graph as attention's: causal softmax(scale q k^T) v over heads that lie
// interleaved in one buffer, against its formula; at once and from a captured stream.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/rng.h"
#include "kernels/bf16.h"
#include "tests/cuda/cudnn/cudnn_builder.h"

using namespace moe::test;
using moe::kernels::Bf16;

namespace {

constexpr int64_t kBatch = 2, kHeads = 3, kRows = 6, kWidth = 4;
constexpr size_t kWorkspaceBytes = 4096;

/// [batch, row, q or k or v, head, width]
struct Memory {
  std::vector<Bf16> qkv{static_cast<size_t>(kBatch * kRows * 3 * kHeads * kWidth)};
  std::vector<Bf16> out{static_cast<size_t>(kBatch * kRows * kHeads * kWidth)};
  std::vector<float> stats{std::vector<float>(static_cast<size_t>(kBatch * kHeads * kRows), -1)};
  float scale = 0.7F, low = -std::numeric_limits<float>::infinity();
  void* workspace = nullptr;

  Memory() {
    moe::Rng rng(5);
    for (Bf16& v : qkv) v = moe::kernels::to_bf16(static_cast<float>(4 * rng.uniform() - 2));
    REQUIRE(cudaMalloc(&workspace, kWorkspaceBytes + 1) == cudaSuccess);
    static_cast<char*>(workspace)[kWorkspaceBytes] = 7;
  }
  ~Memory() { cudaFree(workspace); }
  Memory(const Memory&) = delete;

  double input(int64_t part, int64_t b, int64_t h, int64_t row, int64_t i) const {
    return to_float(
        qkv[static_cast<size_t>((((b * kRows + row) * 3 + part) * kHeads + h) * kWidth + i)]);
  }
  std::map<int64_t, void*> pointers() {
    Bf16* const q = qkv.data();
    return {{1, q},
            {2, q + kHeads * kWidth},
            {3, q + 2 * kHeads * kWidth},
            {4, &scale},
            {5, &low},
            {6, out.data()},
            {7, stats.data()}};
  }
};

std::vector<Descriptor> attention(Cudnn& cudnn) {
  const auto f32 = CUDNN_DATA_FLOAT, bf16 = CUDNN_DATA_BFLOAT16;
  const int64_t row = 3 * kHeads * kWidth;
  const Dims scores = {kBatch, kHeads, kRows, kRows}, rows = {kBatch, kHeads, kRows, 1};
  const Dims heads = {kBatch, kHeads, kRows, kWidth}, by_row = {kRows * row, kWidth, row, 1};
  const TensorOf q = {bf16, heads, by_row, 1}, v = {bf16, heads, by_row, 3};
  const TensorOf k = {bf16, {kBatch, kHeads, kWidth, kRows}, {kRows * row, kWidth, 1, row}, 2};
  const TensorOf scale = {f32, {1, 1, 1, 1}, {1, 1, 1, 1}, 4, 4, false, true};
  TensorOf low = scale;
  low.id = 5;
  const int64_t width = kHeads * kWidth;
  const TensorOf out = {bf16, heads, {kRows * width, kWidth, width, 1}, 6};
  const TensorOf stats = {f32, rows, {kHeads * kRows, kRows, 1, 1}, 7};
  const auto score = [&](int64_t id) { return virtual_of(f32, scores, id); };
  const auto line = [&](int64_t id) { return virtual_of(f32, rows, id); };
  const TensorOf i = virtual_of(CUDNN_DATA_INT32, scores, 12),
                 j = virtual_of(CUDNN_DATA_INT32, scores, 13),
                 seen = virtual_of(CUDNN_DATA_BOOLEAN, scores, 14),
                 weights = virtual_of(bf16, scores, 22);
  const auto map = [&](int mode, const std::vector<TensorOf>& tensors, int64_t axis = -1) {
    return cudnn.begin_pointwise(mode, tensors, axis);
  };
  return {cudnn.begin_matmul(q, k, score(10)),
          map(CUDNN_POINTWISE_MUL, {score(10), scale, score(11)}),
          map(CUDNN_POINTWISE_GEN_INDEX, {score(11), i}, 2),
          map(CUDNN_POINTWISE_GEN_INDEX, {score(11), j}, 3),
          map(CUDNN_POINTWISE_CMP_GE, {i, j, seen}),
          map(CUDNN_POINTWISE_BINARY_SELECT, {score(11), low, seen, score(15)}),
          cudnn.begin_reduction(CUDNN_REDUCE_TENSOR_MAX, score(15), line(16)),
          map(CUDNN_POINTWISE_SUB, {score(15), line(16), score(17)}),
          map(CUDNN_POINTWISE_EXP, {score(17), score(18)}),
          cudnn.begin_reduction(CUDNN_REDUCE_TENSOR_ADD, score(18), line(19)),
          map(CUDNN_POINTWISE_LOG, {line(19), line(20)}),
          map(CUDNN_POINTWISE_ADD, {line(16), line(20), stats}),
          map(CUDNN_POINTWISE_DIV, {score(18), line(19), weights}),
          cudnn.begin_matmul(weights, v, out)};
}

void check_row(const Memory& m, double scale, int64_t b, int64_t h, int64_t row) {
  std::vector<double> p;
  double sum = 0;
  for (int64_t j = 0; j <= row; ++j) {
    double dot = 0;
    for (int64_t i = 0; i < kWidth; ++i) dot += m.input(0, b, h, row, i) * m.input(1, b, h, j, i);
    p.push_back(std::exp(scale * dot));
    sum += p.back();
  }
  CHECK(m.stats[static_cast<size_t>((b * kHeads + h) * kRows + row)] ==
        Approx(std::log(sum)).margin(1e-6));
  for (int64_t i = 0; i < kWidth; ++i) {
    double want = 0, size = 0;
    for (int64_t j = 0; j <= row; ++j) {
      const double term = p[static_cast<size_t>(j)] / sum * m.input(2, b, h, j, i);
      want += term;
      size += std::abs(term);
    }
    const double got =
        to_float(m.out[static_cast<size_t>(((b * kRows + row) * kHeads + h) * kWidth + i)]);
    // The weights are rounded to bfloat16, and so is their sum.
    CHECK(std::abs(got - want) <= 1.01 * (0x1p-8 * size + 0x1p-8 * std::abs(want)) + 1e-5);
  }
}

void check_all(const Memory& m, double scale) {
  for (int64_t b = 0; b < kBatch; ++b)
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t row = 0; row < kRows; ++row) check_row(m, scale, b, h, row);
  CHECK(static_cast<const char*>(m.workspace)[kWorkspaceBytes] == 7);
}

}  // namespace

TEST_CASE("cuDNN emulated: a graph of attention is softmax(scale q k^T) v", "[cudnn]") {
  Memory m;
  Cudnn cudnn;
  const std::vector<Descriptor> operations = attention(cudnn);
  for (const Descriptor op : operations) cudnn.finished(op);
  const Descriptor plan = cudnn.begin_plan(cudnn.finished(cudnn.begin_graph(operations)));
  cudnn.finished(plan);
  int64_t bytes = 0, count = 0;
  must(cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                &count, &bytes));
  CHECK(bytes == kWorkspaceBytes);
  const Descriptor pack = cudnn.finished(cudnn.begin_pack(m.pointers(), m.workspace));
  emulation::cudnn_calls = {};

  SECTION("at once") {
    must(cudnnBackendExecute(cudnn.handle, plan, pack));
    check_all(m, 0.7F);
    CHECK(emulation::cudnn_calls.executions == std::map<int64_t, int>{{0, 1}});
  }
  SECTION("from a capture, with numbers by value as they were when it was captured") {
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t made = nullptr;
    REQUIRE(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0) == cudaSuccess);
    must(cudnnSetStream(cudnn.handle, stream));
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    must(cudnnBackendExecute(cudnn.handle, plan, pack));
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&made, graph, 0) == cudaSuccess);
    m.scale = 3;
    CHECK(*std::max_element(m.stats.begin(), m.stats.end()) == -1);
    REQUIRE(cudaGraphLaunch(made, stream) == cudaSuccess);
    check_all(m, 0.7F);
    cudaGraphExecDestroy(made);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
}
