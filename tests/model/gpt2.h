// The GPT-2 with MoE layers of scripts/moe/models/gpt2_moe.lua, for tests and benchmarks that run
// without Lua. Lua's is held to the same graph by the plans of recipes (tests/recipes/golden).
#pragma once

#include <memory>

#include "engine/model/blocks.h"
#include "engine/ops/ops.h"

namespace moe::test {

struct Gpt2 : ModelSpec {
  Gpt2() { name = "gpt2_moe"; }
  int64_t layers = 12, hidden = 768, heads = 12;
  int64_t ffn = 0;  // 0 means 4 * hidden
  int64_t moe_every = 2;
  bool fused_attention = true;

  int64_t ffn_size() const { return ffn > 0 ? ffn : 4 * hidden; }
  /// The form of every feed-forward.
  blocks::Form form() const { return {.ffn = ffn_size()}; }
  bool is_moe(int64_t block) const { return block % moe_every == moe_every - 1; }
  int64_t num_moe_layers() const { return layers / moe_every; }
};

inline Model build_model(const Gpt2& m, const GateSpec& gate, int64_t ranks) {
  using Kernel = blocks::AttentionKernel;
  const Kernel kernel = m.fused_attention ? Kernel::kFused : Kernel::kUnfused;
  Graph graph(op_table());
  ModelBuilder b(graph, m, gate, ranks);
  TensorId x = blocks::embedding(b, {}, {.hidden = m.hidden});
  for (int64_t block = 0; block < m.layers; ++block) {
    b.begin_block(block);
    b.begin_segment(Segment::kAttn);
    const TensorId u = blocks::layernorm(b, {x}, {"ln1"});
    x = blocks::attention(b, {u, x}, {.heads = m.heads, .kernel = kernel});
    b.begin_segment(m.is_moe(block) ? Segment::kGate : Segment::kMlp);
    const TensorId v = blocks::layernorm(b, {x}, {"ln2"});
    x = m.is_moe(block) ? blocks::experts(b, {v, x}, {m.form()})
                        : blocks::feed_forward(b, {v, x}, {m.form()});
  }
  b.begin_block(-1);
  b.begin_segment(Segment::kHead);
  blocks::head(b, {blocks::layernorm(b, {x}, {"lnf"})}, {});
  return b.finish();
}

inline Graph build_forward(const Gpt2& model, const GateSpec& gate, int64_t ranks) {
  return build_model(model, gate, ranks).forward;
}

/// Returns the parameters, or the states, of the whole model.
inline std::vector<ParamInfo> parameters(Gpt2 model) {
  model.ep = 0;
  return build_model(model, gate_spec(model), 1).parameters;
}
inline std::vector<ParamInfo> states(Gpt2 model) {
  model.ep = 0;
  return build_model(model, gate_spec(model), 1).states;
}

/// A model that remembers what it was built from.
struct Gpt2Model : Model {
  Gpt2Model(const Gpt2& m, const GateSpec& gate, int64_t ranks)
      : Model(build_model(m, gate, ranks)), given(m) {}
  Gpt2 given;
};

/// Sets the model of the plan's specification, built for its number of ranks, and the gate.
template <class PlanSpec>
void set_model(PlanSpec& spec, const Gpt2& model, const GateSpec& gate) {
  spec.gate = gate;
  spec.model = std::make_shared<const Gpt2Model>(model, gate, spec.num_ranks);
}
template <class PlanSpec>
void set_model(PlanSpec& spec, const Gpt2& model) {
  set_model(spec, model, gate_spec(model));
}

/// What the model of the specification was built from.
template <class PlanSpec>
Gpt2 gpt2_of(const PlanSpec& spec) {
  return spec.model ? static_cast<const Gpt2Model&>(*spec.model).given : Gpt2();
}

/// Builds the model of the specification again, with changed fields.
template <class PlanSpec, class Change>
void change_model(PlanSpec& spec, const Change& change) {
  Gpt2 model = gpt2_of(spec);
  change(model);
  set_model(spec, model);
}

}  // namespace moe::test
