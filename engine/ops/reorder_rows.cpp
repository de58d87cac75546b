// reorder_rows moves the rows in use from the order of experts to the order in which a two-step
// exchange sends them, or back. With a placement it also sorts them by the slots that hold their
// expert.
#include "engine/ops/defs.h"
#include "engine/ops/placed.h"

namespace moe::ops {
namespace {

constexpr size_t kCountsIn = 1, kSentIn = 2, kBeginIn = 3, kPlacementIn = 4;

/// The nodes and devices per node between which rows are sent, and the slots per device.
struct Devices {
  int64_t nodes, per_node, slots;
  /// Returns the block of slot `slot` of a device: blocks are ordered by the place of the device in
  /// its node, then by node, then by slot.
  int64_t block(int64_t device, int64_t slot) const {
    return (device % per_node * nodes + device / per_node) * slots + slot;
  }
};

Devices devices_of(const Op& op) {
  const int64_t nodes = expect_attr(op, "nodes", 1), per_node = expect_attr(op, "per_node", 1);
  if (op.attrs.contains("residents")) return {nodes, per_node, bounds_of(op).slots()};
  return {nodes, per_node, expect_attr(op, "experts", 1) / (nodes * per_node)};
}

bool to_expert(const Op& op) {
  return attr_string(op, "to") == "expert";
}

std::vector<TensorSpec> infer(const Graph& g, const Op& op) {
  const Devices d = devices_of(op);
  const int64_t experts = expect_attr(op, "experts", 1);
  const int64_t blocks = d.nodes * d.per_node * d.slots;
  expect_shape(g, op, 0, {to_expert(op) ? experts : blocks, kAny, kAny});
  expect_index(g, op, kCountsIn, {experts});
  expect_index(g, op, kSentIn, {blocks});
  expect_index(g, op, kBeginIn, {experts});
  if (has(op, kPlacementIn)) expect_placement(g, op, kPlacementIn, bounds_of(op));
  Shape out = shape(g, op, 0);
  out[0] = to_expert(op) ? blocks : experts;
  return {{out, arg(g, op, 0).dtype}};
}

/// Each row in use is read once and written once.
Work work(const Graph& g, const Op& op, const WorkContext& context) {
  const TensorId slots = to_expert(op) ? op.inputs[0] : op.outputs[0];
  return {.bytes = 2 * context.slot_occupancy * share_of(op) * static_cast<double>(g.bytes(slots))};
}

std::vector<AxisTuple> axes(const Graph&, const Op&) {
  return {{{kRows, kRowEnds, kRowEnds, kWhole, kWhole}, {kRows}},
          {{kWhole, kRowEnds, kRowEnds, kWhole, kWhole}, {kRows}}};
}

TensorId rows_end(const Graph&, const Op& op, size_t) {
  return op.inputs[to_expert(op) ? kSentIn : kCountsIn];
}

void gradient(GradContext& c, OpId) {
  const Op op = c.op();
  if (!c.needs(op.inputs[0])) return;
  std::vector<TensorId> inputs = op.inputs;
  inputs[0] = c.grad(op.outputs[0]);
  Attrs attrs = op.attrs;
  attrs["to"] = to_expert(op) ? "source" : "expert";
  c.add(op.inputs[0], c.graph().out(c.emit("reorder_rows", "dx", inputs, attrs)));
}

template <class T>
void run(const KernelCall<T>& c) {
  const Devices d = devices_of(c.op);
  const RowCut cut(c.op);
  const int64_t place = group_of(c.graph, c.op).place(c.rank.rank), capacity = c.in_shape(0)[1];
  const int64_t width = c.in_shape(0)[2] * static_cast<int64_t>(sizeof(T));
  std::optional<Placement> placement;
  if (c.in_i32(kPlacementIn) != nullptr) placement = placement_in(c, kPlacementIn);
  for (int64_t e = 0; e < attr_int(c.op, "experts"); ++e) {
    const int64_t begin = c.in_i32(kBeginIn) == nullptr ? 0 : c.in_i32(kBeginIn)[e];
    const int64_t end = c.in_i32(kCountsIn)[e];
    const std::vector<RowRange> ranges =
        placement ? share_rows(*placement, e, place, end)
                  : std::vector<RowRange>{{e / d.slots, e % d.slots, 0, end}};
    for (const RowRange& range : ranges) {
      const int64_t first = std::max(begin, range.begin);
      const Rows rows =
          cut.of({first, std::max(first, range.end)}, range.device * d.slots + range.slot + place);
      if (rows.count() == 0) continue;
      const int64_t at_expert = e * capacity + rows.begin;
      const int64_t at_slot =
          d.block(range.device, range.slot) * capacity + rows.begin - range.begin;
      auto* const out = reinterpret_cast<std::byte*>(c.out(0));
      const auto* const in = reinterpret_cast<const std::byte*>(c.in(0));
      c.k.copy_2d(out + (to_expert(c.op) ? at_slot : at_expert) * width, width,
                  in + (to_expert(c.op) ? at_expert : at_slot) * width, width, width, rows.count(),
                  c.stream);
    }
  }
}

}  // namespace

const OpDef kReorderRows = {
    .name = "reorder_rows",
    .doc =
        "moves rows in use from the order of experts to the order in which a two-step exchange "
        "sends them (to=\"expert\") or back (to=\"source\"); attrs nodes, per_node, experts",
    .bound = Bound::kBytes,
    .inputs = {{"rows", Role::kSlots},
               {"counts", Role::kCounts},
               {"sent", Role::kCounts},
               optional("begin", Role::kBegin),
               optional("placement", Role::kPlacement)},
    .outputs = {{"ordered", Role::kSlots}},
    .infer = infer,
    .work = work,
    .gradient = gradient,
    .axes = axes,
    .begins = {{.input = static_cast<int>(kBeginIn), .of_input = static_cast<int>(kCountsIn)}},
    .rows_end = rows_end,
    .partly_written = {0},
    .run_f32 = run<float>,
    .run_f64 = run<double>,
    .run_bf16 = run<kernels::Bf16>,
    .host_inputs = [](const Op&) {
      return std::vector<size_t>{kCountsIn, kBeginIn, kPlacementIn};
    }};

}  // namespace moe::ops
