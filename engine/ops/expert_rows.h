// Rows of slots on the experts' side, tensors [El,P,C,n] (or [El,C,n]; letters as in ops.h). With
// attr rows = "used" an op computes only the rows that its counts input states; if it is one part
// of a batch (attr share) or of the rows (row_cut.h), only the rows of that part.
#pragma once

#include "engine/ops/rules.h"

namespace moe::ops {

inline bool only_used(const Op& op) {
  const std::string rows = attr_string(op, "rows", "capacity");
  if (rows != "capacity" && rows != "used") {
    throw user_error("op '{}': attribute 'rows' is '{}', allowed: capacity, used", op.name, rows);
  }
  return rows == "used";
}

/// Attr loose=1: no op reads rows that are not in use, so their values are undefined.
inline bool is_loose(const Op& op) {
  return attr_int(op, "loose") != 0;
}

/// The blocks of a row tensor: one of `capacity` rows per expert and source rank.
struct Blocks {
  int64_t experts, sources, capacity;
  int64_t rows_an_expert() const { return sources * capacity; }
};

inline Blocks blocks_of(const Graph& g, const Op& op, size_t i) {
  const Shape& x = shape(g, op, i);
  return {x[0], x.size() == 4 ? x[1] : 1, x[x.size() - 2]};
}

/// Whether the op needs the number of rows in use: to compute only these, or its part of them.
inline bool counts_rows(const Op& op) {
  return only_used(op) || is_cut(op);
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
  if (arg(g, op, counts).dtype != DType::kI32 ||
      num_elements(shape(g, op, counts)) != b.experts * b.sources) {
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
  return only_used(op) ? context.slot_occupancy * share_of(op) * slot_ratio_of(op) : share_of(op);
}

/// Calls f(expert, first row, number of rows) for each run of rows to compute, in row order. Runs
/// of rows in use start at row begins[block] of their block, or at 0 where `begins` is null. A part
/// with attr rows = "capacity" also computes its part of the rows that are not in use.
template <class T, class F>
void for_each_run(const KernelCall<T>& c, const Blocks& b, const int32_t* counts,
                  const int32_t* begins, F f) {
  const ExpertRowCut cut(c.graph, c.op, c.rank.rank, b.experts);
  for (int64_t e = 0; e < b.experts; ++e) {
    const int64_t first = e * b.rows_an_expert();
    if (!counts_rows(c.op)) {
      f(e, first, b.rows_an_expert());
      continue;
    }
    for (int64_t s = 0; s < b.sources; ++s) {
      const auto run = [&](Rows rows) {
        rows = cut.of(rows, e, s);
        if (rows.count() > 0) f(e, first + s * b.capacity + rows.begin, rows.count());
      };
      const int64_t used = counts[e * b.sources + s];
      run({begins == nullptr ? 0 : begins[e * b.sources + s], used});
      if (!only_used(c.op)) run({used, b.capacity});
    }
  }
}

/// Zeroes the rows of y (the blocks b, `cols` columns) that are not in use; a part zeroes its part
/// of them. Does nothing for one part of a batch, and for attr loose=1, where no op reads them.
template <class T>
void zero_unused(const KernelCall<T>& c, T* y, const Blocks& b, const int32_t* counts,
                 int64_t cols) {
  if (!only_used(c.op) || is_part(c.op) || is_loose(c.op)) return;
  const ExpertRowCut cut(c.graph, c.op, c.rank.rank, b.experts);
  for (int64_t i = 0; i < b.experts * b.sources; ++i) {
    const Rows unused = cut.of({counts[i], b.capacity}, i / b.sources, i % b.sources);
    if (unused.count() == 0) continue;
    c.k.clear(y + (i * b.capacity + unused.begin) * cols,
              static_cast<int64_t>(sizeof(T)) * unused.count() * cols, c.stream);
  }
}

}  // namespace moe::ops
