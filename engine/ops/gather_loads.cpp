// What every rank needs before rows are sent to experts under a placement: gather_loads collects
// how many rows each source rank has for each expert; slot_rows computes how many of these rows
// each slot of this device gets.
#include <algorithm>

#include "engine/ops/defs.h"
#include "engine/ops/placed.h"

namespace moe::ops {

PlacementBounds bounds_of(const Op& op) {
  const PlacementBounds bounds = {.experts = expect_attr(op, "experts", 1),
                                  .devices = expect_attr(op, "devices", 1),
                                  .residents = expect_attr(op, "residents", 1),
                                  .shadows = expect_attr(op, "shadows", 0),
                                  .weighted = attr_int(op, "weighted") != 0};
  try {
    check(bounds);
  } catch (const UserError& error) {
    throw user_error("op '{}': {}", op.name, error.what());
  }
  return bounds;
}

Attrs bounds_attrs(const PlacementBounds& bounds) {
  return {{"experts", bounds.experts},
          {"devices", bounds.devices},
          {"residents", bounds.residents},
          {"shadows", bounds.shadows},
          {"weighted", int64_t{bounds.weighted}}};
}

void expect_placement(const Graph& graph, const Op& op, size_t i, const PlacementBounds& bounds) {
  expect_index(graph, op, i, {Placement::code_size(bounds)});
}

namespace {

std::vector<TensorSpec> infer(const Graph& g, const Op& op) {
  expect_index(g, op, 0, {kAny});
  return {{{group_of(g, op).size, shape(g, op, 0)[0]}, DType::kI32}};
}

/// A rank receives the counts of all ranks, and sends as many bytes.
Work work(const Graph& g, const Op& op, const WorkContext&) {
  return {.bytes = static_cast<double>(g.bytes(op.outputs[0]))};
}

std::vector<AxisTuple> axes(const Graph&, const Op&) {
  return {{{kRowEnds}, {kRowEnds}}};
}

std::vector<TensorSpec> infer_rows(const Graph& g, const Op& op) {
  const PlacementBounds bounds = bounds_of(op);
  expect_index(g, op, 0, {bounds.devices, bounds.experts});
  expect_placement(g, op, 1, bounds);
  return {{{bounds.slots(), bounds.devices}, DType::kI32}};
}

Work work_rows(const Graph& g, const Op& op, const WorkContext&) {
  return {.bytes = io_bytes(g, op)};
}

std::vector<AxisTuple> axes_rows(const Graph&, const Op&) {
  return {{{kRowEnds, kWhole}, {kRowEnds}}};
}

/// Throws UserError unless every expert of the placement has Sharing::kLocal: all rows that a
/// source rank has for it go to one device. If they were shared among devices, a device's rows of
/// one part of a batch would not be contiguous.
void check_part(const Op& op, const Placement& placement) {
  for (int64_t e = 0; e < placement.bounds().experts; ++e) {
    if (placement.sharing(e) == Sharing::kLocal) continue;
    throw user_error(
        "placement: rows that one source rank has for expert {} are shared among several devices, "
        "but the batch is cut into parts (op '{}'); with parts, only sharing 'local' is allowed",
        e, op.name);
  }
}

template <class T>
void run_rows(const KernelCall<T>& c) {
  const Placement placement = placement_in(c, 1);
  if (is_part(c.op)) check_part(c.op, placement);
  const PlacementBounds& b = placement.bounds();
  const int64_t device = group_of(c.graph, c.op).place(c.rank.rank);
  int32_t* const rows = c.out_i32(0);
  std::fill_n(rows, b.slots() * b.devices, 0);
  for (int64_t s = 0; s < b.slots(); ++s) {
    const int64_t expert = placement.at(device, s);
    if (expert < 0) continue;
    for (int64_t source = 0; source < b.devices; ++source) {
      const int64_t all = c.in_i32(0)[source * b.experts + expert];
      for (const RowRange& range : share_rows(placement, expert, source, all)) {
        if (range.device != device) continue;
        rows[s * b.devices + source] = static_cast<int32_t>(range.end - range.begin);
      }
    }
  }
}

}  // namespace

const OpDef kGatherLoads = {.name = "gather_loads",
                            .doc = "sends every rank's counts to all ranks; attrs group, stride",
                            .lane = LaneKind::kComm,
                            .collective = Collective::kAllToAll,
                            .payload = Payload::kLoads,
                            .inputs = {{"counts", Role::kCounts}},
                            .outputs = {{"loads", Role::kLoads}},
                            .infer = infer,
                            .work = work,
                            .axes = axes};

const OpDef kSlotRows = {
    .name = "slot_rows",
    .doc =
        "number of rows that each slot of this device gets from each source rank under a placement",
    .moe = MoeOp::kSlotRows,
    .inputs = {{"loads", Role::kLoads}, {"placement", Role::kPlacement}},
    .outputs = {{"rows", Role::kRecvCounts}},
    .infer = infer_rows,
    .work = work_rows,
    .axes = axes_rows,
    .run_f32 = run_rows<float>,
    .run_f64 = run_rows<double>,
    .on_host = always};

}  // namespace moe::ops
