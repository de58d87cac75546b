// SGD with momentum, in place: v = momentum v + g; w = w - lr v.
#include "engine/ops/defs.h"
#include "engine/ops/slices.h"

namespace moe::ops {
namespace {

std::vector<TensorSpec> infer_sgd(const Graph& g, const Op& op) {
  expect_update(g, op);
  return {};
}

Work work_sgd(const Graph& g, const Op& op, const WorkContext&) {
  return update_work(g, op, 4);
}

constexpr auto run_sgd = []<class T>(const KernelCall<T>& c) {
  const Slice own = updated(c.graph, c.op, c.rank.rank);
  c.k.sgd(c.in(0) + own.first, c.in(1), c.in(2), static_cast<T>(attr_double(c.op, "lr")),
          static_cast<T>(attr_double(c.op, "momentum")), own.n, c.stream);
};

}  // namespace

const OpDef kSgd = {
    .name = "sgd",
    .doc = "v = momentum v + g; w = w - lr v, or its master copy; attrs lr, momentum, sliced",
    .bound = Bound::kBytes,
    .inputs = {{"w"}, {"v"}, {"g", Role::kGradient}, optional("master", Role::kMaster)},
    .infer = infer_sgd,
    .work = work_sgd,
    .gradient = no_gradient,
    .mutates = {0, 1, 3},
    .run = wide_types(run_sgd)};

}  // namespace moe::ops
