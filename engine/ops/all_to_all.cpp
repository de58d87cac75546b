// The exchange of slots between the ranks of a group, and of how many rows of them are real. The
// executor runs both through its Communicator.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

bool to_expert(const Op& op) {
  const std::string to = attr_string(op, "to");
  if (to != "expert" && to != "source") {
    throw user_error("op '{}': attribute 'to' is '{}', allowed: expert, source", op.name, to);
  }
  return to == "expert";
}

int64_t local_experts(const Op& op, int64_t experts, int64_t ranks) {
  if (experts % ranks != 0) {
    throw user_error("op '{}': {} experts do not divide over {} ranks", op.name, experts, ranks);
  }
  return experts / ranks;
}

/// One of n rounds: [E/n,C,d] -> [El,P/n,C,d], or the reverse, of whole slots.
std::vector<TensorSpec> infer_round(const Graph& g, const Op& op) {
  const Group group = group_of(g, op);
  const int64_t members = round_of(g, op).members(group);
  if (attr_int(op, "irregular") != 0 || has(op, 2) || has(op, 3) || has(op, 4)) {
    throw user_error("op '{}': a round carries whole slots, not counted rows", op.name);
  }
  expect_shape(g, op, 0,
               to_expert(op) ? Shape{kAny, kAny, kAny} : Shape{kAny, members, kAny, kAny});
  const Shape& in = shape(g, op, 0);
  const int64_t local = to_expert(op) ? local_experts(op, in[0], members) : in[0];
  expect_index(g, op, 1, {local * group.size});
  const Shape out =
      to_expert(op) ? Shape{local, members, in[1], in[2]} : Shape{local * members, in[2], in[3]};
  return {{out, arg(g, op, 0).dtype}};
}

std::vector<TensorSpec> infer(const Graph& g, const Op& op) {
  if (op.attrs.contains("rounds")) return infer_round(g, op);
  const int64_t ranks = group_of(g, op).size;
  const DType dtype = arg(g, op, 0).dtype;
  int64_t experts = 0;
  Shape out;
  if (to_expert(op)) {
    expect_shape(g, op, 0, {kAny, kAny, kAny});
    const Shape& in = shape(g, op, 0);
    experts = in[0];
    out = {local_experts(op, experts, ranks), ranks, in[1], in[2]};
  } else {
    expect_shape(g, op, 0, {kAny, ranks, kAny, kAny});
    const Shape& in = shape(g, op, 0);
    experts = in[0] * ranks;
    out = {experts, in[2], in[3]};
  }
  expect_index(g, op, 1, {experts});
  expect_index(g, op, 2, {experts / ranks, ranks});
  expect_index(g, op, 3, {experts});
  expect_index(g, op, 4, {experts / ranks, ranks});
  if (has(op, 3) != has(op, 4)) {
    throw user_error("op '{}': a part needs both begins, inputs 3 and 4", op.name);
  }
  if (attr_int(op, "irregular") != 0 && (!has(op, 1) || !has(op, 2))) {
    throw user_error("op '{}': irregular needs inputs 1, counts, and 2, recv_counts", op.name);
  }
  return {{out, dtype}};
}

/// What this rank hands over in all, its own part included; cost models divide by members.
Work work(const Graph& g, const Op& op, const WorkContext& context) {
  const auto bytes = static_cast<double>(g.bytes(op.inputs[0]));
  return {.bytes = attr_int(op, "irregular") != 0 ? bytes * context.fill * share_of(op) : bytes};
}

/// Padded slots are cut along the capacity, counted rows as the gate says.
std::vector<AxisTuple> axes(const Graph&, const Op& op) {
  if (attr_int(op, "irregular") != 0) {
    return {{{kRows, kTally, kTally, kWhole, kWhole}, {kRows}},
            {{kWhole, kTally, kTally, kWhole, kWhole}, {kRows}}};
  }
  if (to_expert(op)) return {{{1, kWhole, kWhole, kWhole, kWhole}, {2}}};
  return {{{2, kWhole, kWhole, kWhole, kWhole}, {1}}};
}

TensorId rows_end(const Graph&, const Op& op, size_t) {
  return op.inputs[to_expert(op) ? 2 : 1];
}

std::vector<AxisTuple> axes_counts(const Graph&, const Op&) {
  return {{{kTally}, {kTally}}};
}

void gradient(GradContext& c, OpId) {
  const Op op = c.op();
  if (!c.needs(op.inputs[0])) return;
  Attrs attrs = op.attrs;
  attrs["to"] = to_expert(op) ? "source" : "expert";
  const OpId dx =
      c.emit("all_to_all", "dx",
             {c.grad(op.outputs[0]), input_or_none(op, 1), input_or_none(op, 2)}, attrs);
  c.add(op.inputs[0], c.graph().out(dx));
}

std::vector<TensorSpec> infer_counts(const Graph& g, const Op& op) {
  expect_index(g, op, 0, {kAny});
  const int64_t ranks = group_of(g, op).size;
  return {{{local_experts(op, shape(g, op, 0)[0], ranks), ranks}, DType::kI32}};
}

Work work_counts(const Graph& g, const Op& op, const WorkContext&) {
  return {.bytes = static_cast<double>(g.bytes(op.inputs[0]))};
}

}  // namespace

const OpDef kAllToAll = {
    .name = "all_to_all",
    .doc =
        "slots to the ranks of their experts, or back; attrs to, irregular (only real rows), "
        "group, stride, round, rounds",
    .lane = LaneKind::kComm,
    .collective = Collective::kAllToAll,
    .min_inputs = 1,
    .max_inputs = 5,
    .infer = infer,
    .work = work,
    .gradient = gradient,
    .axes = axes,
    .begins = {{.input = 3, .of_input = 1}, {.input = 4, .of_input = 2}},
    .rows_end = rows_end};

const OpDef kExchangeCounts = {
    .name = "exchange_counts",
    .doc =
        "rows that every source rank sends to each local expert; attrs group, "
        "stride",
    .lane = LaneKind::kComm,
    .collective = Collective::kAllToAll,
    .min_inputs = 1,
    .max_inputs = 1,
    .infer = infer_counts,
    .work = work_counts,
    .axes = axes_counts};

}  // namespace moe::ops
