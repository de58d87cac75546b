// The exchange of slots between the ranks of a group, and the exchange of the number of rows in use
// among them. The executor runs both ops through its Communicator.
#include "engine/ops/defs.h"
#include "engine/ops/placed.h"

namespace moe::ops {
namespace {

// Where a dispatcher moves the rows (passes/exchange/dispatched.cpp).
constexpr size_t kA2aChoiceSlot = 6, kA2aWeight = 7, kResults = 8;

bool to_expert(const Op& op) {
  if (op.rows.to == RowUse::To::kNowhere) {
    throw user_error("op '{}' (all_to_all): attribute 'to' is missing, allowed: expert, source",
                     op.name);
  }
  return op.rows.to_expert();
}

int64_t local_experts(const Op& op, int64_t experts, int64_t ranks) {
  if (experts % ranks != 0) {
    throw user_error("op '{}': {} experts cannot be divided evenly among {} ranks of a group",
                     op.name, experts, ranks);
  }
  return experts / ranks;
}

/// Returns the shape of the row ends of slots: [experts], or [experts, sources] where an expert's
/// slots hold rows of several source ranks.
Shape row_ends_shape(int64_t experts, const Shape& slots) {
  return slots.size() == 4 ? Shape{experts, slots[1]} : Shape{experts};
}

/// Returns the output's shape in one of n rounds, where slots are sent whether or not they are in
/// use: [E/n,C,d] -> [El,P/n,C,d], or the reverse.
std::vector<TensorSpec> infer_round(const Graph& g, const Op& op) {
  const Group group = group_of(g, op);
  const int64_t members = round_of(g, op).members(group);
  if (has(op, 2) || has(op, 3) || has(op, 4)) {
    throw user_error(
        "op '{}' (all_to_all): with attribute 'rounds' and without 'irregular' = 1 all slots are "
        "moved, so inputs 2 (recv_counts), 3 (begin) and 4 (recv_begin) are not allowed",
        op.name);
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

/// Returns the output's shape where a placement states to which ranks rows go, with L slots per
/// device: [E,C,d] -> [L,P,C,d], or the reverse.
std::vector<TensorSpec> infer_placed(const Graph& g, const Op& op) {
  const PlacementBounds bounds = bounds_of(op);
  const int64_t ranks = group_of(g, op).size;
  if (bounds.devices != ranks || !op.rows.irregular || !has(op, 1) || !has(op, 2) || !has(op, 5)) {
    throw user_error(
        "op '{}' (all_to_all): with attribute 'residents' (a placement) it needs attributes "
        "'irregular' = 1 and 'devices' = {}, and inputs 1 (counts), 2 (recv_counts) and 5 "
        "(placement)",
        op.name, ranks);
  }
  expect_shape(
      g, op, 0,
      to_expert(op) ? Shape{bounds.experts, kAny, kAny} : Shape{bounds.slots(), ranks, kAny, kAny});
  for (const size_t counts : {size_t{1}, size_t{3}}) {
    expect_row_ends(g, op, counts, {bounds.experts});
  }
  for (const size_t rows : {size_t{2}, size_t{4}}) {
    expect_row_ends(g, op, rows, {bounds.slots(), ranks});
  }
  expect_placement(g, op, 5, bounds);
  const Shape& in = shape(g, op, 0);
  const Shape out = to_expert(op) ? Shape{bounds.slots(), ranks, in[1], in[2]}
                                  : Shape{bounds.experts, in[2], in[3]};
  return {{out, arg(g, op, 0).dtype, op.rows.stored}};
}

std::vector<TensorSpec> infer_rows_all_to_all(const Graph& g, const Op& op) {
  if (op.rows.round.of > 1 && !op.rows.irregular) return infer_round(g, op);
  if (op.attrs.contains("residents")) return infer_placed(g, op);
  const int64_t ranks = group_of(g, op).size;
  const DType dtype = arg(g, op, 0).dtype;
  const Shape& in = shape(g, op, 0);
  Shape out, slots = in;  // slots: the shape at the source ranks
  if (to_expert(op)) {
    expect_shape(g, op, 0, Shape(in.size() == 4 ? 4 : 3, kAny));
    const int64_t sources = in.size() == 4 ? in[1] : 1;
    out = {local_experts(op, in[0], ranks), ranks * sources, in[in.size() - 2], in.back()};
  } else {
    const int64_t sources = std::max<int64_t>(1, op.rows.sources);
    expect_shape(g, op, 0, {kAny, ranks * sources, kAny, kAny});
    slots = {in[0] * ranks, in[2], in[3]};
    if (op.rows.sources > 0) slots.insert(slots.begin() + 1, sources);
    out = slots;
  }
  const Shape ends = row_ends_shape(slots[0], slots);
  const Shape received = to_expert(op) ? Shape{out[0], out[1]} : Shape{in[0], in[1]};
  expect_row_ends(g, op, 1, ends);
  expect_row_ends(g, op, 2, received);
  expect_row_ends(g, op, 3, ends);
  expect_row_ends(g, op, 4, received);
  if (has(op, 3) != has(op, 4)) {
    throw user_error(
        "op '{}' (all_to_all): one of inputs 3 (begin) and 4 (recv_begin) is absent; give both or "
        "neither",
        op.name);
  }
  if (op.rows.irregular && (!has(op, 1) || !has(op, 2))) {
    throw user_error(
        "op '{}' (all_to_all): attribute 'irregular' = 1 needs inputs 1 (counts) and 2 "
        "(recv_counts)",
        op.name);
  }
  return {{out, dtype, op.rows.stored}};
}

std::vector<TensorSpec> infer_all_to_all(const Graph& g, const Op& op) {
  std::vector<TensorSpec> specs = infer_rows_all_to_all(g, op);
  expect_index(g, op, kA2aChoiceSlot, {kAny, kAny});
  if (has(op, kA2aWeight)) expect_shape(g, op, kA2aWeight, shape(g, op, kA2aChoiceSlot));
  if (attr_int(op, "dots") == 0) return specs;
  if (!has(op, kA2aWeight) || !has(op, kResults)) {
    throw user_error(
        "op '{}' (all_to_all): attribute 'dots' needs inputs {} (weight) and {} (results)", op.name,
        kA2aWeight, kResults);
  }
  expect_shape(g, op, kResults, specs[0].shape);
  specs.push_back({shape(g, op, kA2aChoiceSlot), arg(g, op, kA2aWeight).dtype});
  return specs;
}

/// Bytes that this rank sends, including those to itself; cost models divide by group members.
Work work_all_to_all(const Graph& g, const Op& op, const WorkContext& context) {
  const auto bytes = static_cast<double>(g.bytes(op.inputs[0]));
  if (!op.rows.irregular) return {.bytes = bytes};
  return {.bytes = bytes * context.slot_occupancy * share_of(op) * op.rows.occupancy};
}

/// Padded slots are cut along the capacity; counted rows (irregular) at the gate's row ends.
std::vector<AxisTuple> axes_all_to_all(const Graph& g, const Op& op) {
  if (op.rows.irregular) {
    return {{{kRows, kRowEnds, kRowEnds, kWhole, kWhole, kWhole, 0, 0, kWhole}, {kRows}},
            {{kWhole, kRowEnds, kRowEnds, kWhole, kWhole, kWhole, 0, 0, kWhole}, {kRows}}};
  }
  const int in = static_cast<int>(shape(g, op, 0).size()) - 2;
  const int out = to_expert(op) || op.rows.sources > 0 ? 2 : 1;
  return {{{in, kWhole, kWhole, kWhole, kWhole}, {out}}};
}

TensorId rows_end_all_to_all(const Graph&, const Op& op, size_t) {
  return op.inputs[to_expert(op) ? 2 : 1];
}

std::vector<AxisTuple> axes_counts(const Graph&, const Op&) {
  return {{{kRowEnds}, {kRowEnds}}};
}

void gradient_all_to_all(GradContext& c, OpId) {
  const Op op = c.op();
  if (!c.needs(op.inputs[0])) return;
  RowUse rows = op.rows;
  rows.to = to_expert(op) ? RowUse::To::kSource : RowUse::To::kExpert;
  if (rows.stored > 0) rows.stored = arg(c.graph(), op, 0).stored_rows;
  const Shape& slots = shape(c.graph(), op, 0);
  rows.sources = to_expert(op) && slots.size() == 4 ? slots[1] : 0;
  std::vector<TensorId> inputs = {c.grad(op.outputs[0]), input_or_none(op, 1),
                                  input_or_none(op, 2)};
  if (has(op, 5)) {
    const PlacementBounds bounds = bounds_of(op);
    rows.occupancy = to_expert(op) ? slot_ratio_of(bounds) : 1;
    inputs.resize(6);
    inputs[5] = op.inputs[5];
  }
  Attrs attrs = attrs_of(rows);
  attrs.insert(op.attrs.begin(), op.attrs.end());
  const TensorId weight = input_or_none(op, kA2aWeight);
  const bool dots = weight.valid() && c.needs(weight);
  if (has(op, kA2aChoiceSlot)) {
    inputs.resize(kResults + 1);
    inputs[kA2aChoiceSlot] = op.inputs[kA2aChoiceSlot], inputs[kA2aWeight] = weight;
    if (dots) inputs[kResults] = op.inputs[0];
    attrs["dots"] = int64_t{dots};
  }
  const OpId dx = c.emit("all_to_all", "dx", inputs, attrs);
  c.add(op.inputs[0], c.graph().out(dx));
  if (dots) c.add(weight, c.graph().out(dx, 1));
}

std::vector<TensorSpec> infer_counts(const Graph& g, const Op& op) {
  const int64_t ranks = group_of(g, op).size;
  const Shape& counts = shape(g, op, 0);
  expect_index(g, op, 0, counts.size() == 2 ? Shape{kAny, kAny} : Shape{kAny});
  const int64_t sources = counts.size() == 2 ? counts[1] : 1;
  return {{{local_experts(op, counts[0], ranks), ranks * sources}, DType::kI32}};
}

Work work_counts(const Graph& g, const Op& op, const WorkContext&) {
  return {.bytes = static_cast<double>(g.bytes(op.inputs[0]))};
}

std::vector<size_t> counts_all_to_all(const Op& op) {
  if (!op.rows.irregular) return {};
  return {1, 2, 3, 4, 5};
}

}  // namespace

const OpDef kAllToAll = {
    .name = "all_to_all",
    .doc =
        "sends slots to the ranks of their experts, or back; attrs to, irregular (send only rows "
        "in use), group, stride, sources, round, rounds, stored; with weight, experts' ranks "
        "multiply rows by it, and with attr dots return their products with results",
    .lane = LaneKind::kComm,
    .collective = Collective::kAllToAll,
    .payload = Payload::kRows,
    .inputs = {{"slots"},
               optional("counts", Role::kCounts),
               optional("recv_counts", Role::kRecvCounts),
               optional("begin", Role::kBegin),
               optional("recv_begin", Role::kRecvBegin),
               optional("placement", Role::kPlacement),
               optional("choice_slot", Role::kChoiceSlot),
               optional("weight", Role::kWeight),
               optional("results")},
    .outputs = {{"recv"}, with("dots", "dweight", Role::kWeight)},
    .infer = infer_all_to_all,
    .work = work_all_to_all,
    .gradient = gradient_all_to_all,
    .axes = axes_all_to_all,
    .begins = {{.input = 3, .of_input = 1}, {.input = 4, .of_input = 2}},
    .rows_end = rows_end_all_to_all,
    .only_used_rows = [](const Op& op) { return op.rows.irregular; },
    .host_inputs = counts_all_to_all};

const OpDef kExchangeCounts = {
    .name = "exchange_counts",
    .doc = "sends the number of rows for each expert to the expert's rank; attrs group, stride",
    .lane = LaneKind::kComm,
    .collective = Collective::kAllToAll,
    .payload = Payload::kCounts,
    .inputs = {{"counts", Role::kCounts}},
    .outputs = {{"recv_counts", Role::kRecvCounts}},
    .infer = infer_counts,
    .work = work_counts,
    .gradient = no_gradient,
    .axes = axes_counts};

}  // namespace moe::ops
