// The gate in two ops. gate_logits uses a kernel in which the result of a row does not depend on
// the number of rows. gate computes scores, routes one rank's tokens, or those of the ranks that
// share its sequences, and sets the weights of the choices. The gates' algorithms are in routing/.
#include "engine/routing/gate.h"
#include "engine/base/names.h"
#include "engine/ops/defs.h"
#include "engine/ops/own_rows.h"

namespace moe::ops {
namespace {

std::vector<TensorSpec> infer_logits(const Graph& g, const Op& op) {
  const Shape& x = expect_matrix(g, op, 0);
  expect_shape(g, op, 1, {kAny, cols_of(x)});
  expect_shape(g, op, 2, {shape(g, op, 1)[0]});
  return {{{rows_of(x), shape(g, op, 1)[0]}, wide_dtype(arg(g, op, 0).dtype)}};
}

Work work_logits(const Graph& g, const Op& op, const WorkContext&) {
  const Shape& w = shape(g, op, 1);
  const MatrixWork matrix = gemm_of(static_cast<double>(rows_of(shape(g, op, 0))),
                                    static_cast<double>(w[0]), static_cast<double>(w[1]));
  return {.flops = 2 * matrix.m * matrix.n * matrix.k, .bytes = io_bytes(g, op), .matrix = matrix};
}

void gradient_logits(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId dy = c.grad(op.outputs[0]), x = op.inputs[0], w = op.inputs[1];
  if (c.needs(x)) {
    Attrs attrs = seq_attr(shape(c.graph(), op, 0));
    attrs.merge(store_attr(arg(c.graph(), op, 0).dtype));
    c.set(x, c.graph().out(c.emit("linear_dx", "dx", {dy, w, c.grad(x)}, attrs)));
  }
  if (c.needs(w)) {
    c.set(w, c.graph().out(c.emit("linear_dw", "dw", {dy, x, c.grad(w)}, {}, true)));
  }
  const TensorId bias = input_or_none(op, 2);
  if (c.needs(bias)) {
    c.set(bias, c.graph().out(c.emit(kBiasGrad, "db", {dy, c.grad(bias)}, {}, true)));
  }
}

std::vector<AxisTuple> axes_logits(const Graph&, const Op&) {
  return {{{0, kWhole, kWhole}, {0}}};
}

constexpr auto run_logits = []<class T>(const KernelCall<T>& c) {
  const Shape& w = c.in_shape(1);
  c.k.gate_logits(c.wide_out(0), c.in(0), c.wide(1), c.wide(2), rows_of(c.in_shape(0)), w[0], w[1],
                  c.stream);
};

/// Returns attr scale, the factor of the weights (default 1). Throws UserError unless it is above
/// 0.
double weight_scale(const Op& op) {
  const double scale = attr_double(op, "scale", 1);
  if (scale > 0) return scale;
  throw user_error("op '{}': attribute 'scale' is {}, allowed: a number above 0", op.name, scale);
}

/// Returns attrs groups, top_groups and group_score; without groups, all experts in one.
ExpertGroups groups_of_gate(const Op& op) {
  if (!op.attrs.contains("groups")) {
    for (const char* key : {"top_groups", "group_score"}) {
      if (!op.attrs.contains(key)) continue;
      throw user_error("op '{}' (gate): attribute '{}' needs attribute 'groups'", op.name, key);
    }
    return {};
  }
  return {expect_attr(op, "groups", 1), expect_attr(op, "top_groups", 1),
          value_named<GroupScore>("group_score", attr_string(op, "group_score", "max"))};
}

/// Whether the gate adds the experts' biases to the logits, and chooses by these sums (attr bias_on
/// is "logits"), or to the scores. Throws UserError for another value.
bool by_logits(const Op& op) {
  const std::string on = attr_string(op, "bias_on", "scores");
  if (on == "logits" || on == "scores") return on == "logits";
  throw user_error("op '{}' (gate): attribute 'bias_on' is '{}', allowed: scores, logits", op.name,
                   on);
}

/// The input with the logits of all tokens of the ranks that share sequences: of member after
/// member of the op's group, its rows of each of attr sequences. Attr all_capacity: the slots per
/// expert that they have together.
constexpr size_t kAllLogits = 4;

/// Returns the number of tokens that are routed together.
int64_t routed_tokens(const Graph& g, const Op& op) {
  return shape(g, op, has(op, kAllLogits) ? kAllLogits : 0)[0];
}

/// Returns how many choices per token there is room for.
int64_t columns_of(const Op& op) {
  return attr_int(op, "columns", expect_attr(op, "k", 1));
}

std::vector<TensorSpec> infer_gate(const Graph& g, const Op& op) {
  expect_shape(g, op, 0, {kAny, kAny});
  const int64_t tokens = shape(g, op, 0)[0], experts = shape(g, op, 0)[1];
  const Tensor& ids = arg(g, op, 1);
  if (has(op, kAllLogits)) {
    expect_shape(g, op, kAllLogits, {tokens * group_of(g, op).size, experts});
    expect_context(g, op);
    expect_attr(op, "sequences", 1);
    expect_attr(op, "all_capacity", 1);
  }
  const int64_t routed = routed_tokens(g, op);
  if (ids.dtype != DType::kI32 || num_elements(ids.shape) != routed) {
    throw user_error("op '{}' (gate): input 1 '{}' is {} {}, expected i32 ids of {} tokens",
                     op.name, ids.name, name_of(ids.dtype), shape_text(ids.shape), routed);
  }
  expect_index(g, op, 2, {experts});
  expect_shape(g, op, 3, {experts});
  score_rule(op);
  weight_rule(op);
  by_logits(op);
  const int64_t columns = columns_of(op), capacity = expect_attr(op, "capacity", 1);
  if (columns < 1 || columns > experts) {
    throw user_error(
        "op '{}' (gate): attribute 'columns' (or 'k') = {} choices per token, allowed: 1 to the {} "
        "experts",
        op.name, columns, experts);
  }
  weight_scale(op);
  check(groups_of_gate(op), experts, expect_attr(op, "k", 1),
        fmt::format("op '{}' (gate): attribute", op.name));
  const DType dtype = arg(g, op, 0).dtype;
  return {{{tokens, experts}, dtype},         {{tokens, columns}, dtype},
          {{tokens, columns}, DType::kI32},   {{tokens, columns}, DType::kI32},
          {{experts, capacity}, DType::kI32}, {{experts}, DType::kI32}};
}

/// A gate of token scope can be cut along tokens; each part gets the slots that earlier parts used.
/// A gate of batch scope cannot be cut.
std::vector<AxisTuple> axes_gate(const Graph&, const Op& op) {
  if (attr_string(op, "scope", "token") != "token") return {};
  return {{{0, 0, kWhole, kWhole}, {0, 0, 0, 0, kRows, kRowEnds}}};
}

TensorId gate_rows_end(const Graph&, const Op& op, size_t output) {
  return output == 4 ? op.outputs[5] : TensorId();
}

/// One part of a batch writes only its own slots in slot_choice.
Work work_gate(const Graph& g, const Op& op, const WorkContext& context) {
  Work work =
      elementwise_work(g, op, 5.0 * static_cast<double>(routed_tokens(g, op) * shape(g, op, 0)[1]));
  const double written = is_part(op) ? share_of(op) * context.slot_occupancy : 1.0;
  work.bytes -= (1 - written) * static_cast<double>(g.bytes(op.outputs[4]));
  return work;
}

void gradient_gate(GradContext& c, OpId) {
  const Op op = c.op();
  if (!c.needs(op.inputs[0]) || !c.grad(op.outputs[1]).valid()) return;
  Attrs attrs = {{"scores", attr_string(op, "scores", "softmax")},
                 {"weight", attr_string(op, "weight", "prob")}};
  if (op.attrs.contains("scale")) attrs["scale"] = weight_scale(op);
  const OpId dlogits =
      c.emit("gate_dlogits", "dx", {c.grad(op.outputs[1]), op.outputs[0], op.outputs[2]}, attrs);
  c.add(op.inputs[0], c.graph().out(dlogits));
}

/// Returns the numbers by which the gate chooses experts: the scores of n logits, plus the experts'
/// biases if there are any, or -infinity outside a token's best groups; they are float also in a
/// run of doubles. Where they differ from `probs`, they are written to `scores`.
template <class T>
const float* float_scores(const KernelCall<T>& c, const ExpertGroups& groups, const T* logits,
                          const T* probs, int64_t n, float* scores) {
  const T* const bias = c.in(3);
  const T* const base = by_logits(c.op) && bias != nullptr ? logits : probs;
  if constexpr (std::is_same_v<T, float>) {
    if (bias == nullptr && !groups.limits()) return probs;
  }
  const int64_t experts = c.in_shape(0)[1];
  for (int64_t i = 0; i < n; ++i) {
    const T score = bias == nullptr ? base[i] : base[i] + bias[i % experts];
    scores[i] = static_cast<float>(score);
  }
  limit_to_groups(groups, std::span(scores, static_cast<size_t>(n)), experts);
  return scores;
}

/// Lets the rank's gate choose for the tokens of `maps`, whose scores are given.
template <class T>
void choose(const KernelCall<T>& c, const RoutingMaps& maps, const ExpertGroups& groups,
            const float* scores, std::span<const int32_t> used) {
  const int64_t first = c.rank.first_token + maps.first_token;
  const GateInput input = {.tokens = maps.tokens,
                           .experts = maps.experts,
                           .k = attr_int(c.op, "k", 1),
                           .capacity = maps.capacity,
                           .scores = scores,
                           .ids = c.in_i32(1),
                           .first_token = first - first % maps.tokens * has(c.op, kAllLogits),
                           .step = c.rank.step,
                           .layer = c.op.layer,
                           .groups = groups};
  RoutingBuilder builder(maps, used);
  if (groups.limits()) builder.limit(scores);
  c.rank.gate->route(input, builder);
  builder.order_by_token();
}

/// Routes the tokens of all ranks that share the sequences, in their order, and writes the choices
/// of the rank's own tokens to `maps`.
template <class T>
void route_together(const KernelCall<T>& c, const ExpertGroups& groups, const RoutingMaps& maps) {
  const int64_t tokens = c.in_shape(kAllLogits)[0], experts = maps.experts;
  const int64_t sequences = attr_int(c.op, "sequences"), length = tokens / sequences;
  const Group group = group_of(c.graph, c.op);
  // The rows of the member at `place`: f(its own row, the number of the token).
  const auto each_row = [&](int64_t place, auto f) {
    const OwnRows rows(c.graph, c.op, length, place);
    for (int64_t i = 0; i < maps.tokens; ++i) {
      f(i, i / rows.own * length + rows.at(i % rows.own));
    }
  };
  const int64_t n = tokens * experts;
  auto* const logits = static_cast<T*>(c.scratch);
  T* const probs = logits + n;
  for (int64_t m = 0; m < group.size; ++m) {
    const T* const from = c.in(kAllLogits) + m * maps.tokens * experts;
    each_row(m, [&](int64_t i, int64_t t) {
      std::copy_n(from + i * experts, experts, logits + t * experts);
    });
  }
  c.k.gate_scores(probs, logits, score_rule(c.op), tokens, experts, c.stream);
  const float* const scores =
      float_scores(c, groups, logits, probs, n, reinterpret_cast<float*>(probs + n));
  RoutingMaps all = maps;
  all.tokens = tokens, all.capacity = attr_int(c.op, "all_capacity");
  std::vector<int32_t> expert(static_cast<size_t>(tokens * maps.columns)), slot(expert.size()),
      choice(static_cast<size_t>(experts * all.capacity)), counts(static_cast<size_t>(experts));
  all.expert = expert.data(), all.choice_slot = slot.data();
  all.slot_choice = choice.data(), all.counts = counts.data();
  choose(c, all, groups, scores, {});
  std::fill_n(maps.counts, experts, 0);
  std::fill_n(maps.slot_choice, experts * maps.capacity, -1);
  each_row(group.place(c.rank.rank), [&](int64_t i, int64_t t) {
    for (int64_t j = 0; j < maps.columns; ++j) {
      const int64_t own = i * maps.columns + j, from = t * maps.columns + j;
      const int32_t e = maps.expert[own] = all.expert[from];
      maps.choice_slot[own] = -1;
      if (all.choice_slot[from] < 0) continue;
      const int64_t at = e * maps.capacity + maps.counts[e]++;
      maps.choice_slot[own] = static_cast<int32_t>(at);
      maps.slot_choice[at] = static_cast<int32_t>(own);
    }
  });
}

constexpr auto run_gate = []<class T>(const KernelCall<T>& c) {
  const Shape& logits = c.in_shape(0);
  const int64_t tokens = logits[0], experts = logits[1];
  MOE_CHECK(
      c.rank.gate != nullptr,
      "op '{}' (gate): RankContext::gate is null; the executor must set it before the op runs",
      c.op.name);
  c.k.gate_scores(c.out(0), c.in(0), score_rule(c.op), tokens, experts, c.stream);
  const RoutingMaps maps = {.tokens = tokens,
                            .experts = experts,
                            .columns = c.out_shape(1)[1],
                            .capacity = c.out_shape(4)[1],
                            .expert = c.out_i32(2),
                            .choice_slot = c.out_i32(3),
                            .slot_choice = c.out_i32(4),
                            .counts = c.out_i32(5),
                            .first_token = attr_int(c.op, "first_token", 0),
                            .part = is_part(c.op)};
  const ExpertGroups groups = groups_of_gate(c.op);
  if (has(c.op, kAllLogits)) {
    route_together(c, groups, maps);
  } else {
    std::span<const int32_t> used;
    if (c.in_i32(2) != nullptr) used = {c.in_i32(2), static_cast<size_t>(experts)};
    const float* const scores = float_scores(c, groups, c.in(0), c.out(0), tokens * experts,
                                             static_cast<float*>(c.scratch));
    choose(c, maps, groups, scores, used);
  }
  gate_weights<T>(c.out(1), c.out(0), maps, weight_rule(c.op), static_cast<T>(weight_scale(c.op)));
};

Bytes gate_scratch(const Graph& g, const Op& op, Bytes elem_bytes) {
  const Bytes scores = routed_tokens(g, op) * shape(g, op, 0)[1];
  const bool own = !has(op, kAllLogits);  // else its logits and probabilities stand before
  if (own && elem_bytes != 8 && !has(op, 3) && !groups_of_gate(op).limits()) return 0;
  return scores * (static_cast<Bytes>(sizeof(float)) + (own ? 0 : 2 * elem_bytes));
}

std::vector<TensorSpec> infer_dlogits(const Graph& g, const Op& op) {
  expect_shape(g, op, 0, {kAny, kAny});
  const Shape& dweight = shape(g, op, 0);
  expect_shape(g, op, 1, {dweight[0], kAny});
  expect_index(g, op, 2, dweight);
  score_rule(op);
  weight_rule(op);
  weight_scale(op);
  return {{shape(g, op, 1), arg(g, op, 1).dtype}};
}

constexpr auto run_dlogits = []<class T>(const KernelCall<T>& c) {
  const Shape& probs = c.in_shape(1);
  const T* dweight = c.in(0);
  if (const double scale = weight_scale(c.op); scale != 1) {
    auto* const scaled = static_cast<T*>(c.scratch);
    c.k.map(scaled, dweight, kernels::Map::kScale, static_cast<T>(scale), nullptr,
            num_elements(c.in_shape(0)), c.stream);
    dweight = scaled;
  }
  c.k.gate_dlogits(c.out(0), dweight, c.in(1), c.in_i32(2), weight_rule(c.op), score_rule(c.op),
                   probs[0], probs[1], c.in_shape(0)[1], c.stream);
};

Bytes dlogits_scratch(const Graph& g, const Op& op, Bytes elem_bytes) {
  return weight_scale(op) == 1 ? 0 : num_elements(shape(g, op, 0)) * elem_bytes;
}

}  // namespace

const OpDef kGateLogits = {.name = "gate_logits",
                           .doc =
                               "logits = x wg^T [+ bias]; the bits of a row do not depend on other "
                               "rows",
                           .inputs = {{"x"}, {"wg"}, optional("bias", Role::kBias)},
                           .outputs = {{"logits"}},
                           .infer = infer_logits,
                           .work = work_logits,
                           .gradient = gradient_logits,
                           .axes = axes_logits,
                           .run = any_type(run_logits)};

const OpDef kGate = {
    .name = "gate",
    .doc =
        "scores, routing and weights; used_before gives the slots that earlier parts of the batch "
        "use; bias [E] is added to the scores (with attr bias_on=logits to the logits) for "
        "choosing, not for the weights; attr scale is a factor of the weights; with attrs groups, "
        "top_groups and group_score a token chooses from its best groups of experts; with "
        "all_logits, of the ranks that share sequences (attrs group, stride, context, sequences), "
        "all their tokens get all_capacity slots per expert in the order of the sequences",
    .moe = MoeOp::kGate,
    .inputs = {{"logits"},
               {"ids", Role::kIds},
               optional("used_before", Role::kUsedBefore),
               optional("bias", Role::kBias),
               optional("all_logits")},
    .outputs = {{"probs", Role::kProbs},
                {"weight", Role::kWeight},
                {"expert", Role::kExpert},
                {"choice_slot", Role::kChoiceSlot},
                {"slot_choice", Role::kSlotChoice},
                {"counts", Role::kCounts}},
    .infer = infer_gate,
    .work = work_gate,
    .gradient = gradient_gate,
    .differentiable = [](const Op& op) { return weight_rule(op) != kernels::WeightRule::kOne; },
    .axes = axes_gate,
    .begins = {{.input = 2, .of_output = 5}},
    .rows_end = gate_rows_end,
    .scratch_bytes = gate_scratch,
    .run = wide_types(run_gate),
    .on_host = always};

const OpDef kGateDlogits = {
    .name = "gate_dlogits",
    .doc = "gradient of the gate's logits from the gradient of the weights; attr scale",
    .inputs = {{"dweight", Role::kWeight}, {"probs", Role::kProbs}, {"expert", Role::kExpert}},
    .outputs = {{"dlogits"}},
    .infer = infer_dlogits,
    .work = work_each<4, 1>,
    .gradient = no_gradient,
    .scratch_bytes = dlogits_scratch,
    .run = wide_types(run_dlogits)};

}  // namespace moe::ops
