// y = a + b.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

std::vector<TensorSpec> infer(const Graph& g, const Op& op) {
  const Shape& a = expect_matrix(g, op, 0, 1);
  expect_shape(g, op, 1, a);
  return {rows_like(arg(g, op, 0), a)};
}

Work work(const Graph& g, const Op& op, const WorkContext&) {
  return elementwise_work(g, op, static_cast<double>(num_elements(shape(g, op, 0))));
}

void gradient(GradContext& c, OpId) {
  const Op op = c.op();
  for (const TensorId t : op.inputs) {
    if (c.needs(t)) c.add(t, c.grad(op.outputs[0]));
  }
}

std::vector<AxisTuple> axes(const Graph& g, const Op& op) {
  std::vector<AxisTuple> tuples;
  const int rank = static_cast<int>(shape(g, op, 0).size());
  for (int a = 0; a < rank; ++a) tuples.push_back({{a, a}, {a}});
  return tuples;
}

template <class T>
void run(const KernelCall<T>& c) {
  c.k.add(c.out(0), c.in(0), c.in(1), stored_elements(arg(c.graph, c.op, 0)), c.stream);
}

}  // namespace

const OpDef kAdd = {.name = "add",
                    .doc = "y = a + b",
                    .basic = BasicOp::kAdd,
                    .inputs = {{"a"}, {"b"}},
                    .outputs = {{"y"}},
                    .infer = infer,
                    .work = work,
                    .gradient = gradient,
                    .axes = axes,
                    .run_f32 = run<float>,
                    .run_f64 = run<double>,
                    .run_bf16 = run<kernels::Bf16>};

}  // namespace moe::ops
