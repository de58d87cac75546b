// Copies of rows at their experts, [El,P,C,..], for each rank of a group over etp, and the sum of
// such copies: what an exchange with attr repeated sends, and what it returns. Each is the gradient
// of the other. Packed rows, of which input 1 has the counts, are copied as far as they are in use.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"
#include "engine/ops/stored_rows.h"

namespace moe::ops {
namespace {

template <bool kRepeats>
std::vector<TensorSpec> infer_repeat_rows(const Graph& g, const Op& op) {
  const Tensor& x = arg(g, op, 0);
  const int64_t times = expect_attr(op, "times", 1);
  Shape y = x.shape;
  if (y.empty() || (!kRepeats && y[0] % times != 0)) {
    throw user_error("op '{}' ({}): axis 0 of '{}' {} must be a multiple of attr times = {}",
                     op.name, g.def(op).name, x.name, shape_text(x.shape), times);
  }
  y[0] = kRepeats ? y[0] * times : y[0] / times;
  return {{y, x.dtype, op.rows.stored}};
}

Work work_repeat_rows(const Graph& g, const Op& op, const WorkContext& context) {
  const bool packed = arg(g, op, 0).stored_rows > 0;
  return {.bytes = (packed ? context.slot_occupancy : 1) * io_bytes(g, op)};
}

/// Calls f(at, copies, n) for each run of neighbouring elements that is copied or summed: its place
/// in the tensor `one`, and those in each copy in the other tensor, of `times` times its blocks.
/// The copies of packed rows are in the order of blocks, also where those in `one` are of several
/// parts of the batch.
template <class T, class F>
void each_run(const KernelCall<T>& c, const Tensor& one, F f) {
  const int64_t times = attr_int(c.op, "times");
  std::vector<int64_t> copies(static_cast<size_t>(times));
  if (one.stored_rows == 0) {
    const int64_t n = num_elements(one.shape);
    for (int64_t i = 0; i < times; ++i) copies[static_cast<size_t>(i)] = i * n;
    return f(0, copies, n);
  }
  const int64_t width = one.shape.back(), capacity = one.shape.end()[-2];
  const int64_t blocks = num_elements(one.shape) / (width * capacity);
  const int32_t* const ends = c.in_i32(1);
  const int64_t parts = num_elements(c.in_shape(1)) / blocks;
  std::vector<int32_t> all;
  for (int64_t i = 0; i < times; ++i) {
    all.insert(all.end(), ends + (parts - 1) * blocks, ends + parts * blocks);
  }
  const auto at = stored_blocks({times * blocks, capacity, 1, true}, all.data(), nullptr);
  for_each_block({blocks, capacity, parts, true}, ends, nullptr,
                 [&](int64_t block, const StoredBlock& run) {
                   for (int64_t i = 0; i < times; ++i) {
                     const StoredBlock& copy = at[static_cast<size_t>(i * blocks + block)];
                     copies[static_cast<size_t>(i)] = (copy.row_0 + run.rows.begin) * width;
                   }
                   f((run.row_0 + run.rows.begin) * width, copies, run.rows.count() * width);
                 });
}

constexpr auto repeat = []<class T>(const KernelCall<T>& c) {
  const Tensor& one = arg(c.graph, c.op, 0);
  const auto element = static_cast<int64_t>(one.dtype == DType::kI32 ? sizeof(int32_t) : sizeof(T));
  const auto* const from = static_cast<const std::byte*>(c.inputs[0]);
  auto* const to = static_cast<std::byte*>(c.outputs[0]);
  each_run(c, one, [&](int64_t at, const std::vector<int64_t>& copies, int64_t n) {
    const int64_t bytes = n * element;
    for (const int64_t copy : copies) {
      if (n == 0) continue;
      c.k.copy_2d(to + copy * element, bytes, from + at * element, bytes, bytes, 1, c.stream);
    }
  });
};

constexpr auto sum = []<class T>(const KernelCall<T>& c) {
  const auto add = [&](int64_t at, const std::vector<int64_t>& copies, int64_t n) {
    T* const to = c.out(0) + at;
    copy(c, to, c.in(0) + copies[0], n);
    for (size_t i = 1; i < copies.size() && n > 0; ++i) {
      c.k.add(to, to, c.in(0) + copies[i], n, c.stream);
    }
  };
  each_run(c, c.graph.tensor(c.op.outputs[0]), add);
};

template <bool kRepeats>
void gradient_repeat_rows(GradContext& c, OpId) {
  const Op op = c.op();
  if (!c.needs(op.inputs[0])) return;
  Attrs attrs = {{"times", op.attrs.at("times")}};
  if (const int64_t room = arg(c.graph(), op, 0).stored_rows; room > 0) attrs["stored"] = room;
  const OpId dx = c.emit(kRepeats ? kSumRepeats : kRepeatRows, "dx",
                         {c.grad(op.outputs[0]), input_or_none(op, 1)}, std::move(attrs));
  c.add(op.inputs[0], c.graph().out(dx));
}

std::vector<size_t> counts_repeat_rows(const Op& op) {
  return has(op, 1) ? std::vector<size_t>{1} : std::vector<size_t>{};
}

/// Can be cut along the capacity, and along a row; packed rows along a row alone.
std::vector<AxisTuple> axes_repeat_rows(const Graph& g, const Op& op) {
  if (arg(g, op, 0).dtype == DType::kI32) return {};
  const int last = static_cast<int>(shape(g, op, 0).size()) - 1;
  std::vector<AxisTuple> tuples = {{{last, kWhole}, {last}}};
  if (op.rows.stored == 0) tuples.insert(tuples.begin(), {{last - 1, kWhole}, {last - 1}});
  return tuples;
}

}  // namespace

const OpDef kRepeatRows = {.name = "repeat_rows",
                           .doc = "attr times copies of rows, one behind the other",
                           .bound = Bound::kBytes,
                           .inputs = {{"x", Role::kAny}, optional("counts", Role::kRecvCounts)},
                           .outputs = {{"y", Role::kAny}},
                           .infer = infer_repeat_rows<true>,
                           .work = work_repeat_rows,
                           .gradient = gradient_repeat_rows<true>,
                           .axes = axes_repeat_rows,
                           .loose_slots = true,
                           .only_used_rows = on_any,
                           .run = any_type(repeat),
                           .host_inputs = counts_repeat_rows};

const OpDef kSumRepeats = {.name = "sum_repeats",
                           .doc = "the sum of attr times blocks of rows, in their order",
                           .bound = Bound::kBytes,
                           .inputs = {{"x"}, optional("counts", Role::kRecvCounts)},
                           .outputs = {{"y"}},
                           .infer = infer_repeat_rows<false>,
                           .work = work_repeat_rows,
                           .gradient = gradient_repeat_rows<false>,
                           .axes = axes_repeat_rows,
                           .loose_slots = true,
                           .only_used_rows = on_any,
                           .run = any_type(sum),
                           .host_inputs = counts_repeat_rows};

}  // namespace moe::ops
