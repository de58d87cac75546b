// Joins the parts of a tensor that was cut along rows (kRows in graph/op_def.h). The parts are in
// one storage, so the op only fills the rows that no part holds.
#include <algorithm>
#include <numeric>

#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

constexpr int kMaxPartsJoinRows = 1 << 16;

/// Returns k, the number of parts. Inputs 0 .. k-1 are the row ends, inputs k .. 2k-1 the parts.
size_t num_parts(const Op& op) {
  return static_cast<size_t>(expect_attr(op, "parts", 1));
}

std::vector<TensorSpec> infer_join_rows(const Graph& g, const Op& op) {
  const size_t k = num_parts(op);
  if (op.inputs.size() != 2 * k) {
    throw user_error(
        "op '{0}' (join_rows): it has {1} inputs, expected {2} tensors of row ends and then {2} "
        "parts",
        op.name, op.inputs.size(), k);
  }
  for (size_t i = 0; i < 2 * k; ++i) {
    if (!has(op, i))
      throw user_error(
          "op '{}' (join_rows): input {} is absent; all row ends and parts must be given", op.name,
          i);
  }
  const Tensor& part = arg(g, op, k);
  const Shape& blocks = shape(g, op, 0);
  const bool inside = blocks.size() < part.shape.size() &&
                      std::equal(blocks.begin(), blocks.end(), part.shape.begin());
  if (blocks.empty() || !inside) {
    throw user_error(
        "op '{}' (join_rows): row ends '{}' are {}, expected the first axes, but not all, of part "
        "'{}' {}",
        op.name, arg(g, op, 0).name, shape_text(blocks), part.name, shape_text(part.shape));
  }
  for (size_t p = 0; p < k; ++p) {
    expect_index(g, op, p, blocks);
    const Tensor& other = arg(g, op, k + p);
    if (other.shape != part.shape || other.dtype != part.dtype) {
      throw user_error(
          "op '{0}' (join_rows): part '{1}' is {2} {3}, expected {5} {6} like part '{4}'", op.name,
          other.name, name_of(other.dtype), shape_text(other.shape), part.name, name_of(part.dtype),
          shape_text(part.shape));
    }
  }
  return {rows_like(part, part.shape)};
}

/// Bytes: only rows that no token uses are written, of which packed rows have few.
Work work_join_rows(const Graph& g, const Op& op, const WorkContext& context) {
  if (g.tensor(op.outputs[0]).stored_rows > 0) return {};
  return {.bytes = (1 - context.slot_occupancy) * static_cast<double>(g.bytes(op.outputs[0]))};
}

std::vector<Piece> pieces(const Graph&, const Op& op) {
  const size_t k = num_parts(op);
  std::vector<Piece> pieces;
  for (size_t p = 0; p < k; ++p) {
    pieces.push_back({op.inputs[k + p], op.outputs[0], 0, op.inputs[p]});
  }
  return pieces;
}

/// Copies elements [from, to) of a part to the whole, unless the part is in the whole's storage.
template <class E, class T>
void take_rows(const KernelCall<T>& c, E* whole, const void* part, int64_t from, int64_t to) {
  if (part == whole || from == to) return;
  const int64_t width = (to - from) * static_cast<int64_t>(sizeof(E));
  c.k.copy_2d(whole + from, width, static_cast<const E*>(part) + from, width, width, 1, c.stream);
}

template <class T>
void clear(const KernelCall<T>& c, T* to, int64_t n) {
  if (n > 0) c.k.clear(to, n * static_cast<int64_t>(sizeof(T)), c.stream);
}
template <class T>
void clear(const KernelCall<T>&, int32_t* to, int64_t n) {
  std::fill_n(to, n, -1);
}

bool is_view(const Op& op) {
  return attr_int(op, "view") != 0;
}

/// Packed parts follow each other. The rows after the last part are read only by ops on index
/// tensors.
template <class E, class T>
void join_packed(const KernelCall<T>& c) {
  const size_t k = num_parts(c.op);
  const Tensor& tensor = c.graph.tensor(c.op.outputs[0]);
  const int64_t blocks = num_elements(c.in_shape(0));
  const int64_t width = stored_elements(tensor) / tensor.stored_rows;
  auto* const whole = static_cast<E*>(c.outputs[0]);
  int64_t done = 0;
  for (size_t p = 0; p < k; ++p) {
    const int64_t end = std::accumulate(c.in_i32(p), c.in_i32(p) + blocks, int64_t{0});
    take_rows(c, whole, c.inputs[k + p], done * width, end * width);
    done = end;
  }
  if (tensor.dtype == DType::kI32 && !is_view(c.op)) {
    clear(c, whole + done, tensor.stored_rows - done);
  }
}

template <class E, class T>
void join(const KernelCall<T>& c) {
  if (c.graph.tensor(c.op.outputs[0]).stored_rows > 0) return join_packed<E>(c);
  const size_t k = num_parts(c.op);
  const Shape& shape = c.out_shape(0);
  const int64_t blocks = num_elements(c.in_shape(0)), rows = shape[c.in_shape(0).size()];
  const int64_t width = num_elements(shape) / (blocks * rows);
  auto* const whole = static_cast<E*>(c.outputs[0]);
  for (int64_t b = 0; b < blocks; ++b) {
    int64_t done = 0;
    for (size_t p = 0; p < k; ++p) {
      const int64_t end = c.in_i32(p)[b];
      MOE_CHECK(done <= end && end <= rows,
                "op '{0}' (join_rows): part {1} ends at row {2}, but must end between its begin, "
                "row {4}, and the end of the block, row {3}",
                c.op.name, p, end, rows, done);
      take_rows(c, whole, c.inputs[k + p], (b * rows + done) * width, (b * rows + end) * width);
      done = end;
    }
    if (is_view(c.op)) continue;
    clear(c, whole + (b * rows + done) * width, (rows - done) * width);
  }
}

constexpr auto run_join_rows = []<class T>(const KernelCall<T>& c) {
  if (c.graph.tensor(c.op.outputs[0]).dtype == DType::kI32) {
    join<int32_t>(c);
  } else {
    join<T>(c);
  }
};

std::vector<size_t> row_ends(const Op& op) {
  std::vector<size_t> inputs(num_parts(op));
  std::iota(inputs.begin(), inputs.end(), 0);
  return inputs;
}

/// OpDef::on_host: index tensors are cleared in host memory, because no GPU kernel clears them.
bool clears_on_host(const Graph& g, const Op& op) {
  return g.tensor(op.outputs[0]).dtype == DType::kI32 && !is_view(op);
}

}  // namespace

const OpDef kJoinRows = {.name = "join_rows",
                         .doc =
                             "joins parts that each hold rows up to their row end; unused rows are "
                             "cleared, or left as they are with attr view=1",
                         .inputs = {several("ends_and_parts", 2 * kMaxPartsJoinRows, Role::kAny)},
                         .outputs = {{"whole", Role::kAny}},
                         .infer = infer_join_rows,
                         .work = work_join_rows,
                         .gradient = no_gradient,
                         .pieces = pieces,
                         .joins_parts = true,
                         .view = is_view,
                         .run = any_type(run_join_rows),
                         .host_inputs = row_ends,
                         .on_host = clears_on_host};

}  // namespace moe::ops
