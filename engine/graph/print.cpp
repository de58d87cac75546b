#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/graph/text.h"

namespace moe {
namespace {

std::string attr_text(const AttrValue& value) {
  if (const auto* i = std::get_if<int64_t>(&value)) return fmt::format("{}", *i);
  if (const auto* d = std::get_if<double>(&value)) {
    std::string text = fmt::format("{}", *d);
    if (text.find_first_of(".einf") == std::string::npos) text += ".0";
    return text;
  }
  std::string text = "\"";
  for (const char c : std::get<std::string>(value)) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + '"';
}

std::string id_text(TensorId id) {
  return id.valid() ? fmt::format("%{}", id.value) : "_";
}

/// The flags of a tensor's Held, each after a space.
std::string held_text(const Held& held) {
  std::string text = held.moe ? " expert" : "";
  if (held.split >= 0) text += fmt::format(" split_axis={}", held.split);
  if (held.blocks > 1) text += fmt::format(" blocks={}", held.blocks);
  if (held.same > 1) text += fmt::format(" same={}", held.same);
  return text;
}

std::string output_text(const Graph& graph, const Op& op, size_t i) {
  const Tensor& tensor = graph.tensor(op.outputs[i]);
  std::string text = id_text(op.outputs[i]);
  text += held_text(tensor.held);
  if (tensor.kind != usual_tensor_kind(op.phase)) text += fmt::format(" {}", name_of(tensor.kind));
  if (tensor.name != output_name(op.name, i)) text += fmt::format(" as {}", tensor.name);
  return text;
}

std::string op_text(const Graph& graph, const Op& op) {
  std::string text;
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    text += (i > 0 ? ", " : "") + output_text(graph, op, i);
  }
  text += fmt::format("{}{}(", op.outputs.empty() ? "" : " = ", graph.def(op).name);
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    text += (i > 0 ? ", " : "") + id_text(op.inputs[i]);
  }
  text += ")";
  if (const Attrs attrs = all_attrs(op); !attrs.empty()) {
    const char* before = " {";
    for (const auto& [key, value] : attrs) {
      text += fmt::format("{}{}={}", before, key, attr_text(value));
      before = ", ";
    }
    text += "}";
  }
  text += fmt::format(" {} {} {}", op.name, name_of(op.phase), name_of(op.segment));
  if (op.layer >= 0) text += fmt::format(" layer={}", op.layer);
  if (op.part >= 0) text += fmt::format(" part={}", op.part);
  if (op.micro > 0) text += fmt::format(" micro={}", op.micro);
  if (op.pipeline_rank > 0) text += fmt::format(" pp={}", op.pipeline_rank);
  if (op.is_dw) text += " dw";
  if (op.of.valid()) text += fmt::format(" of={}", id_text(op.of));
  return text;
}

}  // namespace

std::string print(const Graph& graph) {
  std::string text = fmt::format("graph {} ranks={}\n", graph.name, graph.num_ranks);
  const std::vector<OpId> producers = graph.producers();
  for (size_t t = 0; t < graph.tensors().size(); ++t) {
    if (producers[t].valid()) continue;
    const Tensor& tensor = graph.tensors()[t];
    text += fmt::format("%{} {} {} {} {}{}\n", t, name_of(tensor.kind), name_of(tensor.dtype),
                        shape_text(tensor.shape), tensor.name, held_text(tensor.held));
  }
  for (const Op& op : graph.ops()) {
    if (op.kind.valid()) text += op_text(graph, op) + "\n";
  }
  return text;
}

}  // namespace moe
