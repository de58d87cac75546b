// expert_load counts the choices per expert, in the run's float type so that an all-reduce can sum
// them (in float exact below 2^24 per expert). balance_bias changes the gate's biases so that loads
// become equal without a loss term.
#include <algorithm>

#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

std::vector<TensorSpec> infer_load(const Graph& g, const Op& op) {
  expect_index(g, op, 0, {kAny, kAny});
  const int64_t experts = expect_attr(op, "experts", 1);
  expect_attr(op, "capacity", 1);
  return {{{experts}, DType::kF32}};
}

constexpr auto run_load = []<class T>(const KernelCall<T>& c) {
  const int64_t columns = c.in_shape(0)[1], choices = num_elements(c.in_shape(0));
  const auto capacity = static_cast<int32_t>(attr_int(c.op, "capacity"));
  const int64_t stride = attr_int(c.op, "first") != 0 ? columns : 1;
  T* const load = c.out(0);
  std::fill_n(load, c.out_shape(0)[0], T(0));
  for (int64_t i = 0; i < choices; i += stride) {
    const int32_t choice = c.in_i32(0)[i];
    if (choice >= 0) load[choice / capacity] += T(1);
  }
};

std::vector<TensorSpec> infer_bias(const Graph& g, const Op& op) {
  expect_shape(g, op, 0, {kAny});
  expect_shape(g, op, 1, shape(g, op, 0));
  return {};
}

constexpr auto run_bias = []<class T>(const KernelCall<T>& c) {
  const int64_t experts = c.in_shape(0)[0];
  const auto rate = static_cast<T>(attr_double(c.op, "rate"));
  T total = 0;
  for (int64_t e = 0; e < experts; ++e) total += c.in(1)[e];
  const T mean = total / static_cast<T>(experts);
  for (int64_t e = 0; e < experts; ++e) {
    const T missing = mean - c.in(1)[e];
    c.in(0)[e] += rate * static_cast<T>((missing > 0) - (missing < 0));
  }
};

}  // namespace

const OpDef kExpertLoad = {.name = "expert_load",
                           .doc = "choices per expert; with attr first=1 only first choices",
                           .inputs = {{"expert", Role::kExpert}},
                           .outputs = {{"load"}},
                           .infer = infer_load,
                           .work = work_moves,
                           .gradient = no_gradient,
                           .run = wide_types(run_load),
                           .on_host = always};

const OpDef kBalanceBias = {.name = "balance_bias",
                            .doc = "bias = bias + rate * sign(mean load - load); attr rate",
                            .inputs = {{"bias"}, {"load"}},
                            .infer = infer_bias,
                            .work = work_each<3>,
                            .gradient = no_gradient,
                            .mutates = {0},
                            .run = wide_types(run_bias),
                            .on_host = always};

}  // namespace moe::ops
