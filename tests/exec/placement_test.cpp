// Experts that a placement puts on devices: which it is is no part of the model. Against the plain
// program in double, with every use of a buffer outside its tensor's life made to show.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <map>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/cost/cost_model.h"
#include "engine/exec/parameters.h"
#include "engine/graph/op_def.h"
#include "engine/ops/placed.h"
#include "engine/passes/placement/place_experts.h"
#include "engine/placement/performance_model.h"
#include "engine/profile/profiler.h"
#include "engine/routing/workload.h"
#include "engine/sim/simulator.h"
#include "tests/exec/device/run_lazy.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

/// A placement stage whose policy a test gives.
Stage placed_by(PlacementStage how) {
  Stage stage;
  stage.name = how.policy = "test";
  stage.kind = StageKind::kPlacement;
  stage.transform = [how](Graph graph, const PassContext& context) {
    return place_experts(std::move(graph), how, context);
  };
  return stage;
}

PlanSpec spec_with(const std::string& gate, int64_t ranks, Precision precision = Precision::kF64) {
  Gpt2 model = small_model(gate, 2);
  model.experts = std::max(model.experts, ranks);
  return spec_of(model, ranks, precision);
}

/// Another place and another order of sums.
constexpr Tolerance kPlaced = {.losses = 1e-11, .norms = 1e-9};

/// Legal edits at random, another set every step and layer; the same on all ranks.
PlacementFunction random_policy(uint64_t seed, bool even) {
  return [seed, even](const PlaceInput& input) {
    Rng rng(seed * 1000 + static_cast<uint64_t>(input.step * 10 + input.layer));
    Placement p = input.now;
    p.clear_shadows();
    const PlacementBounds& b = p.bounds();
    for (int i = 0; i < 12; ++i) {
      const int64_t expert = rng.below(b.experts), device = rng.below(b.devices);
      const int64_t what = rng.below(6), other = rng.below(b.experts);
      try {
        if (what < 2) p.add_shadow(expert, device);
        if (what == 2 && b.residents * b.devices > b.experts) p.add_resident(expert, device);
        if (what == 3) p.move_owner(expert, device);
        if (what == 4) p.swap_owners(expert, other);
        if (what == 5) p.remove(expert, device);
      } catch (const UserError&) {  // no room, or not there
      }
    }
    for (int64_t e = 0; e < b.experts; ++e) {
      p.set_sharing(e, even && rng.below(2) == 0 ? Sharing::kEven : Sharing::kLocal);
    }
    return p;
  };
}

/// Two nodes: copies enter each once.
void on_two_nodes(PlanSpec& spec) {
  spec.cluster.nodes = spec.cluster.devices_per_node = 2;
  spec.cost = std::make_shared<RooflineCost>(spec.cluster, spec.work);
}

int64_t ops_by_nodes(const Graph& graph) {
  return std::count_if(graph.ops().begin(), graph.ops().end(), [](const Op& op) {
    return op.kind.valid() && attr_int(op, "devices_per_node", 1) == 2;
  });
}

TEST_CASE("where experts lie is no part of the model") {
  const std::string gate = GENERATE("switch", "top2");
  for (const int64_t ranks : {1, 2, 4}) {
    PlanSpec spec = spec_with(gate, ranks);
    if (gate == "top2" && ranks == 4) {  // AdamW's states move, too; router losses see one routing
      spec.optimizer = Adamw{.lr = 0.1};
      change_model(spec, [&](Gpt2& m) {
        m.balance_loss.coefficient = 0.02;
        m.z_loss = 1e-3;
      });
    }
    const RunResult expected = run_with_norms(*plan_with(spec, {}), 4);
    for (uint64_t number = 0; number < (ranks == 4 ? 16 : ranks == 2 ? 8 : 2); ++number) {
      const uint64_t seed = number % 8;
      const bool grouped = number >= 8;
      CAPTURE(gate, ranks, seed, grouped);
      const PlacementStage how = {.shadows = 1 + static_cast<int64_t>(seed % 3),
                                  .extra_residents = static_cast<int64_t>(seed % 2),
                                  .moves_residents = seed != 4};
      const bool nodes = ranks == 4 && seed >= 5;
      PlanSpec placed = spec;
      if (grouped) change_model(placed, [](Gpt2& m) { m.ep = 2; });
      if (nodes) on_two_nodes(placed);
      const auto plan = plan_with(placed, {placed_by(how)});
      // Copies and their gradients, by MoE layer.
      if (nodes) CHECK(ops_by_nodes(plan->graph) == 2 * plan->spec.model->num_moe_layers());
      PlacementFunction policy = random_policy(seed, seed % 2 == 0);
      if (!how.moves_residents) {
        policy = [](const PlaceInput& input) {
          Placement p = input.now;
          p.clear_shadows();
          const int64_t e = input.step % p.bounds().experts;
          for (int64_t d = 0; d < p.bounds().devices; ++d) {
            if (!p.holds(d, e)) p.add_shadow(e, d);
          }
          return p;
        };
      }
      const RunResult result = run_with_norms(*plan, 4, policy);
      CHECK(same_run(expected, result, kPlaced));
      if (ranks > 1) REQUIRE(result.placements.size() == 4);
    }
  }
}

/// The bits of CPU ranks, whatever the timing of the device's streams.
void check_on_device(const Plan& plan, int64_t steps, const PlacementFunction& policy,
                     uint64_t seed) {
  const RunResult expected = run_with_norms(plan, steps, policy);
  RunOptions options = options_of(plan, steps);
  options.train.keep_grad_norms = true;
  if (policy) options.policies.place = [policy](int64_t, const std::string&) { return policy; };
  for (const bool poison : {false, true}) {
    CAPTURE(seed, poison);
    options.test.poison = poison;
    CHECK(same_run(expected, run_lazy(plan, options, static_cast<LazyOrder>(seed % 4), seed)));
  }
}

TEST_CASE("experts move between ranks on a device with the bits of CPU ranks") {
  const std::string gate = GENERATE("switch", "top2");
  for (const int64_t ranks : {2, 4}) {
    for (uint64_t seed = 1; seed < 6; ++seed) {
      CAPTURE(gate, ranks, seed);
      const PlacementStage how = {.shadows = 1 + static_cast<int64_t>(seed % 3),
                                  .extra_residents = static_cast<int64_t>(seed % 2),
                                  .moves_residents = true};
      PlanSpec spec = spec_with(gate, ranks, Precision::kF32);
      if (seed >= 4 && ranks == 4) on_two_nodes(spec);
      const auto plan = plan_with(spec, {placed_by(how)});
      check_on_device(*plan, 4, random_policy(seed, seed % 2 == 0), seed);
    }
  }
}

TEST_CASE("placements are in force in the step that the stage says") {
  const auto moving = [](const PlaceInput& input) {
    Placement p = input.now;
    if (input.step == 1) p.swap_owners(0, p.bounds().experts - 1);
    return p;
  };
  const auto plan =
      plan_with(spec_with("switch", 2), {placed_by({.shadows = 0, .moves_residents = true})});
  const RunResult result = run_with_norms(*plan, 3, moving);
  const auto owner = [&](size_t step) {
    const PlacementRecord& record = result.placements[step][0];
    return Placement::decode(record.bounds, record.in_force).owner(0);
  };
  CHECK(owner(0) == 0);
  CHECK(owner(1) == 0);
  CHECK(owner(2) == 1);
  Bytes moved = 0;
  for (const Timeline& timeline : result.timelines) {
    for (const Span& span : timeline.spans) {
      if (plan->graph.def(span.op).name == std::string_view("migrate")) moved += span.bytes;
    }
  }
  Bytes expert = 0;  // parameters and momentum
  for (const Tensor& tensor : plan->graph.tensors()) {
    const bool lives = tensor.kind == TensorKind::kParam || tensor.kind == TensorKind::kState;
    if (lives && tensor.held.moe) expert += num_elements(tensor.shape) / tensor.shape[0] * 8;
  }
  CHECK(moved == 2 * expert);
}

TEST_CASE("a copy travels once there and its gradient once back") {
  const auto shadow = [](const PlaceInput& input) {
    Placement p = input.now;
    p.clear_shadows();
    p.add_shadow(0, 1);
    return p;
  };
  const auto plan = plan_with(spec_with("switch", 2), {placed_by({.shadows = 1})});
  const RunResult result = run_with_norms(*plan, 2, shadow);
  std::map<std::string, Bytes> bytes;
  for (const Span& span : result.timelines[1].spans) {
    bytes[std::string(plan->graph.def(span.op).name)] += span.bytes;
  }
  Bytes expert = 0;
  for (const Tensor& tensor : plan->graph.tensors()) {
    if (tensor.kind == TensorKind::kParam && tensor.held.moe) {
      expert += num_elements(tensor.shape) / tensor.shape[0] * 8;
    }
  }
  CHECK(bytes["copy_experts"] == expert);
  CHECK(bytes["return_gradients"] == expert);
}

TEST_CASE("with a placement too a batch in parts trains as the whole") {
  const PlanSpec spec = spec_with("switch", 4);
  const Stage placed = placed_by({.shadows = 2, .moves_residents = true});
  const auto whole = plan_with(spec, {placed});
  const RunResult expected = run_with_norms(*whole, 3, random_policy(3, false));
  const auto cut =
      plan_with(spec, {placed, pass("partition", {{"parts", 2.0}, {"before", 6.0}, {"after", 1.0}}),
                       pass("dw_schedule")});
  REQUIRE(cut->graph.find_op("b1.moe.fc1.p1").valid());
  CHECK(same_run(expected, run_with_norms(*cut, 3, random_policy(3, false)), kPlaced));
  // Experts whose rows are shared: all rows of a source go to one device, cut or not.
  CHECK(same_run(expected, run_with_norms(*cut, 3, random_policy(3, true)), kPlaced));
}

TEST_CASE("a policy that fails leaves the old placement, and the steps so far") {
  const auto failing = [](const PlaceInput& input) {
    Placement p = input.now;
    p.clear_shadows();
    p.add_shadow(input.step == 2 ? 99 : 0, 1);
    return p;
  };
  const auto plan = plan_with(spec_with("switch", 2), {placed_by({.shadows = 1})});
  const RunResult result = run_with_norms(*plan, 10, failing);
  CHECK(result.stopped);
  CHECK(result.losses.size() == 3);
  CHECK_THAT(result.stop_reason, Catch::Contains("placement 'test', rank 0, step 2, layer 1: ") &&
                                     Catch::Contains("expert 99, allowed: 0 to"));
  CHECK(result.placements[2][0].next == result.placements[2][0].in_force);
}

TEST_CASE("a record says what devices computed under the placement and would have without it") {
  const auto swapped = [](const PlaceInput& input) {
    Placement p = input.now;
    if (input.step == 0) p.swap_owners(0, p.bounds().experts - 1);
    return p;
  };
  const auto plan = plan_with(spec_with("switch", 2), {placed_by({.moves_residents = true})});
  const RunResult result = run_with_norms(*plan, 2, swapped);
  for (size_t step = 0; step < 2; ++step) {
    const PlacementRecord& record = result.placements[step][0];
    const std::vector<int64_t>& counts = result.moe[step][0].counts;
    const int64_t experts = record.bounds.experts;
    std::vector<int64_t> plain(2), computed(2);
    for (int64_t i = 0; i < 2 * experts; ++i) {
      const int64_t e = i % experts;
      const auto home = static_cast<size_t>(e / (experts / 2));
      const bool moved = step == 1 && (e == 0 || e == experts - 1);
      plain[home] += counts[static_cast<size_t>(i)];
      computed[moved ? 1 - home : home] += counts[static_cast<size_t>(i)];
    }
    CAPTURE(step);
    CHECK(record.computed == computed);
    CHECK(record.computed_plain == plain);
  }
}

TEST_CASE("a policy is told the time of the experts of the layer before, executed or simulated") {
  Gpt2 model = small_model("switch", 2);
  model.layers = 4;
  PlanSpec spec = spec_of(model, 2, Precision::kF64);
  spec.routing = std::make_shared<const RoutingModel>(workload("zipf", {{"s", 1.1}}, 1));
  const auto plan =
      plan_with(spec, {placed_by({.shadows = 1, .extra_residents = 1, .moves_residents = true})});
  for (const bool simulated : {false, true}) {
    RunOptions options = options_of(*plan, 3);
    std::vector<int64_t> calls(2);     // by rank
    std::vector<double> experts_s(2);  // of the layer before, by rank
    options.policies.place = [&](int64_t rank, const std::string&) -> PlacementFunction {
      return [&, r = static_cast<size_t>(rank)](const PlaceInput& input) {
        Placement next = random_policy(3, true)(input);
        if (input.layer == 0) experts_s[r] = 0;
        if (input.experts_before_s != experts_s[r]) throw user_error("layer {}", input.layer);
        experts_s[r] = fec_s(device_loads(next, input.loads), input.rates);
        calls[r] += experts_s[r] > 0 ? 1 : 0;
        return next;
      };
    };
    const RunResult result =
        simulated ? make_simulator()->run(*plan, options) : run_cpu(*plan, options);
    CHECK(result.stop_reason == "");
    CHECK(calls == std::vector<int64_t>{6, simulated ? 0 : 6});
  }
}

TEST_CASE("ranks that place differently are told before they meet in other transfers") {
  const auto plan = plan_with(spec_with("switch", 2), {placed_by({.shadows = 1})});
  RunOptions options = options_of(*plan, 3);
  options.policies.place = [](int64_t rank, const std::string&) {
    return [rank](const PlaceInput& input) {
      Placement p = input.now;
      p.clear_shadows();
      if (rank == 1) p.add_shadow(0, 1);
      return p;
    };
  };
  CHECK_THROWS_WITH(
      run_cpu(*plan, options),
      Catch::Contains("ranks 0 and 1 have different placements of block 1's experts"));
}

TEST_CASE("a run with experts that moved goes on from its checkpoint") {
  const std::string path = "placement_checkpoint_test";
  const auto plan =
      plan_with(spec_with("switch", 4),
                {placed_by({.shadows = 1, .extra_residents = 1, .moves_residents = true})});
  const auto options_for = [&](int64_t steps) {
    RunOptions options = options_of(*plan, steps);
    options.policies.place = [](int64_t, const std::string&) { return random_policy(5, true); };
    return options;
  };
  const RunResult straight = run_cpu(*plan, options_for(6));
  RunOptions first = options_for(3);
  first.train.checkpoints.write_to = path;
  run_cpu(*plan, first);
  RunOptions second = options_for(3);
  second.train.checkpoints.resume_from = path;
  const RunResult resumed = run_cpu(*plan, second);
  CHECK(resumed.digest == straight.digest);
  CHECK(resumed.losses.back() == straight.losses.back());
  CHECK(resumed.placements.back()[0].next == straight.placements.back()[0].next);
  std::remove(path.c_str());
}

TEST_CASE("placed transfers that end late give the same bits") {
  const PlanSpec spec = spec_with("top2", 4, Precision::kF32);
  const auto plan =
      plan_with(spec, {placed_by({.shadows = 2, .extra_residents = 1, .moves_residents = true})});
  const auto options_for = [&](uint64_t seed) {
    RunOptions options = options_of(*plan, 3);
    options.test.poison = true;
    options.policies.place = [](int64_t, const std::string&) { return random_policy(2, true); };
    if (seed > 0) options.test.delay_ns = random_delays(seed);
    return options;
  };
  const RunResult expected = run_cpu(*plan, options_for(0));
  for (uint64_t seed = 1; seed < 6; ++seed) {
    CHECK(same_run(expected, run_cpu(*plan, options_for(seed))));
  }
}

/// Policies by hand that use every shadow slot, so that both sub-operators carry something.
PlacementFunction full_shadows() {
  return [](const PlaceInput& input) {
    Placement p = input.now;
    p.clear_shadows();
    const PlacementBounds& b = p.bounds();
    for (int64_t q = 0; q < b.shadows; ++q) {
      const int64_t e = (input.step + 2 * q) % b.experts;
      for (int64_t d = 0; d < b.devices; ++d) {
        if (!p.holds(d, e)) p.add_shadow(e, d, q);
      }
    }
    return p;
  };
}

/// Any experts in any shadow slots.
PlacementFunction random_shadows(uint64_t seed) {
  return [seed](const PlaceInput& input) {
    Rng rng(seed * 1000 + static_cast<uint64_t>(input.step * 10 + input.layer));
    Placement p = input.now;
    p.clear_shadows();
    const PlacementBounds& b = p.bounds();
    for (int64_t d = 0; d < b.devices; ++d) {
      for (int64_t s = 0; s < b.shadows; ++s) {
        const int64_t e = rng.below(b.experts);
        if (!p.holds(d, e)) p.add_shadow(e, d, s);
      }
    }
    return p;
  };
}

/// Four blocks, MoE in 1 and 3, two shadows; at the first link rate at which the compute between
/// the layers hides some of two copies, so that block 3's go in two transfers.
std::shared_ptr<const Plan> plan_with_cut(PlanSpec spec, std::vector<Stage> more) {
  more.insert(more.begin(), placed_by({.shadows = 2, .split = true}));
  change_model(spec, [&](Gpt2& m) { m.layers = 4; });
  for (double rate = 1e6; rate < 1e13; rate *= 1.4) {
    spec.cluster.intra = {.bytes_per_s = rate, .latency_ns = 0};
    spec.cost = std::make_shared<RooflineCost>(spec.cluster, spec.work);
    const auto probe = plan_with(spec, {more.front()});
    if (probe->graph.find_op("b3.moe.copy_a").valid()) return plan_with(spec, std::move(more));
  }
  FAIL("no link rate cuts the copies");
  return nullptr;
}

TEST_CASE("copies in two transfers train the same bits as in one") {
  for (const int64_t ranks : {2, 4}) {
    const PlanSpec spec = spec_with("top2", ranks);
    PlanSpec deep = spec;
    change_model(deep, [&](Gpt2& m) { m.layers = 4; });
    const auto whole = plan_with(deep, {placed_by({.shadows = 2})});
    const RunResult expected = run_with_norms(*whole, 4, full_shadows());
    const auto cut = plan_with_cut(spec, {});
    const Op& rest = cut->graph.op(cut->graph.find_op("b3.moe.copy_a"));
    CHECK(rest.attrs.contains("begin"));  // inside a slot
    CHECK(same_run(expected, run_with_norms(*cut, 4, full_shadows())));
    // An expert in another slot on each device travels in shares that are not the same for all.
    for (uint64_t seed = 0; seed < 4; ++seed) {
      CHECK(same_run(expected, run_with_norms(*cut, 4, random_shadows(seed)), kPlaced));
    }
  }
}

/// Elements of the tensors' shares that arrive at a device.
int64_t arriving(const Graph& graph, const Op& op, const std::vector<ShadowRange>& ranges,
                 const std::vector<ExpertPiece>& pieces, int64_t device) {
  int64_t elements = 0;
  for (const ExpertPiece& piece : pieces) {
    if (piece.to != device) continue;
    for (const TensorId t : op.outputs) {
      const Shape& shape = graph.tensor(t).shape;
      const int64_t rows = ranges[static_cast<size_t>(piece.range)].share.rows(shape[1]);
      const int64_t n = rows * num_elements(shape) / (shape[0] * shape[1]);
      elements += n * (piece.part + 1) / piece.parts - n * piece.part / piece.parts;
    }
  }
  return elements;
}

TEST_CASE("the gradients that arrive in a step fit the room that their op asks for") {
  for (const int64_t per_node : {1, 2, 4, 8}) {
    PlanSpec spec = spec_with("top2", 8);
    spec.cluster.nodes = 8 / per_node;
    spec.cluster.devices_per_node = per_node;
    spec.cost = std::make_shared<RooflineCost>(spec.cluster, spec.work);
    const Graph graph =
        plan_with(spec, {placed_by({.shadows = 3, .extra_residents = 1, .moves_residents = true})})
            ->graph;
    for (const Op& op : graph.ops()) {
      if (!op.kind.valid() || graph.def(op).name != std::string_view("return_gradients")) continue;
      const int64_t room = graph.def(op).scratch_bytes(graph, op, 1);
      const std::vector<ShadowRange> ranges = ops::shadow_ranges(op);
      int64_t sums = 0;
      for (size_t i = 1; i < op.inputs.size() - op.outputs.size(); ++i) {
        sums += num_elements(graph.tensor(op.inputs[i]).shape);
      }
      for (uint64_t seed = 0; seed < 100; ++seed) {
        const Placement now = Placement(ops::bounds_of(op));
        const ExpertCounts loads(8, 8);
        const Placement placement = random_shadows(seed)({.loads = loads, .now = now, .rates = {}});
        for (const auto& pieces : return_steps(placement, ranges, per_node)) {
          for (int64_t d = 0; d < 8; ++d) {
            CHECK(sums + arriving(graph, op, ranges, pieces, d) <= room);
          }
        }
      }
    }
  }
}

TEST_CASE("Pro-Prophet's scheduler changes when, not what: the same bits") {
  const Options keep = {{"if_slower", std::string("keep")}};
  const std::vector<std::vector<Stage>> mixes = {
      {pass("prophet_schedule")},
      {pass("dw_schedule", keep), pass("prophet_schedule")},
      {pass("prophet_schedule"), pass("priority"), pass("chunked", {{"bytes", 512.0}})},
      {pass("blocking_a2a", {{"experts", false}}), pass("prophet_schedule")}};
  for (const bool own_lane : {false, true}) {
    PlanSpec spec = spec_with("top2", 4);
    spec.system.sync.lane = own_lane ? ReduceLane::kOwn : ReduceLane::kWithAllToAlls;
    const RunResult expected = run_with_norms(*plan_with_cut(spec, {}), 4, full_shadows());
    for (size_t m = 0; m < mixes.size(); ++m) {
      CAPTURE(own_lane, m);
      CHECK(same_run(expected, run_with_norms(*plan_with_cut(spec, mixes[m]), 4, full_shadows())));
    }
  }
  PlanSpec deep = spec_with("switch", 4);
  change_model(deep, [&](Gpt2& m) { m.layers = 4; });
  const RunResult plain = run_with_norms(*plan_with(deep, {}), 4);
  const Options cut = {{"parts", 2.0}, {"before", 6.0}, {"after", 1.0}};
  const auto parts =
      plan_with_cut(spec_with("switch", 4),
                    {pass("partition", cut), pass("dw_schedule", keep), pass("prophet_schedule")});
  CHECK(same_run(plain, run_with_norms(*parts, 4, full_shadows()), kPlaced));
}

TEST_CASE("every op of a placed step, and of placed inference, can be timed") {
  const ProfileOptions quick = {.ranks_beside = 2, .min_time_s = 0, .min_samples = 3};
  PlanSpec inference = spec_with("switch", 2, Precision::kF32);
  inference.inference = true;
  change_model(inference, [&](Gpt2& m) { m.moe_every = 1; });
  const auto lina = pass("lina_inference", {{"path", 1.0}});
  for (const auto& plan : {plan_with(spec_with("switch", 2, Precision::kF32), {pass("eplb")}),
                           plan_with(spec_with("switch", 2, Precision::kF32), {pass("top_k")}),
                           plan_with(inference, {lina})}) {
    std::map<std::string_view, OpId> kinds;
    for (size_t i = 0; i < plan->graph.num_ops(); ++i) {
      const OpId op(static_cast<int64_t>(i));
      if (!is_view(plan->graph, plan->graph.op(op))) kinds.emplace(plan->graph.def(op).name, op);
    }
    for (const auto& [kind, op] : kinds) {
      INFO(kind);
      CHECK(profile_op(plan->graph, op, quick).ns.size() >= 3);
    }
  }
}

TEST_CASE("two placements, and a placement of what is cut, are refused by name") {
  const PlanSpec spec = spec_with("switch", 4);
  CHECK_THROWS_WITH(plan_with(spec, {pass("placed"), pass("swap")}),
                    Catch::Contains("stage 'swap': stage 'placed' has already placed the experts"));
  CHECK_THROWS_WITH(plan_with(spec, {pass("swap", {{"use", std::string("now")}})}),
                    Catch::Contains("allowed: 'next'"));
}

TEST_CASE("the simulator places and moves as the executor does") {
  const std::vector<std::vector<Stage>> systems = {
      {pass("prophet", {{"shadows", 2.0}})},
      {pass("top_k", {{"shadows", 2.0}, {"k", 2.0}})},
      {pass("eplb"), pass("dw_schedule")},
      {pass("prophet", {{"shadows", 2.0}, {"use", std::string("now")}})},
      {placed_by({.shadows = 2, .extra_residents = 1, .moves_residents = true})}};
  const int64_t micro_batches = GENERATE(1, 3), ep = GENERATE(0, 2);
  CAPTURE(micro_batches, ep);
  for (const std::vector<Stage>& stages : systems) {
    CAPTURE(stages[0].name);
    PlanSpec spec = spec_with("switch", 4);
    change_model(spec, [&](Gpt2& m) { m.micro_batches = micro_batches, m.ep = ep; });
    spec.routing =
        std::make_shared<RoutingModel>(workload("zipf", {{"s", 1.5}, {"drift", 0.3}}, 3));
    const auto plan = plan_with(spec, stages);
    CHECK(static_cast<int64_t>(persistent_tensors(*plan).placed.size()) ==
          plan->spec.model->num_moe_layers());
    RunOptions options = options_of(*plan, 5);
    if (stages[0].name == "test") {
      options.policies.place = [](int64_t, const std::string&) { return random_policy(11, true); };
    }
    const RunResult executed = run_cpu(*plan, options);
    const RunResult simulated = make_simulator()->run(*plan, options);
    REQUIRE(simulated.timelines.size() == executed.timelines.size());
    int64_t moved = 0;
    for (size_t step = 0; step < executed.timelines.size(); ++step) {
      CAPTURE(step);
      REQUIRE(simulated.placements[step].size() == executed.placements[step].size());
      for (size_t i = 0; i < executed.placements[step].size(); ++i) {
        CHECK(simulated.placements[step][i].in_force == executed.placements[step][i].in_force);
        CHECK(simulated.placements[step][i].next == executed.placements[step][i].next);
        CHECK(simulated.placements[step][i].computed == executed.placements[step][i].computed);
      }
      std::map<std::pair<OpId, int32_t>, Bytes> bytes[2];
      const Timeline* const both[] = {&simulated.timelines[step], &executed.timelines[step]};
      for (size_t i = 0; i < 2; ++i) {
        for (const Span& span : both[i]->spans) {
          const Collective kind = plan->graph.def(span.op).collective;
          if (kind != Collective::kExperts && !plan->graph.op(span.op).rows.irregular) {
            continue;
          }
          if (i == 1 && kind == Collective::kExperts) moved += span.bytes;
          for (int32_t r = span.rank; r < (both[i]->num_ranks == 1 ? 4 : span.rank + 1); ++r) {
            bytes[i][{span.op, r}] += i == 1 ? span.bytes / 2 : span.bytes;  // f64 of f32
          }
        }
      }
      REQUIRE(bytes[0].size() == bytes[1].size());
      for (const auto& [at, sent] : bytes[1]) {
        CAPTURE(plan->graph.op(at.first).name, at.second);
        // A part of an expert is whole elements, less than one a tensor and piece off.
        const bool parts = plan->graph.def(at.first).collective == Collective::kExperts;
        CHECK(std::abs(bytes[0].at(at) - sent) < (parts ? 4 * 4 * 12 : 1));
      }
    }
    if (stages[0].name != "prophet") CHECK(moved > 0);
  }
}

}  // namespace
}  // namespace moe::test
