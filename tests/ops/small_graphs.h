// Small graphs as text, each ending in a cross entropy, that between them hold every op with a
// gradient.
#pragma once

#include <string>
#include <vector>

#include "engine/base/rng.h"
#include "engine/graph/text.h"
#include "tests/ops/interpreter.h"

namespace moe::test {

struct SmallGraph {
  std::string name;
  std::string text;
  std::string gate = "switch";  // built-in gate of its gate ops
};

inline SmallGraph dense_graph() {
  return {"embedding, layernorm, linear with bias and residual, gelu with bias, tied head", R"(
graph dense ranks=1
%0 input i32 [2,5] ids
%1 input i32 [2,5] targets
%2 param f64 [7,6] wte
%3 param f64 [5,6] wpe
%4 param f64 [6] ln.w
%5 param f64 [6] ln.b
%6 param f64 [9,6] w1
%7 param f64 [9] b1
%8 param f64 [6,9] w2
%9 param f64 [6] b2
%10 = embedding(%0, %2, %3) embed forward embed
%11, %12, %13 = layernorm(%10, %4, %5) ln forward mlp
%14 = linear(%11, %6) fc1 forward mlp
%15 = gelu(%14, %7) act forward mlp
%16 = linear(%15, %8, %9, %10) fc2 forward mlp
%17 = linear(%16, %2) head forward head
%18, %19 = cross_entropy(%17, %1) {scale=0.1} loss forward head
)"};
}

inline SmallGraph reuse_graph() {
  return {"weights and activations with several readers, split, add and concat", R"(
graph reuse ranks=1
%1 input i32 [2,4] targets
%2 param f64 [2,4,6] x
%3 param f64 [6,6] w
%4 param f64 [6] b
%5 param f64 [6] g
%10 = linear(%2, %3, %4) l1 forward mlp
%11 = linear(%10, %3, %4, %2) l2 forward mlp
%12, %13, %14 = layernorm(%10, %5, %4) n1 forward mlp
%15, %16, %17 = layernorm(%11, %5, %4) n2 forward mlp
%18 = add(%12, %15) sum forward mlp
%19, %20 = split(%18) {axis=1, sizes="1,3"} cut forward mlp
%21 = gelu(%19) a1 forward mlp
%22 = gelu(%20, %4) a2 forward mlp
%23 = concat(%21, %22, %19) {axis=1} whole forward mlp
%24, %25 = split(%23) {axis=1, sizes="4,1"} cut2 forward mlp
%26 = gelu(%25, %4) a3 forward mlp
%27 = concat(%24, %26) {axis=1} whole2 forward mlp
%28, %29, %30 = split(%27) {axis=1, sizes="3,1,1"} cut3 forward mlp
%31 = add(%29, %30) sum2 forward mlp
%32 = concat(%28, %31) {axis=1} whole3 forward mlp
%33, %34 = cross_entropy(%32, %1) {scale=0.125} loss forward head
)"};
}

inline SmallGraph split_graph() {
  return {"products and a vocabulary that the ranks of a group split, here one rank", R"(
graph split ranks=1
%0 input i32 [2,4] ids
%1 input i32 [2,4] targets
%2 param f64 [7,6] wte split_axis=0
%3 param f64 [4,6] wpe
%4 param f64 [6,6] w split_axis=1
%5 param f64 [6] b
%6 = own_vocabulary(%0) {vocab=7} own forward embed
%7 = embedding(%6, %2) embed forward embed
%8 = scatter_rows(%7) {axis=1} sum forward embed
%21 = own_rows(%3) {axis=0} wpe.own forward embed
%9 = add_rows(%8, %21) positions forward embed
%10 = gather_rows(%9) {axis=1} all forward mlp
%11 = linear(%10, %4) fc forward mlp
%12 = scatter_rows(%11) {axis=1} fc.sum forward mlp
%13 = add_rows(%12, %5, %9) fc.add forward mlp
%14 = linear(%13, %2) head forward head
%15 = own_vocabulary(%1) {vocab=7} own_targets forward head
%16 = vocabulary_sums(%14, %15) sums forward head
%17 = gather_rows(%16) {axis=2} all_sums forward head
%18, %19 = cross_entropy_split(%14, %15, %17) {scale=0.1, copies=1} loss forward head
%20 = own_rows(%0) {axis=1} rows forward gate
%22 = tokens_ahead(%1) {by=1, fill=-1} ahead forward head
%23 = own_vocabulary(%22) {vocab=7} own_ahead forward head
%24 = vocabulary_sums(%14, %23) ahead_sums forward head
%25, %26 = mtp_loss_split(%14, %23, %24) {scale=0.2, copies=1, depth=1} mtp1 forward head
%27, %28 = mtp_loss(%14, %22) {scale=0.3, depth=2} mtp2 forward head
)"};
}

inline SmallGraph attention_graph(bool fused) {
  const std::string core = fused ? R"(
%10, %11 = attend(%9) {heads=2} core forward attn
)"
                                 : R"(
%11 = attn_score(%9) {heads=2} score forward attn
%12 = attn_softmax(%11) {head_dim=3} softmax forward attn
%10 = attn_context(%12, %9) {heads=2} context forward attn
)";
  return {fused ? "fused attention" : "unfused attention", R"(
graph attention ranks=1
%1 input i32 [2,5] targets
%2 param f64 [2,5,6] x
%3 param f64 [18,6] w
%4 param f64 [18] b
%9 = linear(%2, %3, %4) qkv forward attn)" + core + R"(
%20, %21 = cross_entropy(%10, %1) {scale=0.1} loss forward head
)"};
}

inline SmallGraph attend_graph() {
  return {"attention of grouped queries, a window, sinks, wider values, and the same k twice", R"(
graph attend ranks=1
%1 input i32 [2,5] targets
%2 param f64 [2,5,6] x
%3 param f64 [12,6] wq
%4 param f64 [6,6] wk
%5 param f64 [8,6] wv
%6 param f64 [4] sinks
%7 = linear(%2, %3) q forward attn
%8 = linear(%2, %4) k forward attn
%9 = linear(%2, %5) v forward attn
%10, %11 = attend(%7, %8, %9, %6) {heads=4, kv_heads=2, scale=0.8, window=3} core forward attn
%12, %13 = attend(%10, %10, %7, %6) {heads=4} again forward attn
%14, %15 = attend(%12, %8, %8) {heads=4, kv_heads=2} plain forward attn
%20, %21 = cross_entropy(%14, %1) {scale=0.1} loss forward head
)"};
}

inline SmallGraph rms_graph() {
  return {"rmsnorm of rows and of heads, its weight and input with other readers", R"(
graph rms ranks=1
%1 input i32 [2,5] targets
%2 param f64 [2,5,6] x
%3 param f64 [6] row.w
%4 param f64 [3] head.w
%5 param f64 [6,6] w
%10, %11 = rmsnorm(%2, %3) {eps=0.01} rows forward attn
%12 = linear(%10, %5, _, %2) mix forward attn
%13, %14 = rmsnorm(%12, %4) {eps=0.01} heads forward attn
%15, %16 = rmsnorm(%10, %4) {eps=0.1} heads2 forward attn
%17 = add(%13, %15) sum forward attn
%18, %19 = cross_entropy(%17, %1) {scale=0.1} loss forward head
)"};
}

inline SmallGraph gated_graph() {
  return {"a dense feed-forward with a gate", R"(
graph gated ranks=1
%1 input i32 [2,5] targets
%2 param f64 [2,5,6] x
%3 param f64 [14,6] w1
%4 param f64 [6,7] w2
%10 = linear(%2, %3) fc1 forward mlp
%11 = silu_mul(%10) act forward mlp
%12 = linear(%11, %4, _, %2) fc2 forward mlp
%13, %14 = cross_entropy(%12, %1) {scale=0.1} loss forward head
)"};
}

inline SmallGraph elementwise_graph() {
  return {"an embedding without positions, maps, products with rows and with numbers, sums", R"(
graph elementwise ranks=1
%0 input i32 [2,5] ids
%1 input i32 [2,5] targets
%2 param f64 [7,6] wte
%3 param f64 [6,6] w
%4 param f64 [1,6] one
%10 = embedding(%0, %2) embed forward embed
%11 = linear(%10, %3) l1 forward mlp
%12 = sigmoid(%11) gate forward mlp
%13 = mul(%10, %12) gated forward mlp
%14 = linear(%10, %4) l2 forward mlp
%15 = mul(%13, %14, %11) by_row forward mlp
%16 = relu(%15) act forward mlp
%17 = mul(%16, %16) squared forward mlp
%18 = scale(%17, %11) {factor=0.5} scaled forward mlp
%19 = row_dot(%18, %13) dots forward mlp
%20 = mul(%18, %19) weighted forward mlp
%21 = scale(%20) {factor=-2.0} head_in forward head
%22 = linear(%21, %2) head forward head
%23, %24 = cross_entropy(%22, %1) {scale=0.1} loss forward head
)"};
}

inline SmallGraph heads_graph() {
  return {"columns of heads cut and joined, some shared by all heads", R"(
graph heads ranks=1
%1 input i32 [2,5] targets
%2 param f64 [2,5,6] x
%3 param f64 [12,6] w
%10 = linear(%2, %3) kv forward attn
%11, %12 = split_heads(%10) {first=4, heads=2} split forward attn
%13, %14 = split_heads(%10) {first=1, heads=3, shared=1} sum forward attn
%15 = join_heads(%11, %14) {heads=2, shared=1} join forward attn
%16 = join_heads(%15, %12) {heads=2} join2 forward attn
%17 = join_heads(%16, %13) {heads=1} join3 forward attn
%18, %19 = cross_entropy(%17, %1) {scale=0.1} loss forward head
)"};
}

inline SmallGraph rope_graph() {
  return {"rotary embedding of heads and of parts of heads", R"(
graph rope ranks=1
%0 input i32 [2,5] ids
%1 input i32 [2,5] targets
%2 param f64 [2,5,8] x
%10 = rope_angles(%0) {frequencies="1,0.3", scale=1.2} angles forward embed
%11 = rope_angles(%0) {frequencies="0.7"} slow forward embed
%12 = rope(%2, %10) {head_dim=4} whole forward attn
%13 = rope(%12, %11) {first=1, form="interleaved", head_dim=4} part forward attn
%14 = rope(%2, %11) {first=6, head_dim=8, inverse=1} back forward attn
%15 = add(%13, %14) sum forward attn
%18, %19 = cross_entropy(%15, %1) {scale=0.1} loss forward head
)"};
}

inline SmallGraph rounds_graph() {
  return {"experts behind an exchange in rounds", R"(
graph rounds ranks=1
%1 input i32 [2,6] targets
%2 param f64 [4,3,5] x
%3 param f64 [4,7,5] w expert
%10 = split_peers(%2) {rounds=1} split forward dispatch
%11 = all_to_all(%10) {round=0, rounds=1, to="expert"} s0 forward dispatch
%12 = expert_linear(%11, %3) {rows="capacity"} fc forward expert
%13 = all_to_all(%12) {round=0, rounds=1, to="source"} r0 forward combine
%14 = join_peers(%13) {rounds=1} join forward combine
%15, %16 = cross_entropy(%14, %1) {scale=0.1} loss forward head
)"};
}

struct MoeOptions {
  std::string gate = "switch";
  int64_t k = 1, columns = 1, capacity = 3;
  std::string scores = "softmax", weight = "prob", rows = "capacity";
  bool exchange = false;       // all_to_all and exchange_counts on one rank
  bool irregular = true;       // of the exchange
  bool router_losses = false;  // balance_loss of all choices, z_loss
  bool bias = false;           // of experts 0 and 3, added for the choice
  std::string act = "gelu";    // of the experts: gelu, silu_mul or relu2, the square of ReLU
  bool logits_bias = false;    // of the router
  bool weighted = false;       // silu_mul multiplies by the weights, not combine
  std::string more = "";       // further attributes of the gate
  bool in_steps = false;       // blocks of 2 x 2 experts re-ordered first, and put back at the end
};

/// One MoE layer of 12 tokens and 4 experts, with its residual.
inline SmallGraph moe_graph(const MoeOptions& o) {
  std::string a2a, back;
  const char* const weight = o.weighted ? "_" : "%12";
  if (o.weighted) {
    a2a = R"(
%26 = dispatch_weight(%12, %16, %14) dispatch_weight forward dispatch layer=1
)";
  }
  if (o.exchange) {
    a2a = fmt::format(R"(
%18 = exchange_counts(%15) exchange forward dispatch layer=1
%19 = all_to_all(%17, %15, %18) {{irregular={}, to="expert"}} a2a_1 forward dispatch layer=1
)",
                      o.irregular ? 1 : 0);
    back = fmt::format(R"(
%24 = all_to_all(%23, %15, %18) {{irregular={}, to="source"}} a2a_2 forward combine layer=1
)",
                       o.irregular ? 1 : 0);
  }
  const char* rows_in = o.exchange ? "%19" : "%17";
  const char* rows_out = o.exchange ? "%24" : "%23";
  if (o.in_steps) {
    a2a = R"(
%50 = transpose_blocks(%17) {cols=2, rows=2} order_1 forward dispatch layer=1
%51 = all_to_all(%50) {to="expert"} intra_1 forward dispatch layer=1
%52 = all_to_all(%51) {to="expert"} inter_1 forward dispatch layer=1
)";
    back = R"(
%53 = all_to_all(%23) {sources=1, to="source"} inter_2 forward combine layer=1
%54 = all_to_all(%53) {to="source"} intra_2 forward combine layer=1
%56 = transpose_blocks(%54) {cols=2, rows=2} order_2 forward combine layer=1
)";
    rows_in = "%52";
    rows_out = "%56";
  }
  std::string losses;
  if (o.router_losses) {
    losses = fmt::format(R"(
%60 = expert_load({}) {{capacity={}, experts=4}} load forward gate layer=1
%61, %62 = balance_loss(%10, %60) {{scale=0.02, scores="{}"}} balance forward gate layer=1
%63, %64 = z_loss(%10) {{scale=0.03}} z forward gate layer=1
)",
                         o.bias ? "%14" : "%13", o.bias ? o.capacity : 1, o.scores);
  }
  const char* counts = o.exchange ? "%18" : "%15";
  const bool gated = o.act == "silu_mul";
  std::string experts = fmt::format(R"(
%20 = expert_linear({}, %4, {}, {}) {{rows="{}"}} fc1 forward expert layer=1)",
                                    rows_in, o.act == "gelu" ? "_" : "%5", counts, o.rows);
  if (o.act == "gelu") {
    experts += R"(
%21 = gelu(%20, %5) act forward expert layer=1)";
  } else if (gated) {
    experts += fmt::format(R"(
%21 = silu_mul(%20, {}) {{alpha=1.5, limit=0.9, offset=1, rows="{}"}} act forward expert layer=1)",
                           counts + std::string(o.weighted ? ", _, %26" : ""), o.rows);
  } else {
    experts += fmt::format(R"(
%22 = relu(%20, {0}) {{rows="{1}"}} relu forward expert layer=1
%21 = mul(%22, %22, _, {0}) {{rows="{1}"}} act forward expert layer=1)",
                           counts, o.rows);
  }
  const std::string gate_attrs =
      fmt::format("gate=\"{}\", k={}, columns={}, capacity={}, scores=\"{}\", weight=\"{}\"",
                  o.gate, o.k, o.columns, o.capacity, o.scores, o.weight) +
      o.more;
  return {fmt::format("MoE layer, gate {} scores {} weight {} rows {}{}{}{}{}", o.gate, o.scores,
                      o.weight, o.rows, o.router_losses ? ", router losses" : "",
                      o.bias ? ", biased" : "", ", " + o.act + (o.weighted ? " weighted" : ""),
                      o.exchange   ? ", exchanged"
                      : o.in_steps ? ", in steps"
                                   : ""),
          fmt::format(R"(
graph moe ranks=1
%0 input i32 [2,6] ids
%1 input i32 [2,6] targets
%2 param f64 [2,6,5] x
%3 param f64 [4,5] wg
%4 param f64 [4,{},5] w1 expert
%5 param f64 [4,{}] b1 expert
%6 param f64 [4,5,7] w2 expert
%7 param f64 [4,5] b2 expert
%8 param f64 [5] ln.w
%9 param f64 [5] ln.b
%40, %41, %42 = layernorm(%2, %8, %9) ln forward gate layer=1
{}
%10 = gate_logits(%40, %3{}) logits forward gate layer=1
%70 input f64 [4] bias
%11, %12, %13, %14, %16, %15 = gate(%10, %0{}) {{{}}} gate forward gate layer=1
%17 = dispatch(%40, %16, %14) {{k={}}} dispatch forward dispatch layer=1
{}
{}
%23 = expert_linear(%21, %6, %7, {}) {{rows="{}"}} fc2 forward expert layer=1
{}
%25 = combine({}, {}, %14, %2, %16) combine forward combine layer=1
%30, %31 = cross_entropy(%25, %1) {{scale=0.1}} loss forward head
{})",
                      gated ? 14 : 7, gated ? 14 : 7, o.logits_bias ? "%71 param f64 [4] wg.b" : "",
                      o.logits_bias ? ", %71" : "", o.bias ? ", _, %70" : "", gate_attrs, o.columns,
                      a2a, experts, counts, o.rows, back, rows_out, weight, losses),
          o.gate};
}

/// Parameters uniform in [-1, 1), different for every tensor; index inputs below `bound`.
template <class T>
void fill_inputs(const Graph& graph, Interpreter<T>& run, int64_t bound, uint64_t seed = 7) {
  for (size_t t = 0; t < graph.tensors().size(); ++t) {
    const Tensor& tensor = graph.tensors()[t];
    const TensorId id(static_cast<int64_t>(t));
    if (tensor.kind != TensorKind::kParam && tensor.kind != TensorKind::kInput) continue;
    Rng rng(seed + t);
    for (int64_t i = 0; i < run.size(id); ++i) {
      if (tensor.dtype == DType::kI32) {
        run.index(id)[i] = static_cast<int32_t>(rng.below(bound));
      } else {
        run.real(id)[i] = static_cast<T>(2 * rng.uniform() - 1);
      }
    }
  }
}

}  // namespace moe::test
