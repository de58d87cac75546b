// Ops that compute each number, or each row, by itself: sums, products, scaling, sigmoid and ReLU;
// with attr rows = "used" only of the rows in use. One more op is a form and a definition.
#include "engine/ops/defs.h"
#include "engine/ops/each_row.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

using kernels::Map;

/// The operands of a kernel: rows of `cols` numbers; an absent operand is null.
template <class T>
struct Operands {
  T* y;
  const T *a, *b, *acc;
  int64_t rows, cols;
};

// Each form says how many of the first inputs have rows, of which the first gives the shape, the
// flops per number of it, and how its kernel is called.
struct AddForm {
  static constexpr size_t kValues = 2;
  static constexpr double kFlops = 1;
  template <class T>
  static void call(const KernelCall<T>& c, const Operands<T>& o) {
    c.k.add(o.y, o.a, o.b, o.rows * o.cols, c.stream);
  }
};

struct MulForm {
  static constexpr size_t kValues = 3;
  static constexpr double kFlops = 2;
  template <class T>
  static void call(const KernelCall<T>& c, const Operands<T>& o) {
    const bool by_row = cols_of(c.in_shape(1)) != o.cols;
    c.k.mul(o.y, o.a, o.b, o.acc, o.rows, o.cols, by_row, c.stream);
  }
};

struct RowDotForm {
  static constexpr size_t kValues = 2;
  static constexpr double kFlops = 2;
  template <class T>
  static void call(const KernelCall<T>& c, const Operands<T>& o) {
    c.k.row_dot(o.y, o.a, o.b, o.rows, o.cols, c.stream);
  }
};

/// With 5 and 6 flops for the exponential and the division of a sigmoid.
template <Map kMap>
struct MapForm {
  static constexpr size_t kValues = kMap == Map::kScale ? 2 : 1;  // kScale adds an accumulator
  static constexpr double kFlops = kMap == Map::kSigmoid ? 13 : 1;
  template <class T>
  static void call(const KernelCall<T>& c, const Operands<T>& o) {
    const auto factor = static_cast<kernels::Wide<T>>(attr_double(c.op, "factor", 1));
    c.k.map(o.y, o.a, kMap, factor, o.b, o.rows * o.cols, c.stream);
  }
};

template <Map kMap>
struct MapDxForm {
  static_assert(kernels::has_slope(kMap), "the map's formulas in kernels/maps.h lack dx()");
  static constexpr size_t kValues = 3;
  static constexpr double kFlops = kMap == Map::kSigmoid ? 4 : 1;
  template <class T>
  static void call(const KernelCall<T>& c, const Operands<T>& o) {
    c.k.map_dx(o.y, o.a, o.b, kMap, o.acc, o.rows * o.cols, c.stream);
  }
};

/// Whether input b of a product has one number per row of a.
bool by_row(const Graph& g, const Op& op) {
  return cols_of(shape(g, op, 1)) != cols_of(shape(g, op, 0));
}

Shape one_column(Shape shape) {
  shape.back() = 1;
  return shape;
}

template <class Form>
std::vector<TensorSpec> infer_elementwise(const Graph& g, const Op& op) {
  const Shape& a = expect_matrix(g, op, 0, 1);
  for (size_t i = 1; i < Form::kValues; ++i) {
    if (!has(op, i)) continue;
    const bool one_each =
        std::is_same_v<Form, MulForm> && i == 1 && shape(g, op, 1) == one_column(a);
    expect_shape(g, op, i, one_each ? one_column(a) : a);
    if (arg(g, op, i).dtype == arg(g, op, 0).dtype) continue;
    throw user_error(
        "op '{}' ({}): input {} '{}' is {}, but input 0 '{}' is {}; both must be equal", op.name,
        g.def(op).name, i, arg(g, op, i).name, name_of(arg(g, op, i).dtype), arg(g, op, 0).name,
        name_of(arg(g, op, 0).dtype));
  }
  expect_row_counts(g, op, 0);
  return {rows_like(arg(g, op, 0), a)};
}

template <class Form>
Work work_elementwise(const Graph& g, const Op& op, const WorkContext& context) {
  return each_row_work(g, op, context,
                       Form::kFlops * static_cast<double>(num_elements(shape(g, op, 0))));
}

/// Can be cut along any axis except that of which an operand has one column, or along the rows in
/// use.
template <class Form>
std::vector<AxisTuple> axes_elementwise(const Graph& g, const Op& op) {
  std::vector<size_t> of_rows;
  bool last = cols_of(g.tensor(op.outputs[0]).shape) == cols_of(shape(g, op, 0));
  for (size_t i = 0; i < Form::kValues; ++i) {
    if (!has(op, i)) continue;
    of_rows.push_back(i);
    last = last && cols_of(shape(g, op, i)) == cols_of(shape(g, op, 0));
  }
  if (only_used(op)) return used_row_cuts(g, op, of_rows);
  if (op.rows.is_cut()) return {};
  const int end = static_cast<int>(shape(g, op, 0).size()) - (last ? 0 : 1);
  std::vector<AxisTuple> tuples;
  for (int a = 0; a < end; ++a) {
    std::vector<int> cuts(g.def(op).inputs.size(), kWhole);
    for (const size_t i : of_rows) cuts[i] = a;
    tuples.push_back({cuts, {a}});
  }
  return tuples;
}

template <class Form>
constexpr auto run_elementwise = []<class T>(const KernelCall<T>& c) {
  for_each_rows(c, 0, 1, [&](int64_t first, int64_t rows, int64_t) {
    const auto rows_at = [&](size_t i) -> const T* {
      if (i >= Form::kValues || c.in(i) == nullptr) return nullptr;
      return c.in(i) + first * cols_of(c.in_shape(i));
    };
    T* const y = c.out(0) + first * cols_of(c.out_shape(0));
    Form::call(c, Operands<T>{y, rows_at(0), rows_at(1), rows_at(2), rows, cols_of(c.in_shape(0))});
  });
};

/// Emits an op of this kind on the rows of the current op. Its kind must have as many operands
/// before its counts as `inputs` has.
TensorId emit(GradContext& c, const OpDef& kind, const char* suffix, std::vector<TensorId> inputs,
              Attrs attrs = {}) {
  attrs.merge(same_rows(c.graph(), c.op(), inputs));
  return c.graph().out(c.emit(kind, suffix, std::move(inputs), std::move(attrs)));
}

void gradient_add(GradContext& c, OpId) {
  const Op op = c.op();
  for (const TensorId t : {op.inputs[0], op.inputs[1]}) {
    if (c.needs(t)) c.add(t, c.grad(op.outputs[0]));
  }
}

void gradient_mul(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId dy = c.grad(op.outputs[0]), a = op.inputs[0], b = op.inputs[1];
  const TensorId acc = input_or_none(op, 2);
  if (c.needs(acc)) c.add(acc, dy);
  if (c.needs(a)) c.set(a, emit(c, kMul, "da", {dy, b, c.grad(a)}));
  if (!c.needs(b)) return;
  if (by_row(c.graph(), op)) {
    c.add(b, emit(c, kRowDot, "db", {dy, a}));
  } else {
    c.set(b, emit(c, kMul, "db", {dy, a, c.grad(b)}));
  }
}

void gradient_row_dot(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId dy = c.grad(op.outputs[0]), a = op.inputs[0], b = op.inputs[1];
  if (c.needs(a)) c.set(a, emit(c, kMul, "da", {b, dy, c.grad(a)}));
  if (c.needs(b)) c.set(b, emit(c, kMul, "db", {a, dy, c.grad(b)}));
}

void gradient_scale(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId dy = c.grad(op.outputs[0]), x = op.inputs[0], acc = input_or_none(op, 1);
  if (c.needs(acc)) c.add(acc, dy);
  if (c.needs(x)) {
    c.set(x, emit(c, kScale, "dx", {dy, c.grad(x)}, {{"factor", op.attrs.at("factor")}}));
  }
}

void gradient_map(GradContext& c, const OpDef& dx) {
  const Op op = c.op();
  const TensorId dy = c.grad(op.outputs[0]), x = op.inputs[0];
  if (c.needs(x)) c.set(x, emit(c, dx, "dx", {dy, op.outputs[0], c.grad(x)}));
}

std::vector<TensorSpec> infer_row_dot(const Graph& g, const Op& op) {
  std::vector<TensorSpec> specs = infer_elementwise<RowDotForm>(g, op);
  specs[0].shape = one_column(specs[0].shape);
  return specs;
}

std::vector<TensorSpec> infer_scale(const Graph& g, const Op& op) {
  if (!op.attrs.contains("factor")) {
    throw user_error("op '{}' (scale): attribute 'factor' must be given, a number", op.name);
  }
  attr_double(op, "factor", 1);
  return infer_elementwise<MapForm<Map::kScale>>(g, op);
}

/// Returns the definition of an op, whose inputs are `values` and the counts of rows in use.
template <class Form>
OpDef each_row_op(const char* name, const char* doc, std::vector<Operand> values) {
  OpDef def = {.name = name, .doc = doc, .bound = Bound::kBytes};
  def.inputs = std::move(values);
  const int counts = static_cast<int>(def.inputs.size());
  def.inputs.push_back(optional("recv_counts", Role::kRecvCounts));
  def.inputs.push_back(optional("recv_begin", Role::kRecvBegin));
  def.outputs = {{"y"}};
  def.infer = infer_elementwise<Form>;
  def.work = work_elementwise<Form>;
  def.axes = axes_elementwise<Form>;
  def.begins = {{.input = counts + 1, .of_input = counts}};
  def.rows_end = end_of_rows;
  def.only_used_rows = only_used;
  def.run = any_type(run_elementwise<Form>);
  def.host_inputs = counted<Form::kValues, Form::kValues + 1>;
  return def;
}

}  // namespace

const OpDef kAdd = [] {
  OpDef def = each_row_op<AddForm>("add", "y = a + b", {{"a"}, {"b"}});
  def.basic = BasicOp::kAdd;
  def.bound = Bound::kNone;
  def.gradient = gradient_add;
  return def;
}();

const OpDef kMul = [] {
  OpDef def = each_row_op<MulForm>("mul", "y = a b [+ acc]; b may have one column for all of a's",
                                   {{"a"}, {"b"}, optional("acc", Role::kAdded)});
  def.gradient = gradient_mul;
  def.may_alias = {{0, 2}, {0, 0}};
  return def;
}();

const OpDef kRowDot = [] {
  OpDef def = each_row_op<RowDotForm>("row_dot", "y = the sum of a b over the columns of a row",
                                      {{"a"}, {"b"}});
  def.infer = infer_row_dot;
  def.gradient = gradient_row_dot;
  return def;
}();

const OpDef kScale = [] {
  OpDef def = each_row_op<MapForm<Map::kScale>>("scale", "y = attr factor * x [+ acc]",
                                                {{"x"}, optional("acc", Role::kAdded)});
  def.infer = infer_scale;
  def.gradient = gradient_scale;
  def.may_alias = {{0, 1}, {0, 0}};
  return def;
}();

const OpDef kSigmoid = [] {
  OpDef def =
      each_row_op<MapForm<Map::kSigmoid>>("sigmoid", "y = 1 / (1 + exp(-x))", {{"x", Role::kSum}});
  def.gradient = [](GradContext& c, OpId) { gradient_map(c, kSigmoidDx); };
  def.may_alias = {{0, 0}};
  return def;
}();

const OpDef kSigmoidDx = [] {
  OpDef def = each_row_op<MapDxForm<Map::kSigmoid>>("sigmoid_dx", "dx = dy y (1 - y) [+ acc]",
                                                    {{"dy"}, {"y"}, optional("acc", Role::kAdded)});
  def.gradient = no_gradient;
  def.may_alias = {{0, 2}, {0, 0}};
  return def;
}();

const OpDef kRelu = [] {
  OpDef def =
      each_row_op<MapForm<Map::kRelu>>("relu", "y = x where x > 0, else 0", {{"x", Role::kSum}});
  def.gradient = [](GradContext& c, OpId) { gradient_map(c, kReluDx); };
  def.may_alias = {{0, 0}};
  return def;
}();

const OpDef kReluDx = [] {
  OpDef def = each_row_op<MapDxForm<Map::kRelu>>("relu_dx", "dx = dy where y > 0, else 0 [+ acc]",
                                                 {{"dy"}, {"y"}, optional("acc", Role::kAdded)});
  def.gradient = no_gradient;
  def.may_alias = {{0, 2}, {0, 0}};
  return def;
}();

}  // namespace moe::ops
