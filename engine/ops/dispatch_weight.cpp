// Copies the weights of choices into the slots of their rows, for experts that multiply by them;
// the backward reads the slots' gradients for each choice. One number per row.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

constexpr size_t kWeight = 0, kSlotChoice = 1, kChoiceSlot = 2;

std::vector<TensorSpec> infer(const Graph& g, const Op& op) {
  expect_shape(g, op, kWeight, {kAny, kAny});
  expect_index(g, op, kSlotChoice, {kAny, kAny});
  expect_index(g, op, kChoiceSlot, shape(g, op, kWeight));
  const Shape& slots = shape(g, op, kSlotChoice);
  return {{{slots[0], slots[1], 1}, arg(g, op, kWeight).dtype, op.rows.stored}};
}

/// Reads and writes one number per row, by its index.
Work work(const Graph& g, const Op& op, const WorkContext& context) {
  const double used = op.rows.stored > 0 ? context.slot_occupancy : 1;
  return {.bytes =
              static_cast<double>(g.bytes(op.inputs[kWeight])) +
              used * static_cast<double>(g.bytes(op.inputs[kSlotChoice]) + g.bytes(op.outputs[0]))};
}

void gradient(GradContext& c, OpId) {
  const Op op = c.op();
  if (!c.needs(op.inputs[kWeight])) return;
  const OpId dw = c.emit(kDispatchWeightDx, "dx", {c.grad(op.outputs[0]), op.inputs[kChoiceSlot]});
  c.add(op.inputs[kWeight], c.graph().out(dw));
}

constexpr auto run = []<class T>(const KernelCall<T>& c) {
  c.k.gather(c.wide_out(0), c.wide(kWeight), c.in_i32(kSlotChoice),
             stored_elements(c.graph.tensor(c.op.outputs[0])), c.stream);
};

std::vector<TensorSpec> infer_dx(const Graph& g, const Op& op) {
  expect_shape(g, op, 0, {kAny, kAny, 1});
  expect_index(g, op, 1, {kAny, kAny});
  return {{shape(g, op, 1), arg(g, op, 0).dtype}};
}

/// Reads one number per choice that has a slot.
Work work_dx(const Graph& g, const Op& op, const WorkContext& context) {
  return {.bytes = context.slot_occupancy * static_cast<double>(g.bytes(op.inputs[0])) +
                   static_cast<double>(g.bytes(op.inputs[1]) + g.bytes(op.outputs[0]))};
}

constexpr auto run_dx = []<class T>(const KernelCall<T>& c) {
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
    .infer = infer,
    .work = work,
    .gradient = gradient,
    .only_used_rows = on_any,
    .run = any_type(run)};

const OpDef kDispatchWeightDx = {
    .name = "dispatch_weight_dx",
    .doc = "gradient of the weights: that of each choice's slot, 0 for dropped choices",
    .bound = Bound::kBytes,
    .inputs = {{"dslots", Role::kSlots}, {"choice_slot", Role::kChoiceSlot}},
    .outputs = {{"dweight", Role::kWeight}},
    .infer = infer_dx,
    .work = work_dx,
    .gradient = no_gradient,
    .run = any_type(run_dx)};

}  // namespace moe::ops
