// The losses of a router, in addition to the model's loss. Each op computes its value and the
// gradient of the logits at once, as cross_entropy does. They need a rank's whole batch, so they
// cannot be cut into parts and are never inside a range of ops that is cut.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

std::vector<TensorSpec> infer_router_loss(const Graph& g, const Op& op) {
  expect_shape(g, op, 0, {kAny, kAny});
  const Shape& logits = shape(g, op, 0);
  if (op.inputs.size() > 1) expect_shape(g, op, 1, {logits[1]});
  score_rule(op);
  return {{{1}, DType::kF64}, {logits, arg(g, op, 0).dtype}};
}

void gradient_router_loss(GradContext& c, OpId) {
  const Op op = c.op();
  if (c.needs(op.inputs[0])) c.add(op.inputs[0], op.outputs[1]);
}

constexpr auto run_balance = []<class T>(const KernelCall<T>& c) {
  const Shape& logits = c.in_shape(0);
  c.k.gate_scores(c.out(1), c.in(0), score_rule(c.op), logits[0], logits[1], c.stream);
  c.k.balance_loss(reinterpret_cast<double*>(c.out(0)), c.out(1), c.in(1), score_rule(c.op),
                   attr_double(c.op, "scale", 1.0), logits[0], logits[1], c.stream);
};

constexpr auto run_z = []<class T>(const KernelCall<T>& c) {
  const Shape& logits = c.in_shape(0);
  copy(c, c.out(1), c.in(0), num_elements(logits));
  c.k.z_loss(reinterpret_cast<double*>(c.out(0)), c.out(1), attr_double(c.op, "scale", 1.0),
             logits[0], logits[1], c.stream);
};

}  // namespace

const OpDef kBalanceLoss = {.name = "balance_loss",
                            .doc =
                                "loss = attr scale * sum of load[e] * score[t,e], where load is a "
                                "constant, and its gradient dlogits",
                            .inputs = {{"logits"}, {"load"}},
                            .outputs = {{"loss"}, {"dlogits"}},
                            .infer = infer_router_loss,
                            .work = work_each<8>,
                            .gradient = gradient_router_loss,
                            .loss = Loss::kBalance,
                            .may_alias = {{1, 0}},
                            .run = wide_types(run_balance)};

const OpDef kZLoss = {
    .name = "z_loss",
    .doc = "loss = attr scale * sum of logsumexp(logits[t])^2, and its gradient dlogits",
    .inputs = {{"logits"}},
    .outputs = {{"loss"}, {"dlogits"}},
    .infer = infer_router_loss,
    .work = work_each<8>,
    .gradient = gradient_router_loss,
    .loss = Loss::kZ,
    .may_alias = {{1, 0}},
    .run = wide_types(run_z)};

}  // namespace moe::ops
