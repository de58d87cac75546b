// Ops that do not fit are refused with the op, the tensor and what is allowed.
#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "engine/graph/text.h"
#include "engine/ops/ops.h"

namespace moe::test {
namespace {

using Catch::Contains;

/// A graph of common tensors and one op.
void parse_with(const std::string& op, int ranks = 1) {
  parse_graph(fmt::format(R"(
graph g ranks={}
%0 input i32 [2,6] ids
%1 param f32 [2,6,4] x
%2 param f32 [3,4] w
%3 param f32 [5] five
%4 param f32 [12,3] logits
%5 input i32 [3,4] slot_choice
%6 input i32 [12,1] choice_slot
%7 param f32 [3,4,4] slots
%8 input i32 [3] counts
%9 param f32 [3,6,4] we
%10 param f32 [2,6,12] qkv
%11 param f32 [6] six
%12 param f32 [36] three_a_row
%13 param f32 [6,2] angles
%14 param f32 [2,4,7] seven
)",
                          ranks) +
                  op,
              op_table());
}

}  // namespace

TEST_CASE("misuse of an op names the op, the tensor and what is allowed") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"%20 = linear(%1, %3) l forward mlp",
       "op 'l' (linear): input 1 'five' is f32 [5], expected floating point [*,4]"},
      {"%20 = linear(%1, %2, %3) l forward mlp",
       "input 2 'five' is f32 [5], expected floating point [3]"},
      {"%20 = linear(%0, %2) l forward mlp", "input 0 'ids' is i32 [2,6], expected floating point"},
      {"%20 = linear(%1) l forward mlp", "(linear) has 1 inputs, allowed: 2 to 4"},
      {"%20 = linear(%1, _) l forward mlp", "input 1 of linear (w) is absent, but required"},
      {"%20 = embedding(%1, %2, %2) e forward embed",
       "input 0 'x' is f32 [2,6,4], expected i32 [*,*]"},
      {"%20, %21, %22 = layernorm(%1, %3, %3) n forward mlp",
       "input 1 'five' is f32 [5], expected floating point [4]"},
      {"%20, %21 = rmsnorm(%1, %4) {eps=1e-6} n forward mlp",
       "input 1 'logits' is f32 [12,3], expected floating point [*]"},
      {"%20, %21 = rmsnorm(%1, %3) {eps=1e-6} n forward mlp",
       "op 'n' (rmsnorm): input 1 'five' is [5], allowed: a length that divides the last axis of "
       "'x' [2,6,4]"},
      {"%20, %21 = rmsnorm(%10, %11) n forward mlp",
       "op 'n': attribute 'eps' is 0, allowed: above 0"},
      {"%20 = rmsnorm_dw(%1, %1, %3) n backward mlp",
       "input 2 'five' is f32 [5], expected floating point [12]"},
      {"%20 = rmsnorm_dw(%1, %1, %12) n backward mlp",
       "op 'n' (rmsnorm_dw): input 2 'three_a_row' has 3 elements per row of 'x' [2,6,4]"},
      {"%20, %21 = attend(%1) {heads=2} a forward attn", "must be a multiple of 3 * heads = 3 * 2"},
      {"%20, %21 = attend(%1) a forward attn",
       "attribute 'heads' must be given, a whole number of at least 1"},
      {"%20, %21 = attend(%10) {heads=2, kernels=\"mine\"} a forward attn",
       "op 'a': attribute 'kernels' is 'mine', allowed: cudnn, own"},
      {"%20 = gelu(%1, %2) a forward mlp",
       "input 1 'w' is f32 [3,4], expected floating point [2,4]"},
      {"%20 = silu_mul(%4) a forward mlp",
       "op 'a' (silu_mul): input 0 'logits' is [12,3], allowed: a last axis of even length"},
      {"%20 = silu_mul(%1) {limit=-7} a forward mlp",
       "op 'a': attribute 'limit' is -7, allowed: a number above 0"},
      {"%20 = silu_mul(%1) {alpha=0} a forward mlp",
       "op 'a': attribute 'alpha' is 0, allowed: a number above 0"},
      {"%20 = silu_mul(%7) {rows=\"used\"} a forward expert",
       "attribute 'rows' is 'used', which needs input 1, recv_counts"},
      {"%20 = silu_mul_dx(%1, %1) a backward mlp",
       "input 0 'x' is f32 [2,6,4], expected floating point [2,6,2]"},
      {"%20 = mul(%1, %2) a forward mlp",
       "input 1 'w' is f32 [3,4], expected floating point [2,6,4]"},
      {"%20 = scale(%1) a forward mlp", "op 'a' (scale): attribute 'factor' must be given"},
      {"%20 = relu(%7) {rows=\"used\"} a forward expert",
       "attribute 'rows' is 'used', which needs input 1, recv_counts"},
      {"%20, %21 = split_heads(%10) {heads=5, first=1} a forward attn",
       "op 'a' (split_heads): input 0 'qkv' is [2,6,12], allowed: a last axis of 'heads' = 5 times "
       "more than 'first' = 1 columns"},
      {"%20, %21 = split_heads(%10) {heads=3, first=4} a forward attn", "'first' = 4 columns"},
      {"%20, %21 = split_heads(%10) {heads=3, first=1, shared=2} a forward attn",
       "op 'a': attribute 'shared' = 2, allowed: 0 or 1"},
      {"%20 = join_heads(%10, %1) {heads=3} a forward attn",
       "op 'a' (join_heads): input 1 'x' is [2,6,4], allowed: a last axis of 'heads' = 3 times a "
       "head's columns"},
      {"%20 = embedding_dw(%1, %0, _, %1) {vocab=3, positions=0} e backward embed",
       "op 'e' (embedding_dw): input 3 is not allowed with attribute 'positions' = 0"},
      {"%20 = gate_logits(%1, %2, %3) l forward gate",
       "input 2 'five' is f32 [5], expected floating point [3]"},
      {"%20, %21 = attend(%0, %0, %0) {heads=1} a forward attn",
       "input 0 'ids' is i32 [2,6], expected floating point [*,*,*]"},
      {"%20, %21 = attend(%10, %10, %10) a forward attn",
       "op 'a': attribute 'heads' must be given, a whole number of at least 1"},
      {"%20, %21 = attend(%10, %10, %10) {heads=5} a forward attn",
       "op 'a': attribute 'heads' = 5, allowed: a divisor of the last axis of 'qkv' [2,6,12]"},
      {"%20, %21 = attend(%10, %10, %10) {heads=6, kv_heads=0} a forward attn",
       "op 'a': attribute 'kv_heads' = 0, allowed: a divisor of heads = 6"},
      {"%20, %21 = attend(%10, %10, %10) {heads=6, kv_heads=4} a forward attn",
       "op 'a': attribute 'kv_heads' = 4, allowed: a divisor of heads = 6"},
      {"%20, %21 = attend(%10, %10, %10) {heads=6, kv_heads=2} a forward attn",
       "input 1 'qkv' is f32 [2,6,12], expected floating point [2,6,4]"},
      {"%20, %21 = attend(%10, %10, %1) {heads=3} a forward attn",
       "op 'a': attribute 'kv_heads' = 3, allowed: a divisor of the last axis of 'x' [2,6,4]"},
      {"%20, %21 = attend(%1, %1, %14) {heads=1} a forward attn",
       "input 2 'seven' is f32 [2,4,7], expected floating point [2,6,*]"},
      {"%20, %21 = attend(%1, %1, %1) {heads=2, window=-1} a forward attn",
       "op 'a': attribute 'window' = -1, allowed: 0 (none), or a number of keys above 0"},
      {"%20, %21 = attend(%1, %1, %1) {heads=2, scale=0} a forward attn",
       "op 'a': attribute 'scale' = 0, allowed: a number above 0"},
      {"%20, %21 = attend(%1, %1, %1, %11) {heads=2} a forward attn",
       "input 3 'six' is f32 [6], expected floating point [2]"},
      {"%20, %21, %22 = attend_dx(%1, %1, %1, %1, %1, %1) {heads=2} a backward attn",
       "input 2 'x' is f32 [2,6,4], expected floating point [2,2,6]"},
      {"%20, %21 = attend(%10) {heads=4, kv_heads=2} a forward attn",
       "op 'a': attribute 'kv_heads' = 2, allowed: heads = 4, where q holds k and v"},
      {"%20, %21 = attend(%1, %1) {heads=2} a forward attn",
       "op 'a' (attend): give k and v, or neither where q holds them, too"},
      {"%20 = attend_dsinks(%1, %1, %1, %11) a backward attn",
       "input 1 'x' is f32 [2,6,4], expected floating point [2,4,*]"},
      {"%20 = attend_dsinks(%1, %14, %14, %11) a backward attn",
       "op 'a' (attend_dsinks): input 0 'x' is [2,6,4], allowed: a number of heads that divides "
       "the last axis of 'seven' [2,4,7]"},
      {"%20 = rope_angles(%1) {frequencies=\"1\"} r forward embed",
       "input 0 'x' is f32 [2,6,4], expected i32 [*,*]"},
      {"%20 = rope_angles(%0) r forward embed",
       "op 'r': attribute 'frequencies' is '', allowed: numbers of at least 0 such as"},
      {"%20 = rope_angles(%0) {frequencies=\"1,-1\"} r forward embed",
       "attribute 'frequencies' is '1,-1'"},
      {"%20 = rope_angles(%0) {frequencies=\"1,\"} r forward embed",
       "attribute 'frequencies' is '1,'"},
      {"%20 = rope_angles(%0) {frequencies=\"nan\"} r forward embed",
       "attribute 'frequencies' is 'nan'"},
      {"%20 = rope(%1, %2) {head_dim=4} r forward attn",
       "input 1 'w' is f32 [3,4], expected floating point [6,*]"},
      {"%20 = rope(%1, %13) r forward attn",
       "attribute 'head_dim' must be given, a whole number of at least 1"},
      {"%20 = rope(%1, %13) {head_dim=3} r forward attn",
       "op 'r': attribute 'head_dim' = 3, allowed: a divisor of the last axis of 'x' [2,6,4]"},
      {"%20 = rope(%1, %13) {head_dim=4, first=3} r forward attn",
       "op 'r': attribute 'first' = 3 with 2 columns of angles 'angles', allowed: an even number "
       "of "
       "columns from 'first' to at most head_dim = 4"},
      {"%20 = rope(%1, %13) {head_dim=4, form=\"pairs\"} r forward attn",
       "op 'r': attribute 'form' is 'pairs', allowed: halves, interleaved"},
      {"%20 = rope(%1, %13) {head_dim=4, inverse=2} r forward attn",
       "op 'r': attribute 'inverse' = 2, allowed: 0 or 1"},
      {"%20, %21, %22, %23, %24, %25 = gate(%4, %8) {k=1, capacity=4} r forward gate",
       "expected i32 ids of 12 tokens"},
      {"%20, %21, %22, %23, %24, %25 = gate(%4, %0) {k=4, capacity=4} r forward gate",
       "4 choices per token, allowed: 1 to the 3 experts"},
      {"%20, %21, %22, %23, %24, %25 = gate(%4, %0) {k=1} r forward gate",
       "attribute 'capacity' must be given, a whole number of at least 1"},
      {"%20, %21, %22, %23, %24, %25 = gate(%4, %0) {k=1, capacity=4, weight=\"probs\"} r forward "
       "gate",
       "attribute 'weight' is 'probs', allowed: prob, renorm, one"},
      {"%20, %21, %22, %23, %24, %25 = gate(%4, %0) {k=1, capacity=4, scores=\"max\"} r forward "
       "gate",
       "attribute 'scores' is 'max', allowed: softmax, sigmoid"},
      {"%20, %21, %22, %23, %24, %25 = gate(%4, %0) {k=1, capacity=4, scale=0} r forward gate",
       "op 'r': attribute 'scale' is 0, allowed: a number above 0"},
      {"%20, %21, %22, %23, %24, %25 = gate(%4, %0) {k=1, capacity=4, groups=2, top_groups=1} r "
       "forward gate",
       "op 'r' (gate): attribute 'groups' = 2, allowed: a divisor of the 3 experts"},
      {"%20, %21, %22, %23, %24, %25 = gate(%4, %0) {k=1, capacity=4, groups=3} r forward gate",
       "attribute 'top_groups' must be given, a whole number of at least 1"},
      {"%20, %21, %22, %23, %24, %25 = gate(%4, %0) {k=1, capacity=4, top_groups=1} r forward gate",
       "op 'r' (gate): attribute 'top_groups' needs attribute 'groups'"},
      {"%20, %21, %22, %23, %24, %25 = gate(%4, %0) {k=1, capacity=4, groups=3, top_groups=1, "
       "group_score=\"sum\"} r forward gate",
       "unknown group_score 'sum', have: max, top2"},
      {"%20 = count_part(%6) {experts=3} r forward gate",
       "attribute 'capacity' must be given, a whole number of at least 1"},
      {"%20 = dispatch(%1, %5, %6) {k=1, share=0.5} d forward dispatch",
       "attribute 'share' (one part of a batch) needs input 3, counts"},
      {"%20 = dispatch(%1, %5, %6) {k=2} d forward dispatch",
       "input 2 'choice_slot' is i32 [12,1], expected i32 [12,2]"},
      {"%20 = all_to_all(%7, %8) {to=\"owner\"} c forward dispatch",
       "attribute 'to' is 'owner', allowed: expert, source"},
      {"%20 = all_to_all(%7, %8) {to=\"expert\", irregular=1} c forward dispatch",
       "attribute 'irregular' = 1 needs inputs 1 (counts) and 2 (recv_counts)"},
      {"%20 = expert_linear(%7, %9) {rows=\"used\"} l forward expert",
       "attribute 'rows' is 'used', which needs input 3, recv_counts"},
      {"%20 = expert_linear(%7, %9, _, %0) {rows=\"used\"} l forward expert",
       "input 3 'ids' is i32 [2,6], expected i32 [3,1]"},
      {"%20 = expert_linear(%7, %9) {rows=\"some\"} l forward expert",
       "attribute 'rows' is 'some', allowed: capacity, used"},
      {"%20 = combine(%7, %4, %6) c forward combine",
       "input 2 'choice_slot' is i32 [12,1], expected i32 [12,3]"},
      {"%20, %21 = cross_entropy(%1, %8) l forward head", "expected i32 targets of 12 rows"},
      {"%20 = expert_load(%6) {experts=0} l forward gate",
       "attribute 'experts' must be given, a whole number of at least 1"},
      {"%20, %21 = balance_loss(%4, %3) b forward gate",
       "input 1 'five' is f32 [5], expected floating point [3]"},
      {"%20, %21 = z_loss(%4) {scores=\"max\"} z forward gate",
       "attribute 'scores' is 'max', allowed: softmax, sigmoid"},
      {"%20, %21, %22, %23, %24, %25 = gate(%4, %0, _, %3) {k=1, capacity=4} r forward gate",
       "input 3 'five' is f32 [5], expected floating point [3]"},
      {"adamw(%1, %1, %1, %2) {beta1=0.9, beta2=0.9} s update update",
       "input 3 'w' is f32 [3,4], expected floating point [2,6,4]"},
      {"adamw(%1, %1, %1, %1) {beta1=0.9, beta2=1.0} s update update",
       "attribute 'beta2' is 1, allowed: at least 0 and below 1"},
      {"sgd(%1, %1, %2) s update update",
       "input 2 'w' is f32 [3,4], expected floating point [2,6,4]"},
      {"%20 = add(%1, %2) a forward mlp",
       "input 1 'w' is f32 [3,4], expected floating point [2,6,4]"},
      {"%20, %21 = split(%1) {axis=1, sizes=\"2,3\"} s forward mlp",
       "the sum of attribute 'sizes' = '2,3' is not the length of axis 1 of 'x' [2,6,4]"},
      {"%20, %21 = split(%1) {axis=1, sizes=\"2,,4\"} s forward mlp",
       "attribute 'sizes' is '2,,4'"},
      {"%20, %21 = split(%1) {axis=1, sizes=\"2,4,\"} s forward mlp",
       "attribute 'sizes' is '2,4,'"},
      {"%20, %21 = split(%1) {axis=3, sizes=\"2,4\"} s forward mlp",
       "attribute 'axis' = 3, allowed: an axis of 'x' [2,6,4], counted from 0"},
      {"%20 = concat(%1, %7) {axis=1} s forward mlp", "only the lengths of axis 1 may differ"},
      {"%20 = concat(%1, %2) {axis=1} s forward mlp", "'x' and 'w' must have the same type"},
      {"%20, %21 = split(%1) {axis=1, sizes=\"2,4\", view=1} s forward mlp",
       "op 's': attribute 'view' = 1 for axis 1 of 'x' [2,6,4] is not allowed"},
      {"%20 = concat(%7, %7) {axis=2, view=1} s forward mlp",
       "op 's': attribute 'view' = 1 for axis 2 of 'slots' [3,4,4] is not allowed"},
      {"%20 = concat(%7, %7) {axis=0, view=2} s forward mlp",
       "op 's': attribute 'view' = 2, allowed: 0 or 1"},
      {"%20 = join_rows(%8, %7) j forward mlp",
       "attribute 'parts' must be given, a whole number of at least 1"},
      {"%20 = join_rows(%8, %7, %7) {parts=2} j forward mlp",
       "op 'j' (join_rows): it has 3 inputs, expected 2 tensors of row ends and then 2 parts"},
      {"%20 = join_rows(%8, %8, %7, _) {parts=2} j forward mlp", "input 3 of join_rows"},
      {"%20 = join_rows(%8, %1) {parts=1} j forward mlp",
       "row ends 'counts' are [3], expected the first axes, but not all, of part 'x' [2,6,4]"},
      {"%20 = join_rows(%8, %8) {parts=1} j forward mlp",
       "row ends 'counts' are [3], expected the first axes, but not all, of part 'counts' [3]"},
      {"%20 = join_rows(%8, %5, %7, %7) {parts=2} j forward mlp",
       "input 1 'slot_choice' is i32 [3,4], expected i32 [3]"},
      {"%20 = join_rows(%8, %8, %7, %9) {parts=2} j forward mlp",
       "part 'we' is f32 [3,6,4], expected f32 [3,4,4] like part 'slots'"},
      {"%20 = all_reduce(%0) r backward update", "input 0 'ids' is i32"},
      {"%20 = transpose_blocks(%7) {rows=2, cols=2} t forward dispatch",
       "op 't' (transpose_blocks): input 0 'slots' is [3,4,4], but its first axis must be a "
       "multiple of rows * cols = "
       "2 * 2"},
      {"%20 = transpose_blocks(%7) {rows=3} t forward dispatch",
       "attribute 'cols' must be given, a whole number of at least 1"},
      {"%20 = all_to_all(%7) {to=\"source\", sources=2} c forward combine",
       "input 0 'slots' is f32 [3,4,4], expected floating point [*,2,*,*]"},
  };
  for (const auto& [op, message] : cases) {
    INFO(op);
    CHECK_THROWS_WITH(parse_with(op), Contains(message));
  }
}

TEST_CASE("experts that do not divide over the ranks are refused") {
  CHECK_THROWS_WITH(parse_with("%20 = all_to_all(%7, %8) {to=\"expert\"} c forward dispatch", 2),
                    Contains("op 'c': 3 experts cannot be divided evenly among 2 ranks"));
}

TEST_CASE("a group that does not divide the ranks is refused with the op and both attributes") {
  for (const std::string op : {"%20 = all_to_all(%7, %8) {to=\"expert\", group=3, stride=2} c "
                               "forward dispatch",
                               "%20 = exchange_counts(%8) {group=3, stride=2} c forward dispatch",
                               "%20 = all_reduce(%2) {group=3, stride=2} c backward update"}) {
    CHECK_THROWS_WITH(parse_with(op, 4),
                      Contains("op 'c': group = 3, stride = 2") && Contains("divide the 4 ranks"));
    parse_with(op, 12);
  }
}

TEST_CASE("an all-to-all's shape follows its group, and the sources that share a slot already") {
  const auto shape_of = [](const std::string& op) {
    const Graph graph = parse_graph(
        "graph g ranks=12\n%0 param f32 [6,2,4,5] many\n"
        "%1 param f32 [6,4,5] one\n%2 param f32 [2,6,4,5] at_experts\n"
        "%3 input i32 [6,2] counts\n" +
            op + " forward dispatch\n",
        op_table());
    return graph.tensor(graph.out(OpId(0))).shape;
  };
  CHECK(shape_of("%9 = all_to_all(%1) {to=\"expert\", group=3} a") == Shape{2, 3, 4, 5});
  CHECK(shape_of("%9 = all_to_all(%1) {to=\"expert\", group=1} a") == Shape{6, 1, 4, 5});
  CHECK(shape_of("%9 = all_to_all(%0) {to=\"expert\", group=3, stride=2} a") == Shape{2, 6, 4, 5});
  CHECK(shape_of("%9 = all_to_all(%2) {to=\"source\", group=6} a") == Shape{12, 4, 5});
  CHECK(shape_of("%9 = all_to_all(%2) {to=\"source\", group=3, sources=2, stride=4} a") ==
        Shape{6, 2, 4, 5});
  CHECK(shape_of("%9 = exchange_counts(%3) {group=3} a") == Shape{2, 6});
  CHECK(shape_of("%9 = all_to_all(%0, %3) {to=\"expert\", group=3} a") == Shape{2, 6, 4, 5});
}

}  // namespace moe::test
