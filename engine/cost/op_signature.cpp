#include <charconv>
#include <string>

#include "engine/cost/cost_model.h"

namespace moe {
namespace {

template <class Number>
void append_number(std::string& text, Number value) {
  char digits[32];
  text.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

void append_tensor(std::string& text, const Graph& graph, TensorId id) {
  text += ' ';
  if (!id.valid()) {
    text += '_';
    return;
  }
  const Tensor& tensor = graph.tensor(id);
  text += name_of(tensor.dtype);
  char separator = '[';
  for (const int64_t length : tensor.shape) {
    text += separator;
    append_number(text, length);
    separator = ',';
  }
  if (tensor.shape.empty()) text += '[';
  text += ']';
  if (tensor.stored_rows == 0) return;
  text += '/';
  append_number(text, tensor.stored_rows);
}

void append_value(std::string& text, const AttrValue& value) {
  if (const auto* word = std::get_if<std::string>(&value)) {
    text += '"';
    text += *word;
    text += '"';
  } else if (const auto* number = std::get_if<int64_t>(&value)) {
    append_number(text, *number);
  } else {
    append_number(text, std::get<double>(value));
  }
}

}  // namespace

std::string op_signature(const Graph& graph, OpId id) {
  const Op& op = graph.op(id);
  std::string text = graph.def(op).name;
  text.reserve(192);
  text += " ranks=";
  append_number(text, graph.num_ranks);
  for (const TensorId t : op.inputs) append_tensor(text, graph, t);
  text += " ->";
  for (const TensorId t : op.outputs) append_tensor(text, graph, t);
  for (const auto& [name, value] : all_attrs(op)) {
    if (name == "first_token") continue;  // the place of a part does not affect its time
    text += ' ';
    text += name;
    text += '=';
    append_value(text, value);
  }
  return text;
}

bool work_follows_occupancy(const Graph& graph, OpId id) {
  const OpDef& def = graph.def(id);
  if (def.work == nullptr) return false;
  const Work sparse = def.work(graph, graph.op(id), {.slot_occupancy = 0.25});
  const Work full = def.work(graph, graph.op(id), {.slot_occupancy = 1.0});
  return sparse.flops != full.flops || sparse.bytes != full.bytes;
}

}  // namespace moe
