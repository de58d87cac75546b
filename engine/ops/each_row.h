// What ops share that compute each row by itself, be it dense or of experts (expert_rows.h): which
// work they do, how they may be cut, and which rows they and their gradients compute. The optional
// input recv_begin of such an op comes after recv_counts.
#pragma once

#include "engine/ops/expert_rows.h"

namespace moe::ops {

/// Returns the place of recv_counts, which the kind must have.
inline size_t place_of_counts(const Graph& g, const Op& op) {
  return *place_of(g.def(op).inputs, Role::kRecvCounts);
}

/// Throws UserError unless the op's counts of rows fit the blocks of input x.
inline void expect_row_counts(const Graph& g, const Op& op, size_t x) {
  const size_t counts = place_of_counts(g, op);
  expect_counts(g, op, x, counts);
  if (input_of(g, op, Role::kRecvBegin).valid()) {
    expect_index(g, op, counts + 1, shape(g, op, counts));
  }
}

/// Returns the work on the rows that the op computes; flops: on all rows.
inline Work each_row_work(const Graph& g, const Op& op, const WorkContext& context, double flops) {
  const double share = used_share(op, context);
  return {.flops = share * flops, .bytes = share * io_bytes(g, op)};
}

/// Returns the cuts of an op with attr rows = "used" along the rows in use, of which the inputs in
/// `of_rows` are; each of them may also be whole.
inline std::vector<AxisTuple> used_row_cuts(const Graph& g, const Op& op,
                                            const std::vector<size_t>& of_rows) {
  const std::vector<Operand>& inputs = g.def(op).inputs;
  std::vector<AxisTuple> tuples;
  for (size_t whole = 0; whole < size_t{1} << of_rows.size(); ++whole) {
    std::vector<int> cuts(inputs.size(), kWhole);
    for (size_t i = 0; i < of_rows.size(); ++i) {
      if ((whole >> i & 1) == 0) cuts[of_rows[i]] = kRows;
    }
    cuts[place_of_counts(g, op)] = kRowEnds;
    tuples.push_back({cuts, {kRows}});
  }
  return tuples;
}

/// As OpDef::rows_end.
inline TensorId end_of_rows(const Graph& g, const Op& op, size_t) {
  return input_of(g, op, Role::kRecvCounts);
}

/// Adds the op's counts of rows to the inputs of its gradient, and returns the attributes by which
/// the gradient computes the same rows.
inline Attrs same_rows(const Graph& g, const Op& op, std::vector<TensorId>& inputs) {
  if (!counts_rows(op)) return {};
  inputs.push_back(input_of(g, op, Role::kRecvCounts));
  return row_attrs(op);
}

/// Calls f(first row, number of rows, expert) for each run of rows of input x to compute; without
/// counts, these are `experts` runs of as many rows. Zeroes rows of output 0 that are not in use.
template <class T, class F>
void for_each_rows(const KernelCall<T>& c, size_t x, int64_t experts, F f) {
  if (!counts_rows(c.op)) {
    const int64_t rows = stored_elements(arg(c.graph, c.op, x)) / cols_of(c.in_shape(x)) / experts;
    for (int64_t e = 0; e < experts; ++e) f(e * rows, rows, e);
    return;
  }
  const size_t place = place_of_counts(c.graph, c.op);
  const Blocks b = blocks_of(c.graph, c.op, x);
  for_each_run(c, b, c.in_i32(place), is_part(c.op) ? c.in_i32(place + 1) : nullptr,
               [&](int64_t e, int64_t first, int64_t n) { f(first, n, e); });
  zero_unused(c, c.out(0), b, c.in_i32(place), cols_of(c.out_shape(0)));
}

}  // namespace moe::ops
