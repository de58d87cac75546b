#include "engine/cost/block_fills.h"

#include <algorithm>
#include <cmath>

#include "engine/graph/op_def.h"

namespace moe {
namespace {

/// The blocks of an op, whose input 0 has the shape [slots, sources, capacity, n] or, with one
/// source, [slots, capacity, n].
struct Blocks {
  int64_t slots;
  int64_t rows_of_slot;  // for which a slot has room: sources * capacity
  int64_t capacity;
  int64_t stored;  // Tensor::stored_rows; 0: not packed
};

Blocks blocks_of(const Graph& graph, const Op& op) {
  const Tensor& rows = graph.tensor(op.inputs[0]);
  const Shape& shape = rows.shape;
  const int64_t capacity = shape[shape.size() - 2];
  return {shape[0], num_elements(shape) / (shape[0] * shape.back()), capacity, rows.stored_rows};
}

/// The share of the batch whose rows the op computes.
double share(const Op& op) {
  return op.rows.share.value_or(1);
}

double ratio(int64_t a, int64_t b) {
  return static_cast<double>(a) / static_cast<double>(b);
}

}  // namespace

bool counts_blocks(const Graph& graph, const Op& op) {
  return graph.def(op).collective == Collective::kNone &&
         input_of(graph, op, Role::kRecvCounts).valid();
}

TimedRows timed_rows(const Graph& graph, const Op& op, double fill) {
  const Blocks b = blocks_of(graph, op);
  if (b.stored == 0) {
    const int64_t rows = std::llround(share(op) * fill * static_cast<double>(b.capacity));
    return {b.slots, b.slots, rows * (b.rows_of_slot / b.capacity)};
  }
  const auto room = static_cast<int64_t>(share(op) * static_cast<double>(b.stored));
  const int64_t wanted = std::llround(share(op) * fill * static_cast<double>(b.rows_of_slot));
  const int64_t rows = std::min(wanted, room);
  return {b.slots, rows == 0 ? b.slots : std::min(b.slots, room / rows), rows};
}

std::vector<double> timed_fills(const Graph& graph, const Op& op, double even) {
  const Blocks b = blocks_of(graph, op);
  const bool packed = b.stored > 0;
  const double one_row =
      1 / (share(op) * static_cast<double>(packed ? b.rows_of_slot : b.capacity));
  const double most = packed ? std::min(1.0, ratio(b.stored, b.rows_of_slot)) : 1;
  std::vector<double> fills = {0, one_row, even, most};
  if (packed) {
    for (double fill = 2 * std::max(even, one_row); fill < most; fill *= 2) fills.push_back(fill);
  } else {
    for (const double fill : {0.25, 0.5, 0.75}) fills.push_back(fill);
  }
  std::sort(fills.begin(), fills.end());
  // Between no row and one row per block there is nothing to time.
  std::erase_if(fills, [&](double fill) { return fill > 0 && (fill < one_row || fill > most); });
  if (fills.size() == 1) fills.push_back(most);
  fills.erase(std::unique(fills.begin(), fills.end()), fills.end());
  return fills;
}

}  // namespace moe
