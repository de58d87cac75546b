// The maps of one part of a batch out of the routing of the whole batch, for gates that must see
// all tokens at once: the part's rows of each expert close up, in the order of the whole's places.
#include <algorithm>

#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

std::vector<TensorSpec> infer(const Graph& g, const Op& op) {
  expect_index(g, op, 0, {kAny, kAny});
  expect_index(g, op, 1, {kAny, kAny});
  const Shape& choices = shape(g, op, 0);
  const Shape& slots = shape(g, op, 1);
  const int64_t first = expect_attr(op, "first_token", 0), tokens = expect_attr(op, "tokens", 1);
  if (first + tokens > choices[0]) {
    throw user_error("op '{}' (route_part): tokens {} to {} of '{}', which has {}", op.name, first,
                     first + tokens, arg(g, op, 0).name, choices[0]);
  }
  return {{{tokens, choices[1]}, DType::kI32}, {slots, DType::kI32}, {{slots[0]}, DType::kI32}};
}

Work work(const Graph& g, const Op& op, const WorkContext&) {
  return {.bytes = io_bytes(g, op)};
}

template <class T>
void run(const KernelCall<T>& c) {
  const Shape& slots = c.in_shape(1);
  const int64_t experts = slots[0], capacity = slots[1], k = c.in_shape(0)[1];
  const int64_t begin = attr_int(c.op, "first_token") * k, n = c.out_shape(0)[0] * k;
  int32_t* choice_slot = c.out_i32(0);
  int32_t* slot_choice = c.out_i32(1);
  int32_t* counts = c.out_i32(2);
  std::fill_n(choice_slot, n, -1);
  std::fill_n(slot_choice, experts * capacity, -1);
  for (int64_t e = 0; e < experts; ++e) {
    int64_t next = e * capacity;
    for (int64_t s = e * capacity; s < (e + 1) * capacity; ++s) {
      const int64_t choice = c.in_i32(1)[s] - begin;
      if (c.in_i32(1)[s] < 0 || choice < 0 || choice >= n) continue;
      choice_slot[choice] = static_cast<int32_t>(next);
      slot_choice[next++] = static_cast<int32_t>(choice);
    }
    counts[e] = static_cast<int32_t>(next - e * capacity);
  }
}

}  // namespace

const OpDef kRoutePart = {
    .name = "route_part",
    .doc = "routing of attr tokens tokens from attr first_token on, out of a whole batch's",
    .min_inputs = 2,
    .max_inputs = 2,
    .infer = infer,
    .work = work,
    .run_f32 = run<float>,
    .run_f64 = run<double>};

}  // namespace moe::ops
