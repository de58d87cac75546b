// Copies the weights of choices into the slots of their rows, for experts that multiply by them;
// the backward reads the slots' gradients for each choice. One number per row.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

constexpr size_t kWeightIn = 0, kSlotChoiceIn = 1, kSlotIn = 2;

std::vector<TensorSpec> infer_dispatch_weight(const Graph& g, const Op& op) {
  expect_shape(g, op, kWeightIn, {kAny, kAny});
  expect_index(g, op, kSlotChoiceIn, {kAny, kAny});
  expect_index(g, op, kSlotIn, shape(g, op, kWeightIn));
  const Shape& slots = shape(g, op, kSlotChoiceIn);
  return {{{slots[0], slots[1], 1}, arg(g, op, kWeightIn).dtype, op.rows.stored}};
}

/// Reads and writes one number per row, by its index.
Work work_dispatch_weight(const Graph& g, const Op& op, const WorkContext& context) {
  const double used = op.rows.stored > 0 ? context.slot_occupancy : 1;
  return {.bytes = static_cast<double>(g.bytes(op.inputs[kWeightIn])) +
                   used * static_cast<double>(g.bytes(op.inputs[kSlotChoiceIn]) +
                                              g.bytes(op.outputs[0]))};
}

void gradient_dispatch_weight(GradContext& c, OpId) {
  const Op op = c.op();
  if (!c.needs(op.inputs[kWeightIn])) return;
  const OpId dw = c.emit(kDispatchWeightDx, "dx", {c.grad(op.outputs[0]), op.inputs[kSlotIn]});
  c.add(op.inputs[kWeightIn], c.graph().out(dw));
}

constexpr auto run_dispatch_weight = []<class T>(const KernelCall<T>& c) {
  c.k.gather(c.wide_out(0), c.wide(kWeightIn), c.in_i32(kSlotChoiceIn),
             stored_elements(c.graph.tensor(c.op.outputs[0])), c.stream);
};

std::vector<TensorSpec> infer_dx_dispatch_weight(const Graph& g, const Op& op) {
  expect_shape(g, op, 0, {kAny, kAny, 1});
  expect_index(g, op, 1, {kAny, kAny});
  return {{shape(g, op, 1), arg(g, op, 0).dtype}};
}

/// Reads one number per choice that has a slot.
Work work_dx_dispatch_weight(const Graph& g, const Op& op, const WorkContext& context) {
  return {.bytes = context.slot_occupancy * static_cast<double>(g.bytes(op.inputs[0])) +
                   static_cast<double>(g.bytes(op.inputs[1]) + g.bytes(op.outputs[0]))};
}

constexpr auto run_dx_dispatch_weight = []<class T>(const KernelCall<T>& c) {
  c.k.gather(c.wide_out(0), c.wide(0), c.in_i32(1), num_elements(c.in_shape(1)), c.stream);
};

}  // namespace

const OpDef kDispatchWeight = {
    .name = "dispatch_weight",
    .doc = "slots[e,c] = the weight of the choice that has this slot, or 0; attr stored",
    .moe = MoeOp::kDispatchWeight,
    .bound = Bound::kBytes,
    .inputs = {{"weight", Role::kWeight},
               {"slot_choice", Role::kSlotChoice},
               {"choice_slot", Role::kChoiceSlot}},
    .outputs = {{"slots", Role::kSlots}},
    .infer = infer_dispatch_weight,
    .work = work_dispatch_weight,
    .gradient = gradient_dispatch_weight,
    .only_used_rows = on_any,
    .run = any_type(run_dispatch_weight)};

const OpDef kDispatchWeightDx = {
    .name = "dispatch_weight_dx",
    .doc = "gradient of the weights: that of each choice's slot, 0 for dropped choices",
    .bound = Bound::kBytes,
    .inputs = {{"dslots", Role::kSlots}, {"choice_slot", Role::kChoiceSlot}},
    .outputs = {{"dweight", Role::kWeight}},
    .infer = infer_dx_dispatch_weight,
    .work = work_dx_dispatch_weight,
    .gradient = no_gradient,
    .run = any_type(run_dx_dispatch_weight)};

}  // namespace moe::ops
