// AdamW, in place (Loshchilov and Hutter 2019, algorithm 2, with the decay scaled by lr as usual).
// The correction of m and v for their start at 0 uses the step number of the run, which goes on
// counting in a run that is resumed from a checkpoint.
#include "engine/ops/defs.h"
#include "engine/ops/slices.h"

namespace moe::ops {
namespace {

double between(const Op& op, const char* key, double lo, double hi) {
  const double value = attr_double(op, key, -1);
  if (value >= lo && value < hi) return value;
  throw user_error("op '{}' (adamw): attribute '{}' is {}, allowed: at least {} and below {}",
                   op.name, key, value, lo, hi);
}

std::vector<TensorSpec> infer_adamw(const Graph& g, const Op& op) {
  expect_update(g, op);
  between(op, "beta1", 0, 1);
  between(op, "beta2", 0, 1);
  return {};
}

Work work_adamw(const Graph& g, const Op& op, const WorkContext&) {
  return update_work(g, op, 13);
}

constexpr auto run_adamw = []<class T>(const KernelCall<T>& c) {
  const kernels::AdamwRates rates = {
      .beta1 = attr_double(c.op, "beta1"),
      .beta2 = attr_double(c.op, "beta2"),
      .eps = attr_double(c.op, "eps"),
      .lr = attr_double(c.op, "lr"),
      .weight_decay = attr_double(c.op, "weight_decay"),
  };
  const Slice own = updated(c.graph, c.op, c.rank.rank);
  c.k.adamw(c.in(0) + own.first, c.in(1), c.in(2), c.in(3), rates, c.rank.step_for_kernels(), own.n,
            c.stream);
};

}  // namespace

const OpDef kAdamw = {
    .name = "adamw",
    .doc =
        "AdamW update of w, or of its master copy, with moments m and v; attrs lr, beta1, beta2, "
        "eps, weight_decay, sliced",
    .inputs = {{"w"}, {"m"}, {"v"}, {"g", Role::kGradient}, optional("master", Role::kMaster)},
    .infer = infer_adamw,
    .work = work_adamw,
    .gradient = no_gradient,
    .mutates = {0, 1, 2, 4},
    .run = wide_types(run_adamw)};

}  // namespace moe::ops
