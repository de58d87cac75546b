// Counts how many slots of each expert the tokens of one part of a batch hold, from the routing of
// the whole batch. With these counts, ops behind a gate that needs all tokens of the batch at once
// can still run in parts.
#include <algorithm>

#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

std::vector<TensorSpec> infer_count_part(const Graph& g, const Op& op) {
  expect_index(g, op, 0, {kAny, kAny});
  const int64_t experts = expect_attr(op, "experts", 1);
  expect_attr(op, "capacity", 1);
  expect_index(g, op, 1, {experts});
  return {{{experts}, DType::kI32}};
}

constexpr auto run_count_part = []<class T>(const KernelCall<T>& c) {
  const int64_t choices = num_elements(c.in_shape(0)), experts = c.out_shape(0)[0];
  const auto capacity = static_cast<int32_t>(attr_int(c.op, "capacity"));
  int32_t* const end = c.out_i32(0);
  if (c.in_i32(1) != nullptr) {
    std::copy_n(c.in_i32(1), experts, end);
  } else {
    std::fill_n(end, experts, 0);
  }
  for (int64_t i = 0; i < choices; ++i) {
    const int32_t slot = c.in_i32(0)[i];
    if (slot >= 0) ++end[slot / capacity];
  }
};

}  // namespace

const OpDef kCountPart = {
    .name = "count_part",
    .doc = "slots that these choices hold at each expert, plus used_before",
    .inputs = {{"choice_slot", Role::kChoiceSlot}, optional("used_before", Role::kUsedBefore)},
    .outputs = {{"used_after", Role::kUsedBefore}},
    .infer = infer_count_part,
    .work = work_moves,
    .gradient = no_gradient,
    .run = wide_types(run_count_part),
    .on_host = always};

}  // namespace moe::ops
