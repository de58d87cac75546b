// SGD with momentum, in place: v = momentum v + g; w = w - lr v.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

std::vector<TensorSpec> infer(const Graph& g, const Op& op) {
  const Shape& w = expect_matrix(g, op, 0, 1);
  expect_shape(g, op, 1, w);
  expect_shape(g, op, 2, w);
  return {};
}

/// w and v are read and written, g is read.
Work work(const Graph& g, const Op& op, const WorkContext&) {
  const double written = static_cast<double>(g.bytes(op.inputs[0]) + g.bytes(op.inputs[1]));
  return {.flops = 4.0 * static_cast<double>(num_elements(shape(g, op, 0))),
          .bytes = io_bytes(g, op) + written};
}

template <class T>
void run(const KernelCall<T>& c) {
  c.k.sgd(c.in(0), c.in(1), c.in(2), static_cast<T>(attr_double(c.op, "lr")),
          static_cast<T>(attr_double(c.op, "momentum")), num_elements(c.in_shape(0)), c.stream);
}

}  // namespace

const OpDef kSgd = {.name = "sgd",
                    .doc = "v = momentum v + g; w = w - lr v; attrs lr, momentum",
                    .bound = Bound::kBytes,
                    .inputs = {{"w"}, {"v"}, {"g"}},
                    .infer = infer,
                    .work = work,
                    .mutates = {0, 1},
                    .run_f32 = run<float>,
                    .run_f64 = run<double>};

}  // namespace moe::ops
