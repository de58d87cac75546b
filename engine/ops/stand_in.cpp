// A block of stated flops and bytes in the place of a part that does not exist here, such as a
// gated delta network between its projections. It can be planned and simulated; a run refuses it.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

constexpr int kMaxTensorsStandIn = 24;

/// Returns the number attr `key` states per token. Throws UserError unless it is at least 0.
double per_token(const Op& op, std::string_view key) {
  const double value = attr_double(op, key, -1);
  if (value >= 0) return value;
  throw user_error("op '{}': attribute '{}' must be given, a number of at least 0 per token",
                   op.name, key);
}

/// Returns how many of the inputs are activations; parameters follow them. `first` is the number of
/// other operands before them.
size_t num_values(const Op& op, size_t first) {
  const int64_t parameters = attr_int(op, "parameters");
  const auto values = static_cast<int64_t>(op.inputs.size() - first) - parameters;
  if (parameters >= 0 && values >= 1) return static_cast<size_t>(values);
  throw user_error(
      "op '{}': attribute 'parameters' = {} of {} inputs, allowed: 0 or more, but not all", op.name,
      parameters, op.inputs.size() - first);
}

std::vector<TensorSpec> infer_stand_in(const Graph& g, const Op& op) {
  Shape y = expect_matrix(g, op, 0);
  for (size_t i = 1; i < num_values(op, 0); ++i) {
    expect_rows(g, op, i, rows_of(y), cols_of(shape(g, op, i)));
  }
  per_token(op, "flops");
  per_token(op, "bytes");
  y.back() = expect_attr(op, "width", 1);
  return {{std::move(y), arg(g, op, 0).dtype}};
}

/// The flops take as long as those of a product with as many rows and columns of the result.
Work stated_work(const Op& op, const Shape& y, double times) {
  const auto rows = static_cast<double>(rows_of(y)), width = static_cast<double>(cols_of(y));
  const double flops = times * rows * per_token(op, "flops");
  return {.flops = flops,
          .bytes = times * rows * per_token(op, "bytes"),
          .matrix = flops > 0 ? gemm_of(rows, width, flops / (2 * rows * width)) : MatrixWork()};
}

Work work_stand_in(const Graph& g, const Op& op, const WorkContext&) {
  return stated_work(op, g.tensor(op.outputs[0]).shape, 1);
}

/// All gradients of activations take twice the forward, those of parameters nothing more.
Work work_back(const Graph& g, const Op& op, const WorkContext&) {
  return attr_int(op, "of_parameters") == 1 ? Work() : stated_work(op, shape(g, op, 0), 2);
}

void gradient_stand_in(GradContext& c, OpId) {
  const Op op = c.op();
  const size_t values = num_values(op, 0);
  std::vector<TensorId> inputs = {c.grad(op.outputs[0])};
  inputs.insert(inputs.end(), op.inputs.begin(), op.inputs.end());
  const auto back = [&](const char* suffix, int64_t of_parameters, size_t begin, size_t end) {
    if (begin == end) return;
    Attrs attrs = op.attrs;
    attrs["of_parameters"] = of_parameters;
    const OpId id = c.emit(kStandInBack, suffix, inputs, attrs, of_parameters == 1);
    for (size_t i = begin; i < end; ++i) {
      if (c.needs(op.inputs[i])) c.add(op.inputs[i], c.graph().out(id, i - begin));
    }
  };
  back("dx", 0, 0, values);
  back("dw", 1, values, op.inputs.size());
}

std::vector<TensorSpec> infer_back_stand_in(const Graph& g, const Op& op) {
  const size_t values = num_values(op, 1);
  const bool of_parameters = attr_int(op, "of_parameters") == 1;
  const DType dtype = arg(g, op, 0).dtype;
  std::vector<TensorSpec> specs;
  const size_t end = of_parameters ? op.inputs.size() : values + 1;
  for (size_t i = of_parameters ? values + 1 : 1; i < end; ++i) {
    specs.push_back({shape(g, op, i), of_parameters ? gradient_dtype(op, dtype) : dtype});
  }
  return specs;
}

/// Can be cut along the batch: sequences do not meet. The gradient of a parameter cannot.
std::vector<AxisTuple> axes_stand_in(const Graph&, const Op& op) {
  std::vector<int> cuts(op.inputs.size(), kWhole);
  for (size_t i = 0; i < num_values(op, 0); ++i) cuts[i] = 0;
  return {{cuts, {0}}};
}

constexpr auto run_stand_in = []<class T>(const KernelCall<T>& c) {
  throw user_error(
      "op '{}': it stands in for {} with stated flops and bytes, and can only be simulated; leave "
      "this model out of what is executed",
      c.op.name, attr_string(c.op, "what", "a part"));
};

}  // namespace

const OpDef kStandIn = {
    .name = "stand_in",
    .doc =
        "attr width columns, in the place of a part that does not exist here (attr what); attrs "
        "flops and bytes per token, parameters: how many inputs, the last ones; simulated only",
    .inputs = {several("inputs", kMaxTensorsStandIn)},
    .outputs = {{"y"}},
    .infer = infer_stand_in,
    .work = work_stand_in,
    .gradient = gradient_stand_in,
    .axes = axes_stand_in,
    .run = wide_types(run_stand_in)};

const OpDef kStandInBack = {
    .name = "stand_in_back",
    .doc = "gradients of the inputs of stand_in; with attr of_parameters=1 of its parameters",
    .inputs = {{"dy"}, several("inputs", kMaxTensorsStandIn)},
    .outputs = {several("gradients", kMaxTensorsStandIn)},
    .infer = infer_back_stand_in,
    .work = work_back,
    .gradient = no_gradient,
    .run = wide_types(run_stand_in)};

}  // namespace moe::ops
