#include "engine/exec/profile_indices.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

#include "engine/base/rng.h"
#include "engine/ops/placed.h"
#include "engine/routing/gate.h"

namespace moe {
namespace {

constexpr uint64_t kIdStream = 0x1d5, kRotationStream = 0x707;

enum class Role {
  kIds,
  kExpert,
  kChoiceSlot,
  kSlotChoice,
  kCounts,
  kRecvCounts,
  kBegin,
  kPlacement,
};

/// What an index input means; for maps also the inputs whose shapes begin with [T,K] and [E,C]
/// (gate_dlogits: [T,E]).
struct Rule {
  std::string_view kind;
  size_t input;
  Role role;
  size_t choices = 0, slots = 0;
};

// The inputs as ops/ops.h lists them.
constexpr Rule kRules[] = {
    {"embedding", 0, Role::kIds},
    {"embedding_dw", 1, Role::kIds},
    {"cross_entropy", 1, Role::kIds},
    {"gate", 1, Role::kIds},
    {"gate_dlogits", 2, Role::kExpert, 2, 1},
    {"expert_load", 0, Role::kExpert, 0, 0},
    {"gate", 2, Role::kBegin},
    {"count_part", 0, Role::kChoiceSlot, 0},
    {"count_part", 1, Role::kBegin},
    {"dispatch", 1, Role::kSlotChoice, 2, 1},
    {"dispatch", 2, Role::kChoiceSlot, 2, 1},
    {"dispatch", 3, Role::kCounts},
    {"dispatch", 4, Role::kBegin},
    {"gelu", 2, Role::kRecvCounts},
    {"gelu", 3, Role::kBegin},
    {"gelu_dx", 3, Role::kRecvCounts},
    {"expert_linear", 4, Role::kBegin},
    {"all_to_all", 3, Role::kBegin},
    {"all_to_all", 4, Role::kBegin},
    {"dispatch_dx", 1, Role::kChoiceSlot, 1, 0},
    {"combine", 2, Role::kChoiceSlot, 2, 0},
    {"combine", 4, Role::kSlotChoice, 2, 0},
    {"combine_dx", 2, Role::kSlotChoice, 1, 2},
    {"combine_dweight", 2, Role::kChoiceSlot, 2, 1},
    {"expert_linear", 3, Role::kRecvCounts},
    {"expert_linear_dx", 3, Role::kRecvCounts},
    {"expert_linear_dw", 4, Role::kRecvCounts},
    {"all_to_all", 1, Role::kCounts},
    {"all_to_all", 2, Role::kRecvCounts},
    {"exchange_counts", 0, Role::kCounts},
    {"bias_grad", 2, Role::kRecvCounts},
    {"all_to_all", 5, Role::kPlacement},
    {"gather_loads", 0, Role::kCounts},
    {"slot_rows", 0, Role::kCounts},
    {"slot_rows", 1, Role::kPlacement},
    {"place", 0, Role::kCounts},
    {"place", 1, Role::kPlacement},
    {"fine_tune", 0, Role::kCounts},
    {"fine_tune", 2, Role::kPlacement},
    {"swap_in", 0, Role::kPlacement},
    {"swap_in", 1, Role::kPlacement},
    {"commit", 0, Role::kPlacement},
    {"commit", 1, Role::kPlacement},
    {"copy_experts", 0, Role::kPlacement},
    {"return_gradients", 0, Role::kPlacement},
    {"sum_residents", 0, Role::kPlacement},
    {"migrate", 0, Role::kPlacement},
    {"migrate", 1, Role::kPlacement},
};

size_t index(int64_t i) {
  return static_cast<size_t>(i);
}

bool present(const Op& op, size_t i) {
  return i < op.inputs.size() && op.inputs[i].valid();
}

/// Ids at every use of which are rows of the smallest table around.
int64_t vocabulary(const Graph& graph, const Op& op) {
  const std::string_view kind = graph.def(op).name;
  if (kind == "embedding") return graph.tensor(op.inputs[1]).shape[0];
  if (kind == "embedding_dw") return graph.tensor(op.outputs[0]).shape[0];
  if (kind == "cross_entropy") return graph.tensor(op.inputs[0]).shape.back();
  return 1 << 15;
}

std::vector<int32_t> token_ids(size_t n, int64_t vocab) {
  std::vector<int32_t> ids(n);
  for (size_t i = 0; i < n; ++i) {
    const uint64_t u = random24(i, kIdStream);
    ids[i] = static_cast<int32_t>((((u * u) >> 24) * static_cast<uint64_t>(vocab)) >> 24);
  }
  return ids;
}

struct Maps {
  std::vector<int32_t> expert, choice_slot, slot_choice, counts;
};

/// Places of an expert that hold a token, of this part of the batch.
int64_t used_places(const Op& op, const WorkContext& context, int64_t capacity) {
  return std::llround(attr_double(op, "share", 1) * context.fill * static_cast<double>(capacity));
}

/// Every run of E tokens goes to E different experts, in an order that changes from run to run, as
/// long as fewer than `used` of an expert's places are taken.
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

std::vector<int32_t> map_values(const Graph& graph, const Op& op, const Rule& rule,
                                const WorkContext& context) {
  const auto shape = [&](size_t i) -> const Shape& { return graph.tensor(op.inputs[i]).shape; };
  const Shape& rows = shape(0);
  const bool known = present(op, rule.choices);
  const int64_t columns = known ? shape(rule.choices)[1] : attr_int(op, "k", 1);
  const int64_t tokens = known ? shape(rule.choices)[0] : num_elements(rows) / rows.back();
  if (rule.role == Role::kExpert) {
    const int64_t all = attr_int(op, "experts", shape(rule.slots)[1]);
    return balanced_maps(tokens, columns, all, tokens, tokens).expert;
  }
  const Shape& slots = shape(rule.slots);
  const int64_t experts = attr_int(op, "experts", slots[0]);
  const int64_t capacity = attr_int(op, "capacity", slots[1]);
  Maps m = balanced_maps(tokens, columns, experts, capacity, used_places(op, context, capacity));
  for (int32_t& choice : m.slot_choice) {
    if (choice >= 0) choice += static_cast<int32_t>(attr_int(op, "first_token") * columns);
  }
  return rule.role == Role::kChoiceSlot ? m.choice_slot : m.slot_choice;
}

/// Each of the parts whose rows the op joins ends as far behind the one before, the last where the
/// balanced routing's rows end. Nothing when the input is not an end tally.
std::optional<int32_t> end_of_rows(const Graph& graph, OpId id, size_t input,
                                   const WorkContext& context) {
  const Op& op = graph.op(id);
  const std::vector<Piece> joined = pieces(graph, op);
  for (size_t p = 0; p < joined.size(); ++p) {
    if (joined[p].end != op.inputs[input]) continue;
    const Shape& blocks = graph.tensor(joined[p].end).shape;
    const auto rows = static_cast<double>(graph.tensor(joined[p].whole).shape[blocks.size()]);
    const double share = static_cast<double>(p + 1) / static_cast<double>(joined.size());
    return static_cast<int32_t>(std::lround(share * context.fill * rows));
  }
  return std::nullopt;
}

/// Places an expert and source rank that the op's rows provide for.
int64_t capacity_of(const Graph& graph, const Op& op) {
  const bool makes_rows = graph.def(op).name == std::string_view("dispatch");
  const Shape& rows = graph.tensor(makes_rows ? op.outputs[0] : op.inputs[0]).shape;
  return rows.size() >= 2 ? rows[rows.size() - 2] : 1;
}

/// Expert parallelism as it begins. Of n codes; `commit` does not look at them.
std::vector<int32_t> placement_codes(const Op& op, size_t n) {
  if (!op.attrs.contains("residents")) return std::vector<int32_t>(n);
  const Placement placement(ops::bounds_of(op));
  return {placement.codes().begin(), placement.codes().end()};
}

/// Counts [slots, sources] of the rows that a fill gives a device, in as few slots as hold them.
std::vector<int32_t> rows_of_slots(const Graph& graph, const Op& op, size_t input,
                                   const WorkContext& context) {
  const Shape& blocks = graph.tensor(op.inputs[input]).shape;
  const int64_t capacity = capacity_of(graph, op);
  std::vector<int32_t> rows(index(blocks[0] * blocks[1]));
  const double a_source = attr_double(op, "share", 1) * context.fill *
                          attr_double(op, "occupancy") * static_cast<double>(blocks[0] * capacity);
  int64_t left = std::llround(a_source);
  for (int64_t s = 0; s < blocks[0]; ++s) {
    const int64_t here = std::min(left, capacity);
    for (int64_t p = 0; p < blocks[1]; ++p) {
      rows[index(s * blocks[1] + p)] = static_cast<int32_t>(here);
    }
    left -= here;
  }
  return rows;
}

}  // namespace

std::vector<int32_t> index_values(const Graph& graph, OpId id, size_t input,
                                  const WorkContext& context) {
  const Op& op = graph.op(id);
  const size_t n = index(num_elements(graph.tensor(op.inputs[input]).shape));
  if (const auto end = end_of_rows(graph, id, input, context)) return std::vector<int32_t>(n, *end);
  const auto rule = std::find_if(std::begin(kRules), std::end(kRules), [&](const Rule& r) {
    return r.kind == graph.def(op).name && r.input == input;
  });
  if (rule == std::end(kRules)) return std::vector<int32_t>(n);
  switch (rule->role) {
    case Role::kIds:
      return token_ids(n, vocabulary(graph, op));
    case Role::kBegin:
      return std::vector<int32_t>(n);
    case Role::kPlacement:
      return placement_codes(op, n);
    case Role::kCounts:
    case Role::kRecvCounts: {
      if (op.attrs.contains("occupancy") && rule->role == Role::kRecvCounts) {
        return rows_of_slots(graph, op, input, context);
      }
      const int64_t rows = used_places(op, context, capacity_of(graph, op));
      return std::vector<int32_t>(n, static_cast<int32_t>(rows));
    }
    default:
      return map_values(graph, op, *rule, context);
  }
}

}  // namespace moe
