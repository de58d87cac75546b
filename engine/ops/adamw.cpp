// AdamW, in place (Loshchilov and Hutter 2019, algorithm 2, with the decay scaled by lr as usual).
// The correction of m and v for their start at 0 uses the step number of the run, which goes on
// counting in a run that is resumed from a checkpoint.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

double between(const Op& op, const char* key, double lo, double hi) {
  const double value = attr_double(op, key, -1);
  if (value >= lo && value < hi) return value;
  throw user_error("op '{}' (adamw): attribute '{}' is {}, allowed: at least {} and below {}",
                   op.name, key, value, lo, hi);
}

std::vector<TensorSpec> infer(const Graph& g, const Op& op) {
  const Shape& w = expect_matrix(g, op, 0, 1);
  for (size_t i = 1; i < 4; ++i) expect_shape(g, op, i, w);
  between(op, "beta1", 0, 1);
  between(op, "beta2", 0, 1);
  return {};
}

/// w, m and v are read and written, g is read.
Work work(const Graph& g, const Op& op, const WorkContext&) {
  double written = 0;
  for (size_t i = 0; i < 3; ++i) written += static_cast<double>(g.bytes(op.inputs[i]));
  return {.flops = 13.0 * static_cast<double>(num_elements(shape(g, op, 0))),
          .bytes = io_bytes(g, op) + written};
}

template <class T>
void run(const KernelCall<T>& c) {
  const kernels::AdamwRates rates = {
      .beta1 = attr_double(c.op, "beta1"),
      .beta2 = attr_double(c.op, "beta2"),
      .eps = attr_double(c.op, "eps"),
      .lr = attr_double(c.op, "lr"),
      .weight_decay = attr_double(c.op, "weight_decay"),
  };
  c.k.adamw(c.in(0), c.in(1), c.in(2), c.in(3), rates, c.rank.step_for_kernels(),
            num_elements(c.in_shape(0)), c.stream);
}

}  // namespace

const OpDef kAdamw = {
    .name = "adamw",
    .doc = "AdamW update of w with moments m and v; attrs lr, beta1, beta2, eps, weight_decay",
    .inputs = {{"w"}, {"m"}, {"v"}, {"g"}},
    .infer = infer,
    .work = work,
    .mutates = {0, 1, 2},
    .run_f32 = run<float>,
    .run_f64 = run<double>};

}  // namespace moe::ops
