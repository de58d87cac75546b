// Collectives of activations between ranks that split the products of a layer (tp): gather_rows
// joins what the members of a group hold along an axis, scatter_rows sums over them and gives each
// its part. Each is the gradient of the other (Korthikanti et al. 2022, arXiv 2205.05198, section
// 4.2.2). With attr context = n, the n members hold two parts of the axis each, of 2 n the parts c
// and 2 n - 1 - c, which are put in order (cp). The executor runs both through its Communicator.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

/// Returns the shape of the input with attr axis `gathers` ? multiplied : divided by the members.
Shape changed(const Graph& g, const Op& op, bool gathers) {
  Shape x = expect_matrix(g, op, 0);
  const int64_t members = group_of(g, op).size, axis = attr_int(op, "axis", -1);
  if (axis < 0 || axis >= static_cast<int64_t>(x.size())) {
    throw user_error("op '{}' ({}): attribute 'axis' must be given, 0 to {}", op.name,
                     g.def(op).name, x.size() - 1);
  }
  expect_context(g, op);
  int64_t& length = x[static_cast<size_t>(axis)];
  if (!gathers && length % members != 0) {
    throw user_error(
        "op '{}' (scatter_rows): axis {} (from 0) of '{}' {} must be a multiple of the {} ranks of "
        "the group",
        op.name, axis, arg(g, op, 0).name, shape_text(shape(g, op, 0)), members);
  }
  length = gathers ? length * members : length / members;
  return x;
}

template <bool kGathers>
std::vector<TensorSpec> infer_group_rows(const Graph& g, const Op& op) {
  return {{changed(g, op, kGathers), arg(g, op, 0).dtype}};
}

/// The larger side is the message: a block per member.
template <bool kGathers>
TensorId message(const Op& op) {
  return kGathers ? op.outputs[0] : op.inputs[0];
}

template <bool kGathers>
Work work_group_rows(const Graph& g, const Op& op, const WorkContext&) {
  return {.bytes = static_cast<double>(g.bytes(message<kGathers>(op)))};
}

/// Returns the bytes in which blocks are packed; 0 where the members' are neighbours.
template <bool kGathers>
Bytes scratch_group_rows(const Graph& g, const Op& op, Bytes elem_bytes) {
  int64_t outer = 1;
  for (int64_t a = 0; a < attr_int(op, "axis"); ++a)
    outer *= shape(g, op, 0)[static_cast<size_t>(a)];
  const bool neighbours = outer == 1 && !op.attrs.contains("context");
  return neighbours ? 0 : num_elements(g.tensor(message<kGathers>(op)).shape) * elem_bytes;
}

template <bool kGathers>
void gradient_group_rows(GradContext& c, OpId) {
  const Op op = c.op();
  if (!c.needs(op.inputs[0])) return;
  const Graph& g = c.graph();
  Attrs attrs = group_attrs(group_of(g, op), g.num_ranks);
  for (const char* key : {"axis", "context"}) {
    if (op.attrs.contains(key)) attrs[key] = op.attrs.at(key);
  }
  const OpId dx = c.emit(kGathers ? kScatterRows : kGatherRows, "dx", {c.grad(op.outputs[0])},
                         std::move(attrs));
  c.add(op.inputs[0], g.out(dx));
}

/// Can be cut along the axes before that which it joins or divides.
std::vector<AxisTuple> axes_group_rows(const Graph&, const Op& op) {
  std::vector<AxisTuple> tuples;
  for (int a = 0; a < static_cast<int>(attr_int(op, "axis")); ++a) tuples.push_back({{a}, {a}});
  return tuples;
}

}  // namespace

const OpDef kGatherRows = {
    .name = "gather_rows",
    .doc = "joins the x of the group's ranks along attr axis, in rank order; attrs group, stride",
    .lane = LaneKind::kComm,
    .collective = Collective::kAllGather,
    .payload = Payload::kActivations,
    .inputs = {{"x"}},
    .outputs = {{"y"}},
    .infer = infer_group_rows<true>,
    .work = work_group_rows<true>,
    .gradient = gradient_group_rows<true>,
    .axes = axes_group_rows,
    .scratch_bytes = scratch_group_rows<true>};

const OpDef kScatterRows = {
    .name = "scatter_rows",
    .doc =
        "sums x over the group's ranks, in rank order, and gives each its part along attr axis; "
        "attrs group, stride",
    .lane = LaneKind::kComm,
    .collective = Collective::kReduceScatter,
    .payload = Payload::kActivations,
    .inputs = {{"x"}},
    .outputs = {{"y"}},
    .infer = infer_group_rows<false>,
    .work = work_group_rows<false>,
    .gradient = gradient_group_rows<false>,
    .axes = axes_group_rows,
    .scratch_bytes = scratch_group_rows<false>};

}  // namespace moe::ops
