// Numbers the slots of packed rows (stored_rows.h): the gate numbers them as if each expert had
// `capacity` slots in the buffer.
#include <algorithm>

#include "engine/ops/defs.h"
#include "engine/ops/rules.h"
#include "engine/ops/stored_rows.h"

namespace moe::ops {
namespace {

constexpr size_t kChoiceSlotIn = 0, kCountsIn = 1, kBeginIn = 2;

std::vector<TensorSpec> infer_pack_slots(const Graph& g, const Op& op) {
  expect_index(g, op, kChoiceSlotIn, {kAny, kAny});
  const int64_t experts = expect_attr(op, "experts", 1);
  const int64_t capacity = expect_attr(op, "capacity", 1), stored = op.rows.stored;
  if (stored < 1) {
    throw user_error("op '{}': attribute 'stored' must be given, a whole number of at least 1",
                     op.name);
  }
  expect_index(g, op, kCountsIn, {experts});
  expect_index(g, op, kBeginIn, {experts});
  return {{shape(g, op, kChoiceSlotIn), DType::kI32}, {{experts, capacity}, DType::kI32, stored}};
}

/// Each choice is read once and written twice.
Work work_pack_slots(const Graph& g, const Op& op, const WorkContext&) {
  return {.bytes = 3.0 * static_cast<double>(g.bytes(op.inputs[kChoiceSlotIn]))};
}

constexpr auto run_pack_slots = []<class T>(const KernelCall<T>& c) {
  const Shape& choices = c.in_shape(kChoiceSlotIn);
  const int64_t experts = c.in_shape(kCountsIn)[0];
  const int64_t first_choice = attr_int(c.op, "first_token") * choices[1];
  const BlockSizes sizes{experts, attr_int(c.op, "capacity"), 1, true};
  if (!is_part(c.op)) std::fill_n(c.out_i32(1), c.op.rows.stored, -1);
  pack_slots(sizes, c.in_i32(kCountsIn), c.in_i32(kBeginIn),
             {c.in_i32(kChoiceSlotIn), static_cast<size_t>(num_elements(choices))}, first_choice,
             c.out_i32(0), c.out_i32(1));
};

}  // namespace

const OpDef kPackSlots = {
    .name = "pack_slots",
    .doc =
        "numbers the slots in use one after the other, as packed rows are stored; attrs experts, "
        "capacity, stored, first_token",
    .inputs = {{"choice_slot", Role::kChoiceSlot},
               {"counts", Role::kCounts},
               optional("begin", Role::kBegin)},
    .outputs = {{"packed_choice_slot", Role::kChoiceSlot},
                {"packed_slot_choice", Role::kSlotChoice}},
    .infer = infer_pack_slots,
    .work = work_pack_slots,
    .gradient = no_gradient,
    .rows_end = [](const Graph&, const Op& op,
                   size_t output) { return output == 1 ? op.inputs[kCountsIn] : TensorId(); },
    .run = any_type(run_pack_slots),
    .on_host = always};

}  // namespace moe::ops
