// Copies tokens into the slots of their experts; the backward sums the slots' gradients per token.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"
#include "engine/ops/stored_rows.h"

namespace moe::ops {
namespace {

std::vector<TensorSpec> infer_dispatch(const Graph& g, const Op& op) {
  const Shape& x = expect_matrix(g, op, 0);
  expect_index(g, op, 1, {kAny, kAny});
  expect_index(g, op, 2, {rows_of(x), expect_attr(op, "k", 1)});
  const Shape& slots = shape(g, op, 1);
  expect_index(g, op, 3, {slots[0]});
  expect_index(g, op, 4, {slots[0]});
  if (is_part(op) && !has(op, 3)) {
    throw user_error(
        "op '{}' (dispatch): attribute 'share' (one part of a batch) needs input 3, counts",
        op.name);
  }
  return {{{slots[0], slots[1], cols_of(x)}, arg(g, op, 0).dtype, op.rows.stored}};
}

/// Reads the rows of tokens that have a slot; writes all slots, or only those in use if the op is
/// one part of a batch or its output is packed.
Work work_dispatch(const Graph& g, const Op& op, const WorkContext& context) {
  const auto slots = static_cast<double>(g.bytes(op.outputs[0]));
  const auto index = static_cast<double>(g.bytes(op.inputs[1]));
  if (is_part(op) || op.rows.stored > 0) {
    return {.bytes = share_of(op) * context.slot_occupancy * (2 * slots + index)};
  }
  return {.bytes = slots * (1 + context.slot_occupancy) + index};
}

std::vector<AxisTuple> axes_dispatch(const Graph&, const Op&) {
  return {{{0, kRows, 0, kRowEnds, kWhole}, {kRows}}, {{0, kWhole, 0, kRowEnds, kWhole}, {kRows}}};
}

void gradient_dispatch(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId x = op.inputs[0];
  if (!c.needs(x)) return;
  if (!has(op, 2))
    throw user_error("op '{}' (dispatch): its gradient needs input 2, choice_slot, which is absent",
                     op.name);
  const Attrs attrs = seq_attr(shape(c.graph(), op, 0));
  const OpId dx =
      c.emit("dispatch_dx", "dx", {c.grad(op.outputs[0]), op.inputs[2], c.grad(x)}, attrs);
  c.set(x, c.graph().out(dx));
}

constexpr auto run_dispatch = []<class T>(const KernelCall<T>& c) {
  const Shape& out = c.out_shape(0);
  const int64_t k = attr_int(c.op, "k", 1), hidden = out[2];
  if (!is_part(c.op)) {
    const int64_t slots = stored_elements(c.graph.tensor(c.op.outputs[0])) / hidden;
    c.k.dispatch(c.out(0), c.in(0), c.in_i32(1), slots, k, hidden, c.stream);
    return;
  }
  const T* const token_0 = c.in(0) - attr_int(c.op, "first_token") * hidden;
  const BlockSizes sizes =
      block_sizes(c.graph, c.op.outputs[0], out[0], out[1], input_or_none(c.op, 3));
  for_each_block(sizes, c.in_i32(3), c.in_i32(4), [&](int64_t, const StoredBlock& block) {
    const int64_t slot = block.row_0 + block.rows.begin;
    c.k.dispatch(c.out(0) + slot * hidden, token_0, c.in_i32(1) + slot, block.rows.count(), k,
                 hidden, c.stream);
  });
};

std::vector<TensorSpec> infer_dx_dispatch(const Graph& g, const Op& op) {
  expect_shape(g, op, 0, {kAny, kAny, kAny});
  expect_index(g, op, 1, {kAny, kAny});
  const Shape dx = token_shape(op, shape(g, op, 1)[0], shape(g, op, 0)[2]);
  expect_shape(g, op, 2, dx);
  return {{dx, arg(g, op, 0).dtype}};
}

Work work_dx_dispatch(const Graph& g, const Op& op, const WorkContext& context) {
  const double slots = context.slot_occupancy * static_cast<double>(g.bytes(op.inputs[0]));
  const double rows = static_cast<double>(g.bytes(op.outputs[0])) * (has(op, 2) ? 2 : 1);
  return {.flops = context.slot_occupancy * static_cast<double>(num_elements(shape(g, op, 0))),
          .bytes = slots + rows + static_cast<double>(g.bytes(op.inputs[1]))};
}

constexpr auto run_dx_dispatch = []<class T>(const KernelCall<T>& c) {
  const Shape& choice = c.in_shape(1);
  c.k.dispatch_dx(c.out(0), c.in(0), c.in_i32(1), c.in(2), choice[0], choice[1],
                  cols_of(c.in_shape(0)), c.stream);
};

}  // namespace

const OpDef kDispatch = {
    .name = "dispatch",
    .doc = "slots[e,c] = the token whose choice has this slot, or 0; attrs k, stored",
    .moe = MoeOp::kDispatch,
    .bound = Bound::kBytes,
    .inputs = {{"x"},
               {"slot_choice", Role::kSlotChoice},
               optional("choice_slot", Role::kChoiceSlot),
               optional("counts", Role::kCounts),
               optional("begin", Role::kBegin)},
    .outputs = {{"slots", Role::kSlots}},
    .infer = infer_dispatch,
    .work = work_dispatch,
    .gradient = gradient_dispatch,
    .axes = axes_dispatch,
    .begins = {{.input = 4, .of_input = 3}},
    .rows_end = ends_in<3>,
    .only_used_rows = on_any,
    .run = any_type(run_dispatch),
    .host_inputs = [](const Op& op) {
      return is_part(op) ? std::vector<size_t>{3, 4} : std::vector<size_t>{};
    }};

const OpDef kDispatchDx = {
    .name = "dispatch_dx",
    .doc = "dx[t] = [acc +] sum of the gradients of the slots that token t's choices have",
    .bound = Bound::kBytes,
    .inputs = {{"dslots", Role::kSlots},
               {"choice_slot", Role::kChoiceSlot},
               optional("acc", Role::kAdded)},
    .outputs = {{"dx"}},
    .infer = infer_dx_dispatch,
    .work = work_dx_dispatch,
    .gradient = no_gradient,
    .may_alias = {{0, 2}},
    .run = any_type(run_dx_dispatch)};

}  // namespace moe::ops
