#include "engine/profile/indices.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/base/index.h"
#include "engine/base/rng.h"
#include "engine/cost/block_fills.h"
#include "engine/graph/op_def.h"
#include "engine/ops/placed.h"
#include "engine/ops/stored_rows.h"
#include "engine/routing/gate.h"

namespace moe {
namespace {

constexpr uint64_t kIdStream = 0x1d5, kRotationStream = 0x707;

/// Returns the number of token ids for the op: the rows of its table or the last dimension of its
/// scores; 2^15 if it has neither.
int64_t vocabulary(const Graph& graph, const Op& op) {
  for (const TensorId table :
       {input_of(graph, op, Role::kTable), output_of(graph, op, Role::kTable)}) {
    if (table.valid()) return graph.tensor(table).shape[0];
  }
  const TensorId scores = input_of(graph, op, Role::kScores);
  return scores.valid() ? graph.tensor(scores).shape.back() : 1 << 15;
}

std::vector<int32_t> token_ids(size_t n, int64_t vocab) {
  std::vector<int32_t> ids(n);
  for (size_t i = 0; i < n; ++i) {
    const uint64_t u = random24(i, kIdStream);
    ids[i] = static_cast<int32_t>((((u * u) >> 24) * static_cast<uint64_t>(vocab)) >> 24);
  }
  return ids;
}

/// Returns the number of blocks of a tensor [blocks.., rows, columns].
int64_t blocks_in(const Tensor& rows) {
  return num_elements({rows.shape.begin(), rows.shape.end() - 2});
}

struct Maps {
  std::vector<int32_t> expert, choice_slot, slot_choice, counts;
};

/// Returns how many slots of an expert hold a token of this part of the batch.
int64_t used_places(const Op& op, const WorkContext& context, int64_t capacity) {
  return std::llround(op.rows.share.value_or(1) * context.slot_occupancy *
                      static_cast<double>(capacity));
}

/// Returns the maps of a balanced routing: the first choices of each block of `experts` consecutive
/// tokens are all different, in an order that changes between blocks. An expert takes at most
/// `used` rows.
Maps balanced_maps(int64_t tokens, int64_t columns, int64_t experts, int64_t capacity,
                   int64_t used) {
  Maps m;
  m.expert.resize(index(tokens * columns));
  m.choice_slot.resize(m.expert.size());
  m.slot_choice.resize(index(experts * capacity));
  m.counts.resize(index(experts));
  RoutingBuilder builder({tokens, experts, columns, capacity, m.expert.data(), m.choice_slot.data(),
                          m.slot_choice.data(), m.counts.data()});
  std::vector<int64_t> taken(index(experts));
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t turn = random24(static_cast<uint64_t>(t / experts), kRotationStream);
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t e = (t + turn + j) % experts;
      if (taken[index(e)]++ < used) builder.take(t, e);
    }
  }
  return m;
}

/// Returns the shape of the first present input that has one of the roles; null if there is none.
const Shape* shape_of(const Graph& graph, const Op& op, std::initializer_list<Role> roles) {
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Operand* const operand = input_operand(graph.def(op), op, i);
    if (!op.inputs[i].valid() ||
        std::find(roles.begin(), roles.end(), operand->role) == roles.end())
      continue;
    return &graph.tensor(op.inputs[i]).shape;
  }
  return nullptr;
}

/// Returns the row tensor of the op that is packed (ops/stored_rows.h) and whose blocks divide `n`
/// counts; an invalid id if the op's rows are not packed.
TensorId packed_rows(const Graph& graph, const Op& op, int64_t n) {
  for (const auto* list : {&op.inputs, &op.outputs}) {
    for (const TensorId t : *list) {
      if (!t.valid() || graph.tensor(t).dtype == DType::kI32) continue;
      const Tensor& rows = graph.tensor(t);
      if (rows.stored_rows > 0 && n % blocks_in(rows) == 0) return t;
    }
  }
  return {};
}

/// Returns how many of `rows` rows block b of `blocks` has, spread evenly.
int32_t rows_of_block(int64_t rows, int64_t blocks, int64_t b) {
  return static_cast<int32_t>(rows / blocks + (b < rows % blocks ? 1 : 0));
}

/// Returns the counts of packed rows at the source of the tokens, spread evenly at the slot
/// occupancy. `n`: number of counts, those of each part of the batch one after the other.
std::vector<int32_t> packed_counts(const Op& op, const Tensor& rows, int64_t n,
                                   const WorkContext& context) {
  const int64_t blocks = blocks_in(rows), parts = n / blocks;
  const double even =
      context.slot_occupancy * static_cast<double>(blocks * rows.shape[rows.shape.size() - 2]);
  const auto total = static_cast<int64_t>(op.rows.share.value_or(1) *
                                          std::min(even, static_cast<double>(rows.stored_rows)));
  std::vector<int32_t> counts;
  for (int64_t part = 1; part <= parts; ++part) {
    for (int64_t b = 0; b < blocks; ++b) {
      counts.push_back(rows_of_block(total * part / parts, blocks, b));
    }
  }
  return counts;
}

/// Returns the n counts of an op that counts blocks: timed_rows(), spread evenly over source ranks;
/// those of each part of the batch one after the other.
std::vector<int32_t> counts_of_blocks(const Graph& graph, const Op& op, int64_t n,
                                      const WorkContext& context) {
  const TimedRows timed = timed_rows(graph, op, context.slot_occupancy * op.rows.occupancy);
  const int64_t of_rows = blocks_in(graph.tensor(op.inputs[0])), sources = of_rows / timed.slots;
  // The counts of a sum of copies are those of one.
  const int64_t blocks = op.attrs.contains("times")
                             ? std::min(of_rows, blocks_in(graph.tensor(op.outputs[0])))
                             : of_rows;
  const int64_t parts = n / blocks;
  std::vector<int32_t> counts;
  for (int64_t part = 1; part <= parts; ++part) {
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t rows = b / sources < timed.filled ? timed.rows_of_slot * part / parts : 0;
      counts.push_back(rows_of_block(rows, sources, b % sources));
    }
  }
  return counts;
}

/// Renumbers the slots of the maps for packed rows of this op, if its rows are packed.
void pack(const Graph& graph, const Op& op, int64_t experts, int64_t capacity, Maps& m) {
  const TensorId rows = packed_rows(graph, op, experts);
  if (!rows.valid()) return;
  std::vector<int32_t> packed(m.choice_slot.size());
  m.slot_choice.assign(index(graph.tensor(rows).stored_rows), -1);
  ops::pack_slots({experts, capacity, 1, true}, m.counts.data(), nullptr, m.choice_slot, 0,
                  packed.data(), m.slot_choice.data());
  m.choice_slot = std::move(packed);
}

/// Returns an index map of a gate, or its counts, for an input with this role. Its sizes are taken
/// from the other inputs and the attributes of the op.
std::vector<int32_t> map_values(const Graph& graph, const Op& op, Role role,
                                const WorkContext& context) {
  const Shape& rows = graph.tensor(op.inputs[0]).shape;
  const Shape* const choices =
      shape_of(graph, op, {Role::kWeight, Role::kExpert, Role::kChoiceSlot});
  const int64_t columns = choices != nullptr ? (*choices)[1] : attr_int(op, "k", 1);
  const int64_t tokens = choices != nullptr ? (*choices)[0] : num_elements(rows) / rows.back();
  if (role == Role::kExpert) {
    const Shape* const probs = shape_of(graph, op, {Role::kProbs});
    const int64_t all = attr_int(op, "experts", probs != nullptr ? (*probs)[1] : 0);
    return balanced_maps(tokens, columns, all, tokens, tokens).expert;
  }
  const Shape* const slots = shape_of(graph, op, {Role::kSlots, Role::kSlotChoice});
  const int64_t experts = attr_int(op, "experts", slots != nullptr ? (*slots)[0] : 0);
  const int64_t capacity = attr_int(op, "capacity", slots != nullptr ? (*slots)[1] : 0);
  Maps m = balanced_maps(tokens, columns, experts, capacity, used_places(op, context, capacity));
  pack(graph, op, experts, capacity, m);
  for (int32_t& choice : m.slot_choice) {
    if (choice >= 0) choice += static_cast<int32_t>(attr_int(op, "first_token") * columns);
  }
  if (role == Role::kCounts) return m.counts;
  return role == Role::kChoiceSlot ? m.choice_slot : m.slot_choice;
}

/// Returns the value of a row end of an op that joins parts: parts have equally many rows, and the
/// last part ends at the last row of the balanced routing. nullopt if the input is not a row end.
std::optional<int32_t> end_of_rows(const Graph& graph, OpId id, size_t input,
                                   const WorkContext& context) {
  const Op& op = graph.op(id);
  const std::vector<Piece> joined = pieces(graph, op);
  for (size_t p = 0; p < joined.size(); ++p) {
    if (joined[p].end != op.inputs[input]) continue;
    const Shape& blocks = graph.tensor(joined[p].end).shape;
    const auto rows = static_cast<double>(graph.tensor(joined[p].whole).shape[blocks.size()]);
    const double share = static_cast<double>(p + 1) / static_cast<double>(joined.size());
    const double end = share * context.slot_occupancy * rows;
    const bool packed = graph.tensor(joined[p].whole).stored_rows > 0;  // has no room to round up
    return static_cast<int32_t>(packed ? std::floor(end) : std::round(end));
  }
  return std::nullopt;
}

/// Returns the slots per expert and source rank in the rows of the op.
int64_t capacity_of(const Graph& graph, const Op& op) {
  const TensorId made = output_of(graph, op, Role::kSlots);
  const Shape& rows = graph.tensor(made.valid() ? made : op.inputs[0]).shape;
  return rows.size() >= 2 ? rows[rows.size() - 2] : 1;
}

/// Returns the n codes of the placement before the first step (plain expert parallelism); zeros for
/// a `commit` op, which does not read them.
std::vector<int32_t> placement_codes(const Op& op, size_t n) {
  if (!op.attrs.contains("residents")) return std::vector<int32_t>(n);
  const Placement placement(ops::bounds_of(op));
  return {placement.codes().begin(), placement.codes().end()};
}

}  // namespace

std::vector<int32_t> index_values(const Graph& graph, OpId id, size_t input,
                                  const WorkContext& context) {
  const Op& op = graph.op(id);
  const size_t n = index(stored_elements(graph.tensor(op.inputs[input])));
  if (const auto end = end_of_rows(graph, id, input, context)) return std::vector<int32_t>(n, *end);
  const Role role = input_operand(graph.def(op), op, input)->role;
  switch (role) {
    case Role::kIds:
      return token_ids(n, vocabulary(graph, op));
    case Role::kPlacement:
    case Role::kNextPlacement:
      return placement_codes(op, n);
    case Role::kCounts:
    case Role::kLoads:
    case Role::kRecvCounts: {
      if (role == Role::kRecvCounts && counts_blocks(graph, op)) {
        return counts_of_blocks(graph, op, static_cast<int64_t>(n), context);
      }
      const auto packed = packed_rows(graph, op, static_cast<int64_t>(n));
      if (packed.valid()) {
        return packed_counts(op, graph.tensor(packed), static_cast<int64_t>(n), context);
      }
      if (op.rows.stored > 0) return map_values(graph, op, role, context);  // numbers the slots
      const int64_t rows = used_places(op, context, capacity_of(graph, op));
      return std::vector<int32_t>(n, static_cast<int32_t>(rows));
    }
    case Role::kExpert:
    case Role::kChoiceSlot:
    case Role::kSlotChoice: {
      // An exchange is timed without the dispatcher that reads them.
      if (graph.def(op).collective != Collective::kNone) return std::vector<int32_t>(n, -1);
      // While a step is cut, ops on packed rows still read maps of all slots.
      std::vector<int32_t> values = map_values(graph, op, role, context);
      values.resize(n, -1);
      return values;
    }
    default:  // 0 for row begins (the first part), for estimates, and for tensors that only move
      return std::vector<int32_t>(n);
  }
}

}  // namespace moe
