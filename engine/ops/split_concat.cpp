// split cuts a tensor along an axis; concat joins parts. With attr view=1 the parts are inside the
// whole's storage, and nothing is copied.
#include <algorithm>
#include <charconv>
#include <numeric>

#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

size_t axis_of_split_concat(const Graph& g, const Op& op) {
  const auto axis = static_cast<size_t>(expect_attr(op, "axis", 0));
  const Shape& x = shape(g, op, 0);
  if (axis >= x.size()) {
    throw user_error(
        "op '{}' ({}): attribute 'axis' = {}, allowed: an axis of '{}' {}, counted from 0", op.name,
        g.def(op).name, axis, arg(g, op, 0).name, shape_text(x));
  }
  return axis;
}

bool view(const Op& op) {
  return attr_int(op, "view") != 0;
}

/// Throws UserError unless attr view is 0, or 1 with each part contiguous in memory.
void check_view(const Op& op, const Tensor& whole, size_t axis) {
  const int64_t value = attr_int(op, "view");
  if (value != 0 && value != 1) {
    throw user_error("op '{}': attribute 'view' = {}, allowed: 0 or 1", op.name, value);
  }
  const auto end = whole.shape.begin() + static_cast<std::ptrdiff_t>(axis);
  if (value == 0 || std::all_of(whole.shape.begin(), end, [](int64_t n) { return n == 1; })) return;
  throw user_error(
      "op '{}': attribute 'view' = 1 for axis {} of '{}' {} is not allowed; all axes before it "
      "must have length 1, so that each part is contiguous",
      op.name, axis, whole.name, shape_text(whole.shape));
}

/// Returns attr sizes as numbers: "4,4" -> {4, 4}. Throws UserError for other strings.
std::vector<int64_t> parse_sizes(const Op& op) {
  const std::string text = attr_string(op, "sizes");
  std::vector<int64_t> sizes;
  const char* at = text.data();
  const char* end = at + text.size();
  bool good = true;
  while (good) {
    int64_t size = 0;
    const auto [next, error] = std::from_chars(at, end, size);
    good = error == std::errc() && size > 0;
    sizes.push_back(size);
    at = next;
    if (at == end || *at != ',') break;
    ++at;
  }
  if (!good || at != end) {
    throw user_error(
        "op '{}' (split): attribute 'sizes' is '{}', allowed: lengths of 1 or more such as \"4,4\"",
        op.name, text);
  }
  return sizes;
}

std::vector<TensorSpec> infer_split_split_concat(const Graph& g, const Op& op) {
  const size_t axis = axis_of_split_concat(g, op);
  const std::vector<int64_t> sizes = parse_sizes(op);
  check_view(op, arg(g, op, 0), axis);
  Shape part = shape(g, op, 0);
  if (std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) != part[axis]) {
    throw user_error(
        "op '{}' (split): the sum of attribute 'sizes' = '{}' is not the length of axis {} of '{}' "
        "{}",
        op.name, attr_string(op, "sizes"), axis, arg(g, op, 0).name, shape_text(part));
  }
  std::vector<TensorSpec> specs;
  for (const int64_t size : sizes) {
    part[axis] = size;
    specs.push_back({part, arg(g, op, 0).dtype});
  }
  return specs;
}

std::vector<TensorSpec> infer_concat_split_concat(const Graph& g, const Op& op) {
  const size_t axis = axis_of_split_concat(g, op);
  check_view(op, arg(g, op, 0), axis);
  Shape whole = shape(g, op, 0);
  whole[axis] = 0;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (!has(op, i))
      throw user_error("op '{}' (concat): input {} is absent; every part must be given", op.name,
                       i);
    Shape part = shape(g, op, i);
    if (part.size() != whole.size() || arg(g, op, i).dtype != arg(g, op, 0).dtype) {
      throw user_error(
          "op '{}' (concat): inputs '{}' and '{}' must have the same type and the same number of "
          "axes",
          op.name, arg(g, op, 0).name, arg(g, op, i).name);
    }
    const int64_t length = part[axis];
    part[axis] = whole[axis];
    if (part != whole) {
      throw user_error(
          "op '{0}' (concat): input '{1}' is {2}, but input '{4}' is {5}; only the lengths of axis "
          "{3} may differ",
          op.name, arg(g, op, i).name, shape_text(shape(g, op, i)), axis, arg(g, op, 0).name,
          shape_text(shape(g, op, 0)));
    }
    whole[axis] += length;
  }
  return {{whole, arg(g, op, 0).dtype}};
}

Work work_split_concat(const Graph& g, const Op& op, const WorkContext&) {
  return {.bytes = view(op) ? 0 : io_bytes(g, op)};
}

/// OpDef::pieces: for a view, the parts one after the other in the whole; nothing otherwise.
std::vector<Piece> one_by_one(const Graph& g, const Op& op, const std::vector<TensorId>& parts,
                              TensorId whole) {
  std::vector<Piece> pieces;
  int64_t offset = 0;
  for (size_t i = 0; view(op) && i < parts.size(); ++i) {
    pieces.push_back({parts[i], whole, offset});
    offset += num_elements(g.tensor(parts[i]).shape);
  }
  return pieces;
}

std::vector<Piece> pieces_split_split_concat(const Graph& g, const Op& op) {
  return one_by_one(g, op, op.outputs, op.inputs[0]);
}

std::vector<Piece> pieces_concat_split_concat(const Graph& g, const Op& op) {
  return one_by_one(g, op, op.inputs, op.outputs[0]);
}

void gradient_split_split_concat(GradContext& c, OpId) {
  const Op op = c.op();
  if (!c.needs(op.inputs[0])) return;
  std::vector<TensorId> parts;
  for (const TensorId t : op.outputs) {
    if (!c.grad(t).valid()) {
      throw user_error(
          "op '{}' (split): the loss does not depend on part '{}'; it must depend on all parts",
          op.name, c.graph().tensor(t).name);
    }
    parts.push_back(c.grad(t));
  }
  const OpId dx = c.emit("concat", "dx", parts, {{"axis", attr_int(op, "axis")}});
  c.add(op.inputs[0], c.graph().out(dx));
}

void gradient_concat_split_concat(GradContext& c, OpId) {
  const Op op = c.op();
  const auto axis = static_cast<size_t>(attr_int(op, "axis"));
  std::string sizes;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    sizes += fmt::format("{}{}", i > 0 ? "," : "", shape(c.graph(), op, i)[axis]);
  }
  Attrs attrs = {{"axis", attr_int(op, "axis")}, {"sizes", sizes}};
  if (view(op)) attrs["view"] = int64_t{1};
  const OpId dx = c.emit("split", "dx", {c.grad(op.outputs[0])}, attrs);
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (c.needs(op.inputs[i])) c.add(op.inputs[i], c.graph().out(dx, i));
  }
}

/// For a tensor cut along `axis`: the product of the lengths of the axes before it, and the bytes
/// that belong to one index along it (those of the axes after it).
struct Layout {
  int64_t outer = 1, inner_bytes = 0;
};

Layout layout_of(const Tensor& tensor, size_t axis, int64_t float_bytes) {
  Layout layout{1, tensor.dtype == DType::kI32 ? dtype_bytes(DType::kI32) : float_bytes};
  for (size_t i = 0; i < axis; ++i) layout.outer *= tensor.shape[i];
  for (size_t i = axis + 1; i < tensor.shape.size(); ++i) layout.inner_bytes *= tensor.shape[i];
  return layout;
}

/// Copies between the whole and its parts; part i is the tensor ids[i] at pointers[i]. A part that
/// is already at its place in the whole (a view) is not copied.
template <bool kToParts, class T>
void move_parts(const KernelCall<T>& c, TensorId whole_id, void* whole_data,
                const std::vector<TensorId>& ids, std::span<void* const> pointers) {
  const auto axis = static_cast<size_t>(attr_int(c.op, "axis"));
  const Tensor& whole = c.graph.tensor(whole_id);
  const Layout layout = layout_of(whole, axis, sizeof(T));
  const int64_t whole_pitch = whole.shape[axis] * layout.inner_bytes;
  auto* at = static_cast<char*>(whole_data);
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t width = c.graph.tensor(ids[i]).shape[axis] * layout.inner_bytes;
    if (pointers[i] == at) {
      at += width;
      continue;
    }
    if (kToParts) {
      c.k.copy_2d(pointers[i], width, at, whole_pitch, width, layout.outer, c.stream);
    } else {
      c.k.copy_2d(at, whole_pitch, pointers[i], width, width, layout.outer, c.stream);
    }
    at += width;
  }
}

constexpr auto run_split_split_concat = []<class T>(const KernelCall<T>& c) {
  move_parts<true>(c, c.op.inputs[0], c.inputs[0], c.op.outputs, c.outputs);
};

constexpr auto run_concat = []<class T>(const KernelCall<T>& c) {
  move_parts<false>(c, c.op.outputs[0], c.outputs[0], c.op.inputs, c.inputs);
};

constexpr int kMaxPartsSplitConcat = 1 << 16;

}  // namespace

const OpDef kSplit = {.name = "split",
                      .doc =
                          "cuts x along attr axis into parts of the lengths in attr sizes, such as "
                          "\"4,4\"; attr view=1: without a copy",
                      .basic = BasicOp::kSplit,
                      .inputs = {{"x", Role::kAny}},
                      .outputs = {several("parts", kMaxPartsSplitConcat, Role::kAny)},
                      .infer = infer_split_split_concat,
                      .work = work_split_concat,
                      .gradient = gradient_split_split_concat,
                      .pieces = pieces_split_split_concat,
                      .view = view,
                      .run = any_type(run_split_split_concat)};

const OpDef kConcat = {.name = "concat",
                       .doc = "joins parts along attr axis; attr view=1: without a copy",
                       .basic = BasicOp::kConcat,
                       .inputs = {several("parts", kMaxPartsSplitConcat, Role::kAny)},
                       .outputs = {{"x", Role::kAny}},
                       .infer = infer_concat_split_concat,
                       .work = work_split_concat,
                       .gradient = gradient_concat_split_concat,
                       .pieces = pieces_concat_split_concat,
                       .view = view,
                       .run = any_type(run_concat)};

}  // namespace moe::ops
