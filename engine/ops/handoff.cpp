// What crosses pipeline ranks: a rank and the rank at its place in another pipeline rank do these
// ops together (schedule/join.h). An activation that one sends the other receives, and its gradient
// goes the other way.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

constexpr int kMaxTensorsHandoff = 2;  // of both ranks

Work work_handoff(const Graph& g, const Op& op, const WorkContext&) {
  const std::vector<TensorId>& tensors = op.outputs.empty() ? op.inputs : op.outputs;
  return {.bytes = static_cast<double>(g.bytes(tensors[0]))};
}

std::vector<TensorSpec> infer_send(const Graph&, const Op&) {
  return {};
}

std::vector<TensorSpec> infer_receive(const Graph& g, const Op& op) {
  if (has(op, 0)) return {{shape(g, op, 0), arg(g, op, 0).dtype, arg(g, op, 0).stored_rows}};
  const auto dtype = find_named<DType>(attr_string(op, "dtype"));
  if (!dtype) {
    throw user_error("op '{}': attribute 'dtype' is '{}', must be a type of numbers", op.name,
                     attr_string(op, "dtype"));
  }
  Shape shape;
  for (int64_t axis = 0; axis < expect_attr(op, "axes", 1); ++axis) {
    shape.push_back(expect_attr(op, fmt::format("length{}", axis), 1));
  }
  return {{std::move(shape), *dtype}};
}

std::vector<TensorSpec> infer_sum_handoff(const Graph& g, const Op& op) {
  std::vector<TensorSpec> specs;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    specs.push_back({expect_matrix(g, op, i, 1), arg(g, op, i).dtype});
  }
  return specs;
}

/// The attributes of an op that receives what goes the other way than `op`.
Attrs back(const Op& op) {
  return {{"what", attr_string(op, "what")},
          {"from_stage", attr_int(op, "to_stage")},
          {"to_stage", attr_int(op, "from_stage")}};
}

void gradient_of_send(GradContext& c, OpId) {
  const TensorId sent = c.op().inputs[0];
  if (!c.needs(sent)) return;
  Attrs attrs = back(c.op());
  const Attrs like = like_attrs(c.graph().tensor(sent));
  attrs.insert(like.begin(), like.end());
  c.add(sent, c.graph().out(c.emit("receive", "dx", {}, attrs)));
}

void gradient_of_receive(GradContext& c, OpId) {
  c.emit("send", "dx", {c.grad(c.op().outputs[0])}, back(c.op()));
}

}  // namespace

const OpDef kSend = {
    .name = "send",
    .doc =
        "sends a tensor from one stage of a pipeline to the next, or its gradient back; attrs "
        "what, from_stage, to_stage",
    .lane = LaneKind::kComm,
    .collective = Collective::kHandoff,
    .payload = Payload::kHandoff,
    .inputs = {{"sent", Role::kAny}},
    .infer = infer_send,
    .work = work_handoff,
    .gradient = gradient_of_send};

const OpDef kReceive = {.name = "receive",
                        .doc =
                            "receives what another stage sends; attrs what, from_stage, to_stage, "
                            "dtype, axes, length0, ...; in the graph of all pipeline ranks also "
                            "the sent tensor",
                        .lane = LaneKind::kComm,
                        .collective = Collective::kHandoff,
                        .payload = Payload::kHandoff,
                        .inputs = {optional("sent", Role::kAny)},
                        .outputs = {{"received", Role::kAny}},
                        .infer = infer_receive,
                        .work = work_handoff,
                        .gradient = gradient_of_receive};

const OpDef kSumCopies = {
    .name = "sum_copies",
    .doc =
        "sums the gradients of a parameter that two stages hold, that of the first stage first; "
        "attrs what, from_stage, to_stage",
    .lane = LaneKind::kComm,
    .collective = Collective::kHandoff,
    .payload = Payload::kHandoff,
    .inputs = {several("gradients", kMaxTensorsHandoff)},
    .outputs = {several("sums", kMaxTensorsHandoff)},
    .infer = infer_sum_handoff,
    .work = work_handoff,
    .gradient = no_gradient};

}  // namespace moe::ops

namespace moe {

Attrs like_attrs(const Tensor& tensor) {
  Attrs attrs = {{"dtype", std::string(name_of(tensor.dtype))}, {"axes", std::ssize(tensor.shape)}};
  for (size_t axis = 0; axis < tensor.shape.size(); ++axis) {
    attrs[fmt::format("length{}", axis)] = tensor.shape[axis];
  }
  return attrs;
}

}  // namespace moe
