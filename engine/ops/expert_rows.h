// Rows of slots on the experts' side, tensors [El,P,C,n] (or [El,C,n]; letters as in ops.h). With
// attr rows = "used" an op computes only the rows that its counts input states; if it is one part
// of a batch (attr share) or of the rows (row_cut.h), only the rows of that part.
#pragma once

#include "engine/ops/rules.h"
#include "engine/ops/stored_rows.h"

namespace moe::ops {

inline bool only_used(const Op& op) {
  const std::string rows = attr_string(op, "rows", "capacity");
  if (rows != "capacity" && rows != "used") {
    throw user_error("op '{}': attribute 'rows' is '{}', allowed: capacity, used", op.name, rows);
  }
  return rows == "used";
}

/// The blocks of a row tensor: one of `capacity` rows per expert and source rank.
struct Blocks {
  int64_t experts, sources, capacity;
  int64_t parts;  // of the batch, that the received counts state one by one
  bool packed;
  int64_t rows_per_expert() const { return sources * capacity; }
  BlockSizes sizes() const { return {experts * sources, capacity, parts, packed}; }
};

inline Blocks blocks_of(const Graph& g, const Op& op, size_t i) {
  const Shape& x = shape(g, op, i);
  const int64_t experts = x[0], sources = x.size() == 4 ? x[1] : 1, capacity = x[x.size() - 2];
  const BlockSizes sizes =
      block_sizes(g, op.inputs[i], experts * sources, capacity, input_of(g, op, Role::kRecvCounts));
  return {experts, sources, capacity, sizes.parts, sizes.packed};
}

/// Whether the op needs the number of rows in use: to compute only these, or its part of them.
inline bool counts_rows(const Op& op) {
  return only_used(op) || op.rows.is_cut();
}

/// Throws UserError unless input `counts` has one count per block of x, or is absent from an op
/// that does not count rows.
inline void expect_counts(const Graph& g, const Op& op, size_t x, size_t counts) {
  if (!has(op, counts)) {
    if (!counts_rows(op)) return;
    throw user_error("op '{}' ({}): attribute {}, which needs input {}, recv_counts", op.name,
                     g.def(op).name, only_used(op) ? "'rows' is 'used'" : "'cut' is given", counts);
  }
  const Blocks b = blocks_of(g, op, x);
  if (b.packed && !only_used(op)) {
    throw user_error("op '{}' ({}): its rows are packed, which needs attribute 'rows' = 'used'",
                     op.name, g.def(op).name);
  }
  if (arg(g, op, counts).dtype != DType::kI32 ||
      num_elements(shape(g, op, counts)) != b.parts * b.experts * b.sources) {
    expect_index(g, op, counts, {b.experts, b.sources});
  }
}

/// For OpDef::host_inputs: returns kInputs (counts, begins) where the op counts rows, else none.
template <size_t... kInputs>
std::vector<size_t> counted(const Op& op) {
  return counts_rows(op) ? std::vector<size_t>{kInputs...} : std::vector<size_t>{};
}

/// The expected share of the rows that the op computes.
inline double used_share(const Op& op, const WorkContext& context) {
  return only_used(op) ? context.slot_occupancy * share_of(op) * op.rows.occupancy : share_of(op);
}

/// Calls f(expert, first row, number of rows) for each run of rows to compute, in the order of
/// their storage. Runs of rows in use start at row begins[block] of their block, or at 0 where
/// `begins` is null. A part with attr rows = "capacity" also computes its part of the rows that are
/// not in use. The rows of packed blocks of one expert are one run.
template <class T, class F>
void for_each_run(const KernelCall<T>& c, const Blocks& b, const int32_t* counts,
                  const int32_t* begins, F f) {
  if (!counts_rows(c.op)) {
    for (int64_t e = 0; e < b.experts; ++e) f(e, e * b.rows_per_expert(), b.rows_per_expert());
    return;
  }
  const ExpertRowCut cut(c.graph, c.op, c.rank.rank, b.experts);
  int64_t expert = 0, first = 0, rows_of_run = 0;
  const auto add = [&](int64_t e, int64_t from, int64_t n) {
    if (n == 0) return;
    if (b.packed && rows_of_run > 0 && e == expert && from == first + rows_of_run) {
      rows_of_run += n;
      return;
    }
    if (rows_of_run > 0) f(expert, first, rows_of_run);
    expert = e;
    first = from;
    rows_of_run = n;
  };
  for_each_block(b.sizes(), counts, begins, [&](int64_t block, const StoredBlock& used) {
    const int64_t e = block / b.sources, s = block % b.sources;
    const auto run = [&](Rows rows) {
      rows = cut.of(rows, e, s);
      add(e, used.row_0 + rows.begin, rows.count());
    };
    run(used.rows);
    if (!only_used(c.op)) run({used.rows.end, b.capacity});
  });
  if (rows_of_run > 0) f(expert, first, rows_of_run);
}

/// Zeroes the rows of y (the blocks b, `cols` columns) that are not in use; a part zeroes its part
/// of them. Does nothing for one part of a batch, for attr loose=1, where no op reads them, and for
/// packed rows.
template <class T, class Y>
void zero_unused(const KernelCall<T>& c, Y* y, const Blocks& b, const int32_t* counts,
                 int64_t cols) {
  if (!only_used(c.op) || is_part(c.op) || c.op.rows.loose || b.packed) return;
  const ExpertRowCut cut(c.graph, c.op, c.rank.rank, b.experts);
  for (int64_t i = 0; i < b.experts * b.sources; ++i) {
    const Rows unused = cut.of({counts[i], b.capacity}, i / b.sources, i % b.sources);
    if (unused.count() == 0) continue;
    c.k.clear(y + (i * b.capacity + unused.begin) * cols,
              static_cast<int64_t>(sizeof(Y)) * unused.count() * cols, c.stream);
  }
}

}  // namespace moe::ops
