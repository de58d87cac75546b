#include "engine/graph/graph.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/graph/op_def.h"

namespace moe {

Bytes dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kF32:
      return 4;
    case DType::kF64:
      return 8;
    case DType::kI32:
      return 4;
  }
  return 0;
}

Bytes dtype_bytes(DType dtype, Bytes element_bytes) {
  const bool sized = element_bytes > 0 && dtype != DType::kF64 && dtype != DType::kI32;
  return sized ? element_bytes : dtype_bytes(dtype);
}

int64_t num_elements(const Shape& shape) {
  int64_t n = 1;
  for (const int64_t length : shape) n *= length;
  return n;
}

std::string shape_text(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

const OpDef& Graph::def(OpId id) const {
  return def(op(id));
}
const OpDef& Graph::def(const Op& op) const {
  return table_->def(op.kind);
}

TensorId Graph::add_tensor(Tensor tensor) {
  auto bytes = static_cast<double>(dtype_bytes(tensor.dtype));
  for (const int64_t length : tensor.shape) bytes *= static_cast<double>(length);
  check_bytes(bytes, [&] {
    return fmt::format("tensor '{}' {} {}", tensor.name, name_of(tensor.dtype),
                       shape_text(tensor.shape));
  });
  tensors_.push_back(std::move(tensor));
  return TensorId(static_cast<int64_t>(tensors_.size()) - 1);
}

void Graph::truncate(size_t num_ops, size_t num_tensors) {
  ops_.resize(std::min(num_ops, ops_.size()));
  tensors_.resize(std::min(num_tensors, tensors_.size()));
}

OpId Graph::append(Op op) {
  ops_.push_back(std::move(op));
  return OpId(static_cast<int64_t>(ops_.size()) - 1);
}

OpId Graph::add_op(std::string_view kind, std::string name, std::vector<TensorId> inputs,
                   Attrs attrs, Phase phase) {
  Op op;
  op.name = std::move(name);
  op.kind = table_->kind(kind);
  op.inputs = std::move(inputs);
  op.rows = take_row_use(attrs, op.name);
  op.attrs = std::move(attrs);
  op.phase = phase;
  check_inputs(*this, op);
  std::vector<TensorSpec> specs = def(op).infer(*this, op);
  check_made(*this, op, specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    op.outputs.push_back(add_tensor({.name = output_name(op.name, i),
                                     .shape = std::move(specs[i].shape),
                                     .dtype = specs[i].dtype,
                                     .kind = usual_tensor_kind(phase),
                                     .stored_rows = specs[i].stored_rows}));
  }
  return append(std::move(op));
}

OpId Graph::add_op(const OpDef& def, std::string name, std::vector<TensorId> inputs, Attrs attrs,
                   Phase phase) {
  return add_op(std::string_view(def.name), std::move(name), std::move(inputs), std::move(attrs),
                phase);
}

OpId Graph::find_op(std::string_view name) const {
  for (size_t i = 0; i < ops_.size(); ++i) {
    if (ops_[i].kind.valid() && ops_[i].name == name) return OpId(static_cast<int64_t>(i));
  }
  return {};
}

TensorId Graph::find_tensor(std::string_view name) const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].name == name) return TensorId(static_cast<int64_t>(i));
  }
  return {};
}

std::vector<OpId> Graph::producers() const {
  std::vector<OpId> producers(tensors_.size());
  for (size_t i = 0; i < ops_.size(); ++i) {
    if (!ops_[i].kind.valid()) continue;
    for (const TensorId t : ops_[i].outputs) producers[t.index()] = OpId(static_cast<int64_t>(i));
  }
  return producers;
}

int64_t stored_elements(const Tensor& tensor) {
  if (tensor.stored_rows == 0) return num_elements(tensor.shape);
  // An index tensor has one element per row.
  return tensor.stored_rows * (tensor.dtype == DType::kI32 ? 1 : tensor.shape.back());
}

Bytes Graph::bytes(TensorId id) const {
  const Tensor& t = tensor(id);
  return num_elements(t.shape) * dtype_bytes(t.dtype);
}

namespace {

const AttrValue* find_attr(const Op& op, std::string_view key) {
  for (const auto& [name, value] : op.attrs) {
    if (name == key) return &value;
  }
  return nullptr;
}

}  // namespace

Attrs all_attrs(const Op& op) {
  Attrs attrs = attrs_of(op.rows);
  attrs.insert(op.attrs.begin(), op.attrs.end());
  return attrs;
}

int64_t attr_int(const Op& op, std::string_view key, int64_t default_value) {
  const AttrValue* value = find_attr(op, key);
  if (value == nullptr) return default_value;
  if (const auto* number = std::get_if<int64_t>(value)) return *number;
  throw user_error("op '{}': attribute '{}' has a value of another type, allowed: an integer",
                   op.name, key);
}

double attr_double(const Op& op, std::string_view key, double default_value) {
  const AttrValue* value = find_attr(op, key);
  if (value == nullptr) return default_value;
  if (const auto* number = std::get_if<double>(value)) return *number;
  if (const auto* number = std::get_if<int64_t>(value)) return static_cast<double>(*number);
  throw user_error("op '{}': attribute '{}' has a value of another type, allowed: a number",
                   op.name, key);
}

std::string attr_string(const Op& op, std::string_view key, std::string default_value) {
  const AttrValue* value = find_attr(op, key);
  if (value == nullptr) return default_value;
  if (const auto* text = std::get_if<std::string>(value)) return *text;
  throw user_error("op '{}': attribute '{}' has a value of another type, allowed: a string",
                   op.name, key);
}

}  // namespace moe
