// What every rank needs before rows are sent to experts under a placement: gather_loads collects
// how many rows each source rank has for each expert; slot_rows computes how many of these rows
// each slot of this device gets.
#include <algorithm>
#include <functional>

#include "engine/ops/defs.h"
#include "engine/ops/placed.h"

namespace moe::ops {

PlacementBounds bounds_of(const Op& op) {
  const PlacementBounds bounds = {.experts = expect_attr(op, "experts", 1),
                                  .devices = expect_attr(op, "devices", 1),
                                  .residents = expect_attr(op, "residents", 1),
                                  .shadows = expect_attr(op, "shadows", 0),
                                  .weighted = attr_int(op, "weighted") != 0,
                                  .by_source = attr_int(op, "by_source") != 0};
  try {
    check(bounds);
  } catch (const UserError& error) {
    throw user_error("op '{}': {}", op.name, error.what());
  }
  return bounds;
}

Attrs bounds_attrs(const PlacementBounds& bounds) {
  Attrs attrs = {{"experts", bounds.experts},
                 {"devices", bounds.devices},
                 {"residents", bounds.residents},
                 {"shadows", bounds.shadows},
                 {"weighted", int64_t{bounds.weighted}}};
  if (bounds.by_source) attrs["by_source"] = int64_t{1};
  return attrs;
}

void expect_placement(const Graph& graph, const Op& op, size_t i, const PlacementBounds& bounds) {
  expect_index(graph, op, i, {Placement::code_size(bounds)});
}

namespace {

std::vector<TensorSpec> infer_gather_loads(const Graph& g, const Op& op) {
  expect_index(g, op, 0, {kAny});
  return {{{group_of(g, op).size, shape(g, op, 0)[0]}, DType::kI32}};
}

/// A rank receives the counts of all ranks, and sends as many bytes.
Work work_gather_loads(const Graph& g, const Op& op, const WorkContext&) {
  return {.bytes = static_cast<double>(g.bytes(op.outputs[0]))};
}

std::vector<AxisTuple> axes_gather_loads(const Graph&, const Op&) {
  return {{{kRowEnds}, {kRowEnds}}};
}

/// What slot_rows counts, in an exchange of n nodes of m devices with L slots each (attr of).
enum class Of : uint8_t {
  kReceived,  // [L,P]: of each source, for each slot of this device
  kSent,      // [m*n*L]: of this device, for each slot, by place in the node, then node, then slot
  kInNode,    // [n*L,m]: of each device of this node, for the devices at this place in all nodes
};

Of of(const Op& op) {
  const std::string what = attr_string(op, "of", "received");
  if (what == "received") return Of::kReceived;
  if (what == "sent") return Of::kSent;
  if (what == "in_node") return Of::kInNode;
  throw user_error("op '{}': attribute 'of' is '{}', allowed: received, sent, in_node", op.name,
                   what);
}

std::vector<TensorSpec> infer_rows_gather_loads(const Graph& g, const Op& op) {
  const PlacementBounds bounds = bounds_of(op);
  expect_index(g, op, 0, {g.num_ranks, bounds.experts});
  expect_placement(g, op, 1, bounds);
  if (of(op) == Of::kReceived) return {{{bounds.slots(), bounds.devices}, DType::kI32}};
  const int64_t nodes = expect_attr(op, "nodes", 1);
  if (of(op) == Of::kSent) return {{{bounds.devices * bounds.slots()}, DType::kI32}};
  return {{{nodes * bounds.slots(), bounds.devices / nodes}, DType::kI32}};
}

std::vector<AxisTuple> axes_rows(const Graph&, const Op&) {
  return {{{kRowEnds, kWhole}, {kRowEnds}}};
}

/// Throws UserError unless all rows that a source rank has for an expert go to one device. If they
/// were shared among devices, a device's rows of one part of a batch would not be contiguous.
void check_part(const Op& op, const Placement& placement) {
  if (placement.bounds().by_source) return;
  for (int64_t e = 0; e < placement.bounds().experts; ++e) {
    if (placement.sharing(e) == Sharing::kLocal) continue;
    throw user_error(
        "placement: rows that one source rank has for expert {} are shared among several devices, "
        "but the batch is cut into parts (op '{}'); with parts, attribute 'by_source' = 1 or "
        "sharing 'local' is needed",
        e, op.name);
  }
}

constexpr auto run_rows_gather_loads = []<class T>(const KernelCall<T>& c) {
  const Placement placement = placement_in(c, 1);
  if (is_part(c.op)) check_part(c.op, placement);
  const PlacementBounds& b = placement.bounds();
  const Group group = group_of(c.graph, c.op);
  const int64_t me = group.place(c.rank.rank), slots = b.slots();
  const int64_t nodes = attr_int(c.op, "nodes", 1), per_node = b.devices / nodes;
  const Of what = of(c.op);
  const int64_t first_source = what == Of::kReceived ? 0
                               : what == Of::kSent   ? me
                                                     : me - me % per_node;
  const int64_t sources = what == Of::kReceived ? b.devices : what == Of::kSent ? 1 : per_node;
  int32_t* const rows = c.out_i32(0);
  std::fill_n(rows, num_elements(c.out_shape(0)), 0);
  for (int64_t source = first_source; source < first_source + sources; ++source) {
    const int32_t* const of_source = c.in_i32(0) + group.member(c.rank.rank, source) * b.experts;
    for (int64_t e = 0; e < b.experts; ++e) {
      const int64_t all = of_source[e];
      for (const RowRange& range : share_rows(placement, e, source, all)) {
        const int64_t node = range.device / per_node, place = range.device % per_node;
        if (what == Of::kReceived && range.device != me) continue;
        if (what == Of::kInNode && place != me % per_node) continue;
        const int64_t slot = what == Of::kReceived ? range.slot
                             : what == Of::kSent   ? (place * nodes + node) * slots + range.slot
                                                   : node * slots + range.slot;
        rows[slot * sources + source - first_source] =
            static_cast<int32_t>(range.end - range.begin);
      }
    }
  }
};

std::vector<TensorSpec> infer_add(const Graph& g, const Op& op) {
  expect_index(g, op, 0, {kAny, kAny});
  expect_index(g, op, 1, shape(g, op, 0));
  return {{shape(g, op, 0), DType::kI32}};
}

Work work_add(const Graph& g, const Op& op, const WorkContext&) {
  return {.bytes = io_bytes(g, op)};
}

constexpr auto run_add = []<class T>(const KernelCall<T>& c) {
  const int32_t *const a = c.in_i32(0), *const b = c.in_i32(1);
  std::transform(a, a + num_elements(c.in_shape(0)), b, c.out_i32(0), std::plus());
};

}  // namespace

const OpDef kAddLoads = {.name = "add_loads",
                         .doc = "the loads of two micro-batches together",
                         .basic = BasicOp::kAddLoads,
                         .inputs = {{"a", Role::kLoads}, {"b", Role::kLoads}},
                         .outputs = {{"loads", Role::kLoads}},
                         .infer = infer_add,
                         .work = work_add,
                         .gradient = no_gradient,
                         .may_alias = {{0, 0}},
                         .run = wide_types(run_add),
                         .on_host = always};

const OpDef kGatherLoads = {.name = "gather_loads",
                            .doc = "sends every rank's counts to all ranks; attrs group, stride",
                            .lane = LaneKind::kComm,
                            .collective = Collective::kAllToAll,
                            .payload = Payload::kLoads,
                            .inputs = {{"counts", Role::kCounts}},
                            .outputs = {{"loads", Role::kLoads}},
                            .infer = infer_gather_loads,
                            .work = work_gather_loads,
                            .gradient = no_gradient,
                            .axes = axes_gather_loads};

const OpDef kSlotRows = {
    .name = "slot_rows",
    .doc =
        "number of rows that each slot gets from each source rank of the group under a placement; "
        "attrs group, stride; attr of: received (default), sent, in_node",
    .moe = MoeOp::kSlotRows,
    .inputs = {{"loads", Role::kLoads}, {"placement", Role::kPlacement}},
    .outputs = {{"rows", Role::kRecvCounts}},
    .infer = infer_rows_gather_loads,
    .work = work_moves,
    .gradient = no_gradient,
    .axes = axes_rows,
    .run = wide_types(run_rows_gather_loads),
    .on_host = always};

}  // namespace moe::ops
