// Graphs as text, for tests, logs and diffs; parse_graph(print(g)) equals g. An example:
//
//   graph gpt2_moe ranks=2
//   %0 param f32 [512,128] wte
//   %1 param f32 [4,512,128] b1.ex.fc1.w expert
//   %7 = layernorm(%2, %3, %4) {eps=1e-05} b0.ln1 forward attn layer=0
//   %9, %10 = linear_dw(%5, %6, _) {bias=1} b0.attn.qkv.dw backward attn layer=0 part=1 dw of=%8
//   %11 expert = expert_linear_dw(%8, %3) {rows="used"} b1.moe.fc1.dw backward expert layer=1 dw
//
// '_' is an absent optional input. Output shapes are not printed: the shape rule of the op's kind
// gives them. An output may be followed by `expert`, by a tensor kind other than
// usual_tensor_kind(), and by `as NAME` if its name is not output_name(); `of` is Op::of. A line
// that starts with '#' is a comment. %N is a label: tensor ids are assigned in ascending order of
// labels.
#pragma once

#include <string>
#include <string_view>

#include "engine/graph/graph.h"

namespace moe {

std::string print(const Graph& graph);
/// Throws UserError with the line number, the line and what was expected.
Graph parse_graph(std::string_view text, const OpTable& table);

}  // namespace moe
