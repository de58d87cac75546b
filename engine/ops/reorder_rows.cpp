// reorder_rows moves the rows in use from the order of experts to the order in which a two-step
// exchange sends them, or back. With a placement it also sorts them by the slots that hold their
// expert.
#include "engine/ops/defs.h"
#include "engine/ops/placed.h"
#include "engine/ops/stored_rows.h"

namespace moe::ops {
namespace {

constexpr size_t kRowCounts = 1, kSentIn = 2, kRowBegin = 3, kPlacementIn = 4;

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

std::vector<TensorSpec> infer_reorder_rows(const Graph& g, const Op& op) {
  const Devices d = devices_of(op);
  const int64_t experts = expect_attr(op, "experts", 1);
  const int64_t blocks = d.nodes * d.per_node * d.slots;
  expect_shape(g, op, 0, {op.rows.to_expert() ? experts : blocks, kAny, kAny});
  expect_row_ends(g, op, kRowCounts, {experts});
  expect_row_ends(g, op, kSentIn, {blocks});
  expect_row_ends(g, op, kRowBegin, {experts});
  if (has(op, kPlacementIn)) expect_placement(g, op, kPlacementIn, bounds_of(op));
  Shape out = shape(g, op, 0);
  out[0] = op.rows.to_expert() ? blocks : experts;
  return {rows_like(arg(g, op, 0), out)};
}

/// Each row in use is read once and written once.
Work work_reorder_rows(const Graph& g, const Op& op, const WorkContext& context) {
  const TensorId slots = op.rows.to_expert() ? op.inputs[0] : op.outputs[0];
  return {.bytes = 2 * context.slot_occupancy * share_of(op) * static_cast<double>(g.bytes(slots))};
}

std::vector<AxisTuple> axes_reorder_rows(const Graph&, const Op&) {
  return {{{kRows, kRowEnds, kRowEnds, kWhole, kWhole}, {kRows}},
          {{kWhole, kRowEnds, kRowEnds, kWhole, kWhole}, {kRows}}};
}

TensorId rows_end_reorder_rows(const Graph&, const Op& op, size_t) {
  return op.inputs[op.rows.to_expert() ? kSentIn : kRowCounts];
}

void gradient_reorder_rows(GradContext& c, OpId) {
  const Op op = c.op();
  if (!c.needs(op.inputs[0])) return;
  std::vector<TensorId> inputs = op.inputs;
  inputs[0] = c.grad(op.outputs[0]);
  Attrs attrs = all_attrs(op);
  attrs["to"] = op.rows.to_expert() ? "source" : "expert";
  c.add(op.inputs[0], c.graph().out(c.emit("reorder_rows", "dx", inputs, attrs)));
}

/// Rows of one expert that go to one slot: `at_slot` is their first row in the slot's block.
struct Moved {
  int64_t expert, block, slot_and_source;
  Rows at_expert;
  int64_t at_slot;
};

/// Returns which rows [begins, ends) of each expert go to which slot.
template <class T>
std::vector<Moved> moved_rows(const KernelCall<T>& c, const Devices& d, const int32_t* ends,
                              const int32_t* begins) {
  const int64_t place = group_of(c.graph, c.op).place(c.rank.rank);
  std::optional<Placement> placement;
  if (c.in_i32(kPlacementIn) != nullptr) placement = placement_in(c, kPlacementIn);
  std::vector<Moved> moved;
  for (int64_t e = 0; e < attr_int(c.op, "experts"); ++e) {
    const int64_t begin = begins == nullptr ? 0 : begins[e], end = ends[e];
    const std::vector<RowRange> ranges =
        placement ? share_rows(*placement, e, place, end)
                  : std::vector<RowRange>{{e / d.slots, e % d.slots, 0, end}};
    for (const RowRange& range : ranges) {
      const int64_t first = std::max(begin, range.begin);
      moved.push_back({e,
                       d.block(range.device, range.slot),
                       range.device * d.slots + range.slot + place,
                       {first, std::max(first, range.end)},
                       first - range.begin});
    }
  }
  return moved;
}

/// Copies the rows of one part of the batch.
template <class T>
void move_part(const KernelCall<T>& c, const Devices& d, const int32_t* ends,
               const int32_t* begins) {
  const bool packed = arg(c.graph, c.op, 0).stored_rows > 0;
  const int64_t capacity = c.in_shape(0)[1], experts = attr_int(c.op, "experts");
  const int64_t width = c.in_shape(0)[2] * static_cast<int64_t>(sizeof(T));
  const int64_t num_blocks = d.nodes * d.per_node * d.slots;
  const std::vector<Moved> moved = moved_rows(c, d, ends, begins);
  std::vector<int32_t> slot_begins(static_cast<size_t>(num_blocks)), slot_ends = slot_begins;
  for (const Moved& m : moved) {
    slot_begins[static_cast<size_t>(m.block)] = static_cast<int32_t>(m.at_slot);
    slot_ends[static_cast<size_t>(m.block)] = static_cast<int32_t>(m.at_slot + m.at_expert.count());
  }
  const auto at_experts = stored_blocks({experts, capacity, 1, packed}, ends, begins);
  const auto at_slots =
      stored_blocks({num_blocks, capacity, 1, packed}, slot_ends.data(), slot_begins.data());
  const RowCut cut(c.op);
  for (const Moved& m : moved) {
    const Rows rows = cut.of(m.at_expert, m.slot_and_source);
    if (rows.count() == 0) continue;
    const int64_t expert_row = at_experts[static_cast<size_t>(m.expert)].row_0 + rows.begin;
    const int64_t slot_row =
        at_slots[static_cast<size_t>(m.block)].row_0 + m.at_slot + rows.begin - m.at_expert.begin;
    auto* const out = reinterpret_cast<std::byte*>(c.out(0));
    const auto* const in = reinterpret_cast<const std::byte*>(c.in(0));
    c.k.copy_2d(out + (c.op.rows.to_expert() ? slot_row : expert_row) * width, width,
                in + (c.op.rows.to_expert() ? expert_row : slot_row) * width, width, width,
                rows.count(), c.stream);
  }
}

constexpr auto run_reorder_rows = []<class T>(const KernelCall<T>& c) {
  const Devices d = devices_of(c.op);
  const int64_t experts = attr_int(c.op, "experts");
  const int32_t *ends = c.in_i32(kRowCounts), *begins = c.in_i32(kRowBegin);
  for (int64_t part = 0; part < num_elements(c.in_shape(kRowCounts)) / experts; ++part) {
    move_part(c, d, ends, begins);
    begins = ends;
    ends += experts;
  }
};

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
    .infer = infer_reorder_rows,
    .work = work_reorder_rows,
    .gradient = gradient_reorder_rows,
    .axes = axes_reorder_rows,
    .begins = {{.input = static_cast<int>(kRowBegin), .of_input = static_cast<int>(kRowCounts)}},
    .rows_end = rows_end_reorder_rows,
    .only_used_rows = on_any,
    .partly_written = {0},
    .run = any_type(run_reorder_rows),
    .host_inputs = [](const Op&) {
      return std::vector<size_t>{kRowCounts, kRowBegin, kPlacementIn};
    }};

}  // namespace moe::ops
