// The shape of the training step: what is in it, in which order, under which names.
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <set>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/graph/text.h"
#include "engine/graph/verify.h"
#include "engine/model/model.h"
#include "engine/ops/ops.h"
#include "tests/model/gpt2.h"

namespace moe::test {
namespace {

Gpt2 gpt2(int64_t layers, int64_t hidden) {
  Gpt2 model;
  model.layers = layers;
  model.hidden = hidden;
  model.heads = hidden / 64;
  model.experts = 8;
  model.dtype = DType::kF16;
  return model;
}

Graph step_of(const Gpt2& model, int64_t ranks, const GradientSync& sync = {}) {
  Graph graph = build_forward(model, gate_spec(model), ranks);
  add_backward_and_update(graph, Sgd{.lr = 0.05, .momentum = 0.8}, sync);
  verify(graph, "test");
  return graph;
}

std::map<std::string, int> count_kinds(const Graph& graph) {
  std::map<std::string, int> counts;
  for (const Op& op : graph.ops()) ++counts[graph.def(op).name];
  return counts;
}

size_t position(const Graph& graph, std::string_view name) {
  const OpId id = graph.find_op(name);
  INFO(name);
  REQUIRE(id.valid());
  return id.index();
}

const Op& op_named(const Graph& graph, std::string_view name) {
  return graph.ops()[position(graph, name)];
}

}  // namespace

TEST_CASE("a step of GPT2-S and GPT2-L with MoE has the paper's collectives and weight gradients") {
  // Lancet (MLSys 2024): 6 and 12 MoE layers with 4 all-to-alls each; weight-gradient GEMMs: 2 a
  // block for attention, 2 a dense FFN, 2 experts' and 1 gate's a MoE layer, 1 for the head.
  const auto [layers, hidden, all_to_alls, dw_gemms] =
      GENERATE(std::make_tuple(12, 768, 24, 55), std::make_tuple(24, 1024, 48, 109));
  const Gpt2 model = gpt2(layers, hidden);
  CHECK(model.num_moe_layers() == layers / 2);
  std::map<std::string, int> counts = count_kinds(step_of(model, 4));
  CHECK(counts["all_to_all"] == all_to_alls);
  CHECK(counts["linear_dw"] + counts["expert_linear_dw"] == dw_gemms);
  CHECK(counts["gate"] == layers / 2);
  CHECK(counts["cross_entropy"] == 1);
}

TEST_CASE("one rank exchanges nothing") {
  std::map<std::string, int> counts = count_kinds(step_of(gpt2(4, 128), 1));
  CHECK(counts["all_to_all"] == 0);
  CHECK(counts["all_reduce"] == 0);
}

TEST_CASE(
    "parameters stand in the reference's order, hold this rank's experts, and are updated once") {
  const Gpt2 model = gpt2(4, 128);
  const Graph graph = step_of(model, 4);
  std::vector<Tensor> params;
  for (const Tensor& t : graph.tensors()) {
    if (t.kind == TensorKind::kParam) params.push_back(t);
  }
  const std::vector<ParamInfo> infos = parameters(model);
  REQUIRE(params.size() == infos.size());
  for (size_t p = 0; p < params.size(); ++p) {
    INFO(infos[p].name);
    CHECK(params[p].name == infos[p].name);
    CHECK(params[p].held == infos[p].held);
    Shape local = infos[p].shape;
    if (infos[p].held.moe) local[0] /= 4;
    CHECK(params[p].shape == local);
    const Op& update = op_named(graph, infos[p].name + ".sgd");
    CHECK(graph.tensor(update.inputs[0]).name == infos[p].name);
    CHECK(graph.tensor(update.inputs[1]).name == infos[p].name + ".v");
    CHECK(graph.tensor(update.inputs[1]).held == infos[p].held);
    CHECK(graph.tensor(update.inputs[2]).held == infos[p].held);
    CHECK(attr_double(update, "lr") == 0.05);
    CHECK(attr_double(update, "momentum") == 0.8);
    const Op& producer = graph.op(graph.producers()[update.inputs[2].index()]);
    CHECK((graph.def(producer).collective == Collective::kAllReduce) == !infos[p].held.moe);
  }
  CHECK(count_kinds(graph)["sgd"] == static_cast<int>(infos.size()));
}

TEST_CASE("a gate whose weights are one gives its matrix neither gradient nor update") {
  Gpt2 model = gpt2(2, 128);
  model.gate = "hash";
  const Graph graph = step_of(model, 2);
  CHECK(graph.find_tensor("b1.gate.w").valid());
  CHECK_FALSE(graph.find_op("b1.gate.w.sgd").valid());
  CHECK_FALSE(graph.find_op("b1.moe.combine.dweight").valid());
  CHECK(graph.find_op("b1.ex.fc1.w.sgd").valid());
}

TEST_CASE("the tied embedding adds its two gradients before its one all-reduce") {
  const Graph graph = step_of(gpt2(2, 128), 2);
  const Op& lookup = op_named(graph, "embed.dw");
  const Op& head = op_named(graph, "head.dw");
  CHECK(lookup.inputs[2] == head.outputs[0]);
  int reduced = 0;
  for (const Op& op : graph.ops()) {
    if (graph.def(op).collective != Collective::kAllReduce) continue;
    reduced += static_cast<int>(std::count(op.inputs.begin(), op.inputs.end(), lookup.outputs[0]));
    CHECK(std::count(op.inputs.begin(), op.inputs.end(), head.outputs[0]) == 0);
  }
  CHECK(reduced == 1);
}

TEST_CASE("every op has the segment, layer and phase of its place in the model") {
  const Graph graph = step_of(gpt2(2, 128), 2);
  const std::vector<std::tuple<const char*, Segment, int, Phase>> places = {
      {"embed", Segment::kEmbed, -1, Phase::kForward},
      {"b0.ln1", Segment::kAttn, 0, Phase::kForward},
      {"b0.attn.core", Segment::kAttn, 0, Phase::kForward},
      {"b0.ln2", Segment::kMlp, 0, Phase::kForward},
      {"b0.mlp.gelu", Segment::kMlp, 0, Phase::kForward},
      {"b1.ln2", Segment::kGate, 1, Phase::kForward},
      {"b1.moe.gate", Segment::kGate, 1, Phase::kForward},
      {"b1.moe.dispatch", Segment::kDispatch, 1, Phase::kForward},
      {"b1.moe.a2a_1", Segment::kDispatch, 1, Phase::kForward},
      {"b1.moe.fc1", Segment::kExpert, 1, Phase::kForward},
      {"b1.moe.a2a_2", Segment::kCombine, 1, Phase::kForward},
      {"b1.moe.combine", Segment::kCombine, 1, Phase::kForward},
      {"head", Segment::kHead, -1, Phase::kForward},
      {"b1.moe.fc1.dx", Segment::kExpert, 1, Phase::kBackward},
      {"b1.moe.a2a_1.dx", Segment::kDispatch, 1, Phase::kBackward},
      {"b0.mlp.gelu.dw", Segment::kMlp, 0, Phase::kBackward},
      {"embed.dw", Segment::kEmbed, -1, Phase::kBackward},
      {"wte.sgd", Segment::kUpdate, -1, Phase::kUpdate}};
  for (const auto& [name, segment, layer, phase] : places) {
    const Op& op = op_named(graph, name);
    CHECK(op.segment == segment);
    CHECK(op.layer == layer);
    CHECK(op.phase == phase);
    CHECK(op.part == -1);
  }
}

TEST_CASE("an all-reduce stands where its last gradient is complete, or after the backward") {
  const GradientSync sync = {.bucket_bytes = GENERATE(0, 1 << 18, 1 << 30),
                             .place = GENERATE(ReducePlace::kReady, ReducePlace::kAfter)};
  const Graph graph = step_of(gpt2(4, 128), 2, sync);
  const std::vector<OpId> producers = graph.producers();
  size_t last_backward = 0;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const Op& op = graph.ops()[i];
    if (op.phase == Phase::kBackward && graph.def(op).collective != Collective::kAllReduce) {
      last_backward = i;
    }
  }
  Bytes open_bucket = 0;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const Op& op = graph.ops()[i];
    if (graph.def(op).collective != Collective::kAllReduce) continue;
    INFO(op.name);
    size_t ready = 0;
    Bytes bytes = 0;
    for (const TensorId t : op.inputs) {
      ready = std::max(ready, producers[t.index()].index());
      bytes += graph.bytes(t);
    }
    CHECK(op.segment == Segment::kUpdate);
    if (sync.place == ReducePlace::kReady) {
      for (size_t between = ready + 1; between < i; ++between) {
        CHECK(graph.def(graph.ops()[between]).collective == Collective::kAllReduce);
      }
    } else {
      CHECK(i > last_backward);
    }
    CHECK(open_bucket == 0);  // only the last bucket may be short
    if (bytes < sync.bucket_bytes) open_bucket = bytes;
    if (sync.bucket_bytes == 0) CHECK(op.inputs.size() == 1);
    if (sync.bucket_bytes == 1 << 30) CHECK(open_bucket > 0);
  }
}

std::map<std::string, Group> reductions(const Graph& graph) {
  std::map<std::string, Group> groups;  // by parameter
  const std::vector<OpId> producers = graph.producers();
  for (const Op& op : graph.ops()) {
    if (graph.def(op).name != std::string_view("sgd")) continue;
    const OpId made = producers[op.inputs[2].index()];
    if (graph.def(made).collective != Collective::kAllReduce) continue;
    groups[graph.tensor(op.inputs[0]).name] = group_of(graph, graph.op(made));
    CHECK(graph.tensor(op.inputs[2]).held == graph.tensor(op.inputs[0]).held);
  }
  return groups;
}

TEST_CASE("expert-parallel groups hold all experts each, and residents sum their gradients") {
  Gpt2 model = gpt2(4, 128);  // 8 experts
  model.ep = GENERATE(1, 2, 4, 8, 0);
  const int64_t ep = model.ep == 0 ? 8 : model.ep;
  CAPTURE(model.ep);
  const GradientSync sync = {.bucket_bytes = GENERATE(0, 1 << 18, 1 << 30),
                             .place = GENERATE(ReducePlace::kReady, ReducePlace::kAfter)};
  Graph graph = build_forward(model, gate_spec(model), 8);
  add_backward_and_update(graph, {}, sync, model);
  verify(graph, "test");
  int transfers = 0;
  for (const Op& op : graph.ops()) {
    if (graph.def(op).collective != Collective::kAllToAll) continue;
    CHECK(group_of(graph, op) == Group{ep, 1});
    ++transfers;
  }
  CHECK(transfers == (ep == 1 ? 0 : 8));
  const std::map<std::string, Group> groups = reductions(graph);
  for (const ParamInfo& info : parameters(model)) {
    INFO(info.name);
    const Tensor& tensor = graph.tensor(graph.find_tensor(info.name));
    CHECK(tensor.shape[0] == info.shape[0] / (info.held.moe ? ep : 1));
    const auto found = groups.find(info.name);
    const Group expected = info.held.moe ? Group{8 / ep, ep} : Group{8, 1};
    REQUIRE((found != groups.end()) == (expected.size > 1));
    if (found != groups.end()) CHECK(found->second == expected);
  }
}

TEST_CASE("buckets of one group are short only at their end, whatever other groups fill") {
  Gpt2 model = gpt2(8, 128);
  model.ep = 2;
  constexpr Bytes kBucket = 1 << 20;
  Graph graph = build_forward(model, gate_spec(model), 8);
  add_backward_and_update(graph, {}, {.bucket_bytes = kBucket}, model);
  std::map<int64_t, std::vector<Bytes>> sizes;  // by members
  const std::vector<OpId> producers = graph.producers();
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId id(static_cast<int64_t>(i));
    if (graph.def(id).collective != Collective::kAllReduce) continue;
    Bytes bytes = 0;
    size_t ready = 0;
    for (const TensorId t : graph.op(id).inputs) {
      bytes += graph.bytes(t);
      ready = std::max(ready, producers[t.index()].index());
    }
    sizes[group_of(graph, graph.op(id)).size].push_back(bytes);
    for (size_t between = ready + 1; between < i; ++between) {
      CHECK(graph.def(graph.ops()[between]).collective == Collective::kAllReduce);
    }
  }
  REQUIRE(sizes.size() == 2);
  for (const auto& [members, bytes] : sizes) {
    CAPTURE(members);
    CHECK(bytes.size() > 2);
    for (size_t b = 0; b + 1 < bytes.size(); ++b) CHECK(bytes[b] >= kBucket);
  }
}

TEST_CASE(
    "an expert-parallel group that does not fit is refused with the field and what is allowed") {
  const auto fails = [](int64_t ep, int64_t experts, int64_t ranks, const std::string& why) {
    Gpt2 model = gpt2(2, 128);
    model.ep = ep, model.experts = experts;
    CHECK_THROWS_WITH(check(model, ranks), Catch::Contains(why));
  };
  fails(3, 12, 8, "model.ep = 3, allowed: a divisor of the 8 ranks");
  fails(-1, 8, 8, "model.ep = -1: must be from 1 to");
  fails(16, 16, 8, "model.ep = 16, allowed: 0 to 8");
  fails(4, 6, 8,
        "model.experts = 6 cannot be divided evenly over 4 ranks of an expert-parallel group");
  fails(0, 4, 8, "model.experts = 4 cannot be divided evenly over 8 ranks");
  Gpt2 fits = gpt2(2, 128);
  fits.ep = 2, fits.experts = 2;  // fewer experts than ranks
  check(fits, 8);
}

TEST_CASE("the loss is found by its op, also after an edit") {
  Graph graph = build_forward(gpt2(2, 128), gate_spec(gpt2(2, 128)), 2);
  CHECK(graph.tensor(loss_of(graph)).name == "loss");
  graph.remove(graph.find_op("loss"));
  CHECK_THROWS_WITH(loss_of(graph), Catch::Contains("has no cross_entropy"));
}

TEST_CASE("the local loss is divided by the tokens of all ranks") {
  Gpt2 model = gpt2(2, 128);
  model.batch_per_device = 3;
  const Graph graph = build_forward(model, gate_spec(model), 4);
  CHECK(attr_double(op_named(graph, "loss"), "scale") == 1.0 / (3 * 512 * 4));
}

TEST_CASE("losses of routers stand behind the model's loss, with one all-reduce of counts") {
  Gpt2 model = gpt2(4, 128);
  model.balance_loss = {.coefficient = 0.01, .over = BalanceLossSpec::Over::kAll};
  model.z_loss = 0.001;
  model.bias_balance.rate = 0.001;
  const Graph graph = step_of(model, 4);
  for (const char* block : {"b1.moe.", "b3.moe."}) {
    const auto place = [&](const char* op) { return position(graph, std::string(block) + op); };
    CHECK(position(graph, "loss") < place("load"));
    CHECK(place("load") < position(graph, "moe.load.all_reduce"));
    CHECK(position(graph, "moe.load.all_reduce") < place("balance_loss"));
    CHECK(place("z_loss") < place("gate.dx"));
    CHECK(op_named(graph, std::string(block) + "balance_bias").phase == Phase::kUpdate);
  }
  const Op& reduce = op_named(graph, "moe.load.all_reduce");
  CHECK(reduce.inputs.size() == 2);
  CHECK(reduce.phase == Phase::kForward);  // a loss of the forward reads it
  CHECK(graph.op(graph.find_op("b1.moe.gate")).inputs[3] == graph.find_tensor("b1.gate.bias"));
  CHECK(states(model).size() == 2);

  model.balance_loss = {0.01, BalanceLossSpec::Count::kKept, BalanceLossSpec::Over::kAll};
  std::map<std::string, int> counts = count_kinds(step_of(model, 4));
  CHECK(counts["expert_load"] == 4);
  CHECK(counts["balance_loss"] == 2);
  model.balance_loss.over = BalanceLossSpec::Over::kRank;
  CHECK(op_named(step_of(model, 4), "moe.load.all_reduce").phase == Phase::kUpdate);
  CHECK_FALSE(step_of(model, 4).find_op("moe.counts.all_reduce").valid());
  model.ep = 2;
  CHECK(step_of(model, 4).find_op("moe.load.all_reduce").valid());
  model.ep = 0;
  CHECK_FALSE(step_of(model, 1).find_op("moe.load.all_reduce").valid());
}

TEST_CASE("without balancing and a z-loss the step is what it was") {
  const Graph graph = step_of(gpt2(4, 128), 4);
  std::map<std::string, int> counts = count_kinds(graph);
  for (const char* kind : {"expert_load", "balance_loss", "z_loss", "balance_bias"}) {
    CHECK(counts[kind] == 0);
  }
  CHECK(op_named(graph, "b1.moe.gate").inputs.size() == 2);
  CHECK(states(gpt2(4, 128)).empty());
}

TEST_CASE("AdamW has two states per parameter, of its shape") {
  Graph graph = build_forward(gpt2(2, 128), gate_spec(gpt2(2, 128)), 2);
  add_backward_and_update(graph, Adamw{.lr = 0.05, .beta2 = 0.95}, {});
  verify(graph, "test");
  for (const ParamInfo& info : parameters(gpt2(2, 128))) {
    const Op& update = op_named(graph, info.name + ".adamw");
    for (size_t i = 0; i < 3; ++i) {
      const Tensor& tensor = graph.tensor(update.inputs[i]);
      CHECK(tensor.name == info.name + (i == 0 ? "" : i == 1 ? ".m" : ".v"));
      CHECK(tensor.shape == graph.tensor(update.inputs[0]).shape);
      CHECK(tensor.held == info.held);
    }
    CHECK(attr_double(update, "beta2") == 0.95);
  }
}

TEST_CASE("parameters, gradients, moments and a master copy have the types that a model states") {
  Gpt2 model = gpt2(2, 128);
  model.dtype = DType::kBF16;
  model.dtypes = {.weights = NumberType::kBF16,
                  .gradients = GENERATE(NumberType::kBF16, NumberType::kPlain),
                  .moments = NumberType::kF32,
                  .master = true};
  const bool adamw = GENERATE(true, false);
  const OptimizerSpec optimizer = adamw ? OptimizerSpec(Adamw{}) : Sgd{};
  Graph graph = build_forward(model, gate_spec(model), 2);
  add_backward_and_update(graph, optimizer, {}, model);
  verify(graph, "test");
  const DType gradients = model.dtypes.gradients == NumberType::kBF16 ? DType::kBF16 : DType::kF32;
  for (const ParamInfo& info : parameters(model)) {
    const Op& update = op_named(graph, info.name + (adamw ? ".adamw" : ".sgd"));
    CAPTURE(info.name);
    CHECK(graph.tensor(update.inputs[0]).dtype == DType::kBF16);
    CHECK(graph.tensor(update.inputs[1]).dtype == DType::kF32);
    const TensorId gradient = input_of(graph, update, Role::kGradient);
    CHECK(graph.tensor(gradient).dtype == gradients);
    const Tensor& master = graph.tensor(input_of(graph, update, Role::kMaster));
    CHECK(master.name == info.name + ".master");
    CHECK((master.dtype == DType::kF32 && master.kind == TensorKind::kState));
    // Per number: the gradient is read, moments and the copy read and written, the parameter
    // written.
    const double each = gradients == DType::kBF16 ? 2 : 4;
    CHECK(graph.def(update).work(graph, update, {}).bytes ==
          static_cast<double>(num_elements(master.shape)) * (each + 2 * (adamw ? 12 : 8) + 2));
  }
  CHECK(parse_graph(print(graph), op_table()).num_ops() == graph.num_ops());
}

}  // namespace moe::test
