// For each token, the weighted sum of the results of the experts that it chose, or their sum where
// the experts have multiplied them by the weights (dispatch_weight.cpp).
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

constexpr size_t kSlots = 0, kWeight = 1, kChoiceSlot = 2, kResidual = 3, kSlotChoice = 4;

std::vector<TensorSpec> infer_combine(const Graph& g, const Op& op) {
  expect_shape(g, op, kSlots, {kAny, kAny, kAny});
  expect_shape(g, op, kWeight, {kAny, kAny});
  const Shape& slots = shape(g, op, kSlots);
  const Shape& choices = shape(g, op, has(op, kWeight) ? kWeight : kChoiceSlot);
  expect_index(g, op, kChoiceSlot, has(op, kWeight) ? choices : Shape{kAny, kAny});
  expect_index(g, op, kSlotChoice, {slots[0], slots[1]});
  Shape y = token_shape(op, choices[0], slots[2]);
  if (has(op, kResidual)) {
    expect_rows(g, op, kResidual, choices[0], slots[2]);
    y = shape(g, op, kResidual);
  }
  return {{y, arg(g, op, kSlots).dtype}};
}

Work work_combine(const Graph& g, const Op& op, const WorkContext& context) {
  const double read = share_of(op) * context.slot_occupancy;
  const double unread = (1 - read) * static_cast<double>(g.bytes(op.inputs[kSlots]));
  const double backward_only =
      has(op, kSlotChoice) ? static_cast<double>(g.bytes(op.inputs[kSlotChoice])) : 0;
  return {.flops = 2 * read * static_cast<double>(num_elements(shape(g, op, kSlots))),
          .bytes = io_bytes(g, op) - unread - backward_only};
}

std::vector<AxisTuple> axes_combine(const Graph&, const Op&) {
  std::vector<AxisTuple> tuples;
  for (const int slots : {kRows, kWhole}) {
    for (const int slot_choice : {kRows, kWhole}) {
      tuples.push_back({{slots, 0, 0, 0, slot_choice}, {0}});
    }
  }
  return tuples;
}

void gradient_combine(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId dy = c.grad(op.outputs[0]), slots = op.inputs[kSlots];
  const TensorId weight = op.inputs[kWeight], residual = input_or_none(op, kResidual);
  const Shape& choices = shape(c.graph(), op, kChoiceSlot);
  if (c.needs(residual)) c.add(residual, dy);
  if (c.needs(slots)) {
    if (!has(op, kSlotChoice)) {
      throw user_error(
          "op '{}' (combine): its gradient needs input {}, slot_choice, which is absent", op.name,
          kSlotChoice);
    }
    Attrs attrs;
    const int64_t stored = c.graph().tensor(slots).stored_rows;
    if (stored > 0) attrs["stored"] = stored;
    if (!weight.valid()) attrs["k"] = choices[1];
    const OpId dx = c.emit("combine_dx", "dx", {dy, weight, op.inputs[kSlotChoice]}, attrs);
    c.add(slots, c.graph().out(dx));
  }
  if (c.needs(weight)) {
    const OpId dw = c.emit("combine_dweight", "dweight", {dy, slots, op.inputs[kChoiceSlot]});
    c.add(weight, c.graph().out(dw));
  }
}

constexpr auto run_combine = []<class T>(const KernelCall<T>& c) {
  const Shape& choices = c.in_shape(kChoiceSlot);
  const int64_t tokens = choices[0], k = choices[1], hidden = cols_of(c.in_shape(kSlots));
  if (!has(c.op, kWeight)) {
    return c.k.dispatch_dx(c.out(0), c.in(kSlots), c.in_i32(kChoiceSlot), c.in(kResidual), tokens,
                           k, hidden, c.stream);
  }
  c.k.combine(c.out(0), c.in(kSlots), c.wide(kWeight), c.in_i32(kChoiceSlot), c.in(kResidual),
              tokens, k, hidden, c.stream);
};

std::vector<TensorSpec> infer_dx_combine(const Graph& g, const Op& op) {
  expect_shape(g, op, 1, {kAny, kAny});
  const Shape& dy = expect_matrix(g, op, 0);
  if (has(op, 1)) {
    expect_rows(g, op, 0, shape(g, op, 1)[0], cols_of(dy));
  } else {
    expect_attr(op, "k", 1);
  }
  expect_index(g, op, 2, {kAny, kAny});
  const Shape& slots = shape(g, op, 2);
  return {{{slots[0], slots[1], cols_of(dy)}, arg(g, op, 0).dtype, op.rows.stored}};
}

Work work_dx_combine(const Graph& g, const Op& op, const WorkContext& context) {
  const auto slots = static_cast<double>(g.bytes(op.outputs[0]));
  const double written = op.rows.stored > 0 ? context.slot_occupancy : 1;
  return {.flops = context.slot_occupancy *
                   static_cast<double>(num_elements(g.tensor(op.outputs[0]).shape)),
          .bytes = slots * (written + context.slot_occupancy) +
                   (has(op, 1) ? static_cast<double>(g.bytes(op.inputs[1])) : 0) +
                   written * static_cast<double>(g.bytes(op.inputs[2]))};
}

constexpr auto run_dx_combine = []<class T>(const KernelCall<T>& c) {
  const int64_t hidden = c.out_shape(0)[2];
  const int64_t slots = stored_elements(c.graph.tensor(c.op.outputs[0])) / hidden;
  if (!has(c.op, 1)) {
    return c.k.dispatch(c.out(0), c.in(0), c.in_i32(2), slots, attr_int(c.op, "k"), hidden,
                        c.stream);
  }
  c.k.combine_dx(c.out(0), c.in(0), c.wide(1), c.in_i32(2), slots, c.in_shape(1)[1], hidden,
                 c.stream);
};

std::vector<TensorSpec> infer_dweight(const Graph& g, const Op& op) {
  expect_shape(g, op, 1, {kAny, kAny, kAny});
  expect_index(g, op, 2, {kAny, kAny});
  expect_rows(g, op, 0, shape(g, op, 2)[0], shape(g, op, 1)[2]);
  return {{shape(g, op, 2), wide_dtype(arg(g, op, 0).dtype)}};
}

Work work_dweight(const Graph& g, const Op& op, const WorkContext& context) {
  const double unread = (1 - context.slot_occupancy) * static_cast<double>(g.bytes(op.inputs[1]));
  return {.flops = 2 * context.slot_occupancy * static_cast<double>(num_elements(shape(g, op, 1))),
          .bytes = io_bytes(g, op) - unread};
}

constexpr auto run_dweight = []<class T>(const KernelCall<T>& c) {
  const Shape& choice = c.in_shape(2);
  c.k.combine_dweight(c.wide_out(0), c.in(0), c.in(1), c.in_i32(2), choice[0], choice[1],
                      cols_of(c.in_shape(1)), c.stream);
};

}  // namespace

const OpDef kCombine = {.name = "combine",
                        .doc = "y[t] = [residual +] sum over token t's choices of [weight *] slot",
                        .moe = MoeOp::kCombine,
                        .bound = Bound::kBytes,
                        .inputs = {{"slots", Role::kSlots},
                                   optional("weight", Role::kWeight),
                                   {"choice_slot", Role::kChoiceSlot},
                                   optional("residual", Role::kAdded),
                                   optional("slot_choice", Role::kSlotChoice)},
                        .outputs = {{"y"}},
                        .infer = infer_combine,
                        .work = work_combine,
                        .gradient = gradient_combine,
                        .axes = axes_combine,
                        .only_used_rows = on_any,
                        .run = any_type(run_combine)};

const OpDef kCombineDx = {
    .name = "combine_dx",
    .doc =
        "gradient of the slots: [weight *] dy of the slot's token, 0 for an empty slot; attrs "
        "stored, k (choices per token, needed without weight)",
    .moe = MoeOp::kCombineDx,
    .bound = Bound::kBytes,
    .inputs = {{"dy"}, optional("weight", Role::kWeight), {"slot_choice", Role::kSlotChoice}},
    .outputs = {{"dslots", Role::kSlots}},
    .infer = infer_dx_combine,
    .work = work_dx_combine,
    .gradient = no_gradient,
    .run = any_type(run_dx_combine)};

const OpDef kCombineDweight = {
    .name = "combine_dweight",
    .doc = "gradient of the weights: dot product of dy and the slot; 0 for dropped choices",
    .inputs = {{"dy"}, {"slots", Role::kSlots}, {"choice_slot", Role::kChoiceSlot}},
    .outputs = {{"dweight", Role::kWeight}},
    .infer = infer_dweight,
    .work = work_dweight,
    .gradient = no_gradient,
    .run = any_type(run_dweight)};

}  // namespace moe::ops
