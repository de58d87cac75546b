// split_peers cuts slots by the round of an exchange in which they are sent (base/group.h, Round);
// join_peers is the inverse. Which block of experts is part j depends on the rank's place in its
// group: blocks are rotated. Every part is a copy, because a view must have the same place on every
// rank. The cost is one read and one write of the tensor.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

/// Returns [E/n,C,d], the shape of each of the n parts of slots [E,C,d]; n is attr rounds. Throws
/// UserError unless n divides the number of ranks of the group, and that number divides E.
Shape block_of(const Graph& g, const Op& op, Shape slots) {
  const Group group = group_of(g, op);
  const int64_t rounds = round_of(g, op).of;
  if (slots[0] % group.size != 0) {
    throw user_error("op '{}' ({}): {} experts cannot be divided evenly among {} ranks of a group",
                     op.name, g.def(op).name, slots[0], group.size);
  }
  slots[0] /= rounds;
  return slots;
}

std::vector<TensorSpec> infer_split_split_peers(const Graph& g, const Op& op) {
  expect_shape(g, op, 0, {kAny, kAny, kAny});
  const Tensor& slots = arg(g, op, 0);
  const TensorSpec part{block_of(g, op, slots.shape), slots.dtype};
  return std::vector<TensorSpec>(static_cast<size_t>(round_of(g, op).of), part);
}

std::vector<TensorSpec> infer_join_split_peers(const Graph& g, const Op& op) {
  const int64_t rounds = round_of(g, op).of;
  if (op.inputs.size() != static_cast<size_t>(rounds)) {
    throw user_error(
        "op '{}' (join_peers): it has {} inputs, expected one part per round, {} (attribute "
        "'rounds')",
        op.name, op.inputs.size(), rounds);
  }
  expect_shape(g, op, 0, {kAny, kAny, kAny});
  Shape slots = shape(g, op, 0);
  for (size_t j = 0; j < op.inputs.size(); ++j) {
    if (!has(op, j))
      throw user_error("op '{}' (join_peers): input {} is absent; every part must be given",
                       op.name, j);
    expect_shape(g, op, j, shape(g, op, 0));
  }
  slots[0] *= rounds;
  block_of(g, op, slots);
  return {{slots, arg(g, op, 0).dtype}};
}

void gradient_split_split_peers(GradContext& c, OpId) {
  const Op op = c.op();
  if (!c.needs(op.inputs[0])) return;
  std::vector<TensorId> parts;
  for (const TensorId t : op.outputs) {
    if (!c.grad(t).valid()) {
      throw user_error(
          "op '{}' (split_peers): the loss does not depend on part '{}'; it must depend on all "
          "parts",
          op.name, c.graph().tensor(t).name);
    }
    parts.push_back(c.grad(t));
  }
  c.add(op.inputs[0], c.graph().out(c.emit("join_peers", "dx", parts, all_attrs(op))));
}

void gradient_join_split_peers(GradContext& c, OpId) {
  const Op op = c.op();
  const OpId dx = c.emit("split_peers", "dx", {c.grad(op.outputs[0])}, all_attrs(op));
  for (size_t j = 0; j < op.inputs.size(); ++j) {
    if (c.needs(op.inputs[j])) c.add(op.inputs[j], c.graph().out(dx, j));
  }
}

/// Calls f(part j, the block of the whole that belongs to it, number of elements) for every j.
template <class T, class F>
void for_each_block(const KernelCall<T>& c, T* whole, std::span<void* const> parts, const F& f) {
  const Group group = group_of(c.graph, c.op);
  const auto rounds = static_cast<int64_t>(parts.size());
  const Shape& shape = c.op.outputs.size() > 1 ? c.in_shape(0) : c.out_shape(0);
  const int64_t place = group.place(c.rank.rank), rank_elements = num_elements(shape) / group.size;
  for (int64_t j = 0; j < rounds; ++j) {
    const Round round = {j, rounds};
    f(static_cast<T*>(parts[static_cast<size_t>(j)]),
      whole + round.sends_to(group, place) * rank_elements, round.members(group) * rank_elements);
  }
}

constexpr auto run_split_split_peers = []<class T>(const KernelCall<T>& c) {
  for_each_block(c, c.in(0), c.outputs,
                 [&](T* part, T* block, int64_t n) { copy(c, part, block, n); });
};

constexpr auto run_join_split_peers = []<class T>(const KernelCall<T>& c) {
  for_each_block(c, c.out(0), c.inputs,
                 [&](T* part, T* block, int64_t n) { copy(c, block, part, n); });
};

constexpr int kMaxRounds = 1 << 16;

}  // namespace

const OpDef kSplitPeers = {
    .name = "split_peers",
    .doc = "cuts slots into parts by the round in which they are sent; attrs rounds, group, stride",
    .inputs = {{"slots"}},
    .outputs = {several("parts", kMaxRounds)},
    .infer = infer_split_split_peers,
    .work = work_moves,
    .gradient = gradient_split_split_peers,
    .run = any_type(run_split_split_peers)};

const OpDef kJoinPeers = {
    .name = "join_peers",
    .doc = "joins the slots of all rounds, the inverse of split_peers; attrs rounds, group, stride",
    .inputs = {several("parts", kMaxRounds)},
    .outputs = {{"slots"}},
    .infer = infer_join_split_peers,
    .work = work_moves,
    .gradient = gradient_join_split_peers,
    .run = any_type(run_join_split_peers)};

}  // namespace moe::ops
