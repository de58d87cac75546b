#include "engine/sim/routed_step.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "tests/model/gpt2.h"
#include "tests/sim/routing.h"

namespace moe {
namespace {

using test::counted;
using test::flat_cluster;
using test::ops_of;
using test::random_loads;
using test::routed_spec;
using test::stage;

Cluster two_by_two() {
  Cluster c = flat_cluster(2);
  c.devices_per_node = 2;
  return c;
}

/// Every layer of the graph with random loads.
struct Routed {
  Routed(const Graph& graph, int64_t ep, uint64_t seed) : step(graph, {ep, 1}) {
    for (const MoeLayer& layer : step.layers()) {
      const RoutingQuery query = {.layer = static_cast<int64_t>(kept.size()),
                                  .ranks = graph.num_ranks,
                                  .tokens = layer.tokens,
                                  .experts = layer.experts,
                                  .k = layer.k};
      kept.push_back(kept_rows(random_loads(query, seed), layer.capacity));
    }
    step.route(kept, step.first_placements());
  }
  size_t layer_of(const Graph& graph, OpId op) const {
    size_t l = 0;
    while (step.layers()[l].block != graph.op(op).layer) ++l;
    return l;
  }
  RoutedStep step;
  std::vector<ExpertCounts> kept;
};

int64_t of_source(const ExpertCounts& kept, int64_t source) {
  int64_t sum = 0;
  for (int64_t e = 0; e < kept.experts; ++e) sum += kept.at(source, e);
  return sum;
}

/// Rows of expert-parallel groups of `ep` neighbours that come to a device.
int64_t of_device(const ExpertCounts& kept, int64_t device, int64_t ep) {
  const int64_t local = kept.experts / ep, first = device / ep * ep;
  int64_t sum = 0;
  for (int64_t s = first; s < first + ep; ++s) {
    for (int64_t e = device % ep * local; e < (device % ep + 1) * local; ++e) sum += kept.at(s, e);
  }
  return sum;
}

double sum_of_row(const std::vector<double>& m, int64_t n, int64_t row) {
  return std::accumulate(m.begin() + row * n, m.begin() + (row + 1) * n, 0.0);
}

double sum_of_column(const std::vector<double>& m, int64_t n, int64_t column) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += m[static_cast<size_t>(i * n + column)];
  return sum;
}

TEST_CASE("the MoE layers are found by their gates, parts of a batch together") {
  const auto plan = make_plan(
      routed_spec(counted({stage("partition", {{"parts", 2.0}, {"before", 0.0}, {"after", 0.0}})}),
                  2, flat_cluster(2)));
  const std::vector<MoeLayer> layers = moe_layers(plan->graph);
  REQUIRE(layers.size() == 2);
  CHECK(layers[0].block == 1);
  CHECK(layers[1].block == 3);
  CHECK(layers[1].tokens == 32);
  CHECK(layers[1].experts == 4);
  CHECK(layers[1].capacity == 10);
  CHECK(layers[1].k == 1);
}

TEST_CASE("a source keeps of its choices for an expert what its places hold") {
  ExpertCounts choices(1, 3);
  choices.rows = {3, 0, 17};
  CHECK(kept_rows(choices, 10).rows == std::vector<int64_t>{3, 0, 10});
}

TEST_CASE("what an irregular all-to-all moves is what the ranks send and receive, both ways") {
  for (const int64_t ep : {2, 4}) {
    PlanSpec spec = routed_spec(counted(), 4, flat_cluster(4));
    test::change_model(spec, [&](test::Gpt2& m) { m.ep = ep; });
    const auto plan = make_plan(spec);
    const Graph& g = plan->graph;
    for (uint64_t seed = 0; seed < 5; ++seed) {
      const Routed routed(g, ep, seed);
      for (const OpId op : ops_of(g, "all_to_all")) {
        const RoutedWork* const work = routed.step.routed_work(op, 0);
        REQUIRE(work != nullptr);
        REQUIRE(work->bytes != nullptr);
        const ExpertCounts& kept = routed.kept[routed.layer_of(g, op)];
        const bool there = g.op(op).rows.to_expert();
        const int64_t row_bytes = 16 * 4;
        for (int64_t r = 0; r < 4; ++r) {
          const double out = static_cast<double>(row_bytes * of_source(kept, r));
          const double in = static_cast<double>(row_bytes * of_device(kept, r, ep));
          CHECK(sum_of_row(*work->bytes, 4, r) == (there ? out : in));
          CHECK(sum_of_column(*work->bytes, 4, r) == (there ? in : out));
          const double own = (*work->bytes)[static_cast<size_t>(r * 5)];
          CHECK(static_cast<double>(routed.step.sent_bytes(op, static_cast<int32_t>(r))) ==
                (there ? out : in) - own);
        }
      }
    }
  }
}

TEST_CASE("fills are rows over places: of a rank's tokens, and of its experts") {
  const auto plan = make_plan(routed_spec(counted(), 2, flat_cluster(2)));
  const Graph& g = plan->graph;
  const Routed routed(g, 2, 3);
  for (int32_t r = 0; r < 2; ++r) {
    for (const char* kind : {"dispatch", "dispatch_dx", "combine", "combine_dx"}) {
      for (const OpId op : ops_of(g, kind)) {
        const ExpertCounts& kept = routed.kept[routed.layer_of(g, op)];
        CHECK(routed.step.routed_work(op, r)->work.slot_occupancy ==
              static_cast<double>(of_source(kept, r)) / 40.0);
      }
    }
    for (const char* kind : {"expert_linear", "expert_linear_dx", "expert_linear_dw"}) {
      for (const OpId op : ops_of(g, kind)) {
        const ExpertCounts& kept = routed.kept[routed.layer_of(g, op)];
        CHECK(routed.step.routed_work(op, r)->work.slot_occupancy ==
              static_cast<double>(of_device(kept, r, 2)) / 40.0);
      }
    }
  }
}

TEST_CASE("imbalance is the rows of each layer's busiest device over the mean, padded or not") {
  for (const bool padded : {false, true}) {
    const auto plan =
        make_plan(routed_spec(padded ? std::vector<Stage>{} : counted(), 2, flat_cluster(2)));
    const Routed routed(plan->graph, 2, 3);
    double busiest = 0, sum = 0;
    for (const ExpertCounts& kept : routed.kept) {
      int64_t most = 0;
      for (int64_t device = 0; device < 2; ++device) {
        most = std::max(most, of_device(kept, device, 2));
        sum += static_cast<double>(of_device(kept, device, 2));
      }
      busiest += static_cast<double>(most);
    }
    CHECK(busiest > sum / 2);
    CHECK(routed.step.imbalance() == Approx(busiest / (sum / 2)));
  }
}

TEST_CASE("padded experts and transfers do not follow the routing") {
  const auto plan = make_plan(routed_spec({}, 2, flat_cluster(2)));
  const Routed routed(plan->graph, 2, 1);
  for (const char* kind : {"all_to_all", "expert_linear", "gelu", "linear", "all_reduce"}) {
    for (const OpId op : ops_of(plan->graph, kind))
      CHECK(routed.step.routed_work(op, 0) == nullptr);
  }
  CHECK_FALSE(routed.step.alike());  // tokens of ranks differ in dispatch and combine
}

TEST_CASE("the steps of a hierarchical exchange move each row by its place, then by its node") {
  const auto plan = make_plan(routed_spec(counted({stage("hierarchical_a2a")}), 4, two_by_two()));
  const Graph& g = plan->graph;
  const Routed routed(g, 4, 7);
  int checked = 0;
  for (const OpId op : ops_of(g, "all_to_all")) {
    const bool there = g.op(op).rows.to_expert();
    const bool inside = group_of(g, g.op(op)).stride == 1;
    const ExpertCounts& kept = routed.kept[routed.layer_of(g, op)];
    std::vector<double> expected(16);
    for (int64_t s = 0; s < 4; ++s) {
      for (int64_t owner = 0; owner < 4; ++owner) {  // one expert each
        const int64_t middle = s / 2 * 2 + owner % 2;
        int64_t from = inside ? s : middle, to = inside ? middle : owner;
        if (!there) std::swap(from, to);
        expected[static_cast<size_t>(from * 4 + to)] +=
            64.0 * static_cast<double>(kept.at(s, owner));
      }
    }
    CHECK(*routed.step.routed_work(op, 0)->bytes == expected);
    ++checked;
  }
  CHECK(checked == 2 * 2 * 2 * 2);  // layers, there and back, steps, phases
}

TEST_CASE("parts of a batch move together what the whole moves") {
  const auto whole = make_plan(routed_spec(counted(), 2, flat_cluster(2)));
  const auto cut = make_plan(
      routed_spec(counted({stage("partition", {{"parts", 4.0}, {"before", 0.0}, {"after", 0.0}})}),
                  2, flat_cluster(2)));
  const auto forward_bytes = [](const Graph& g) {
    const Routed routed(g, 2, 5);
    double sum = 0;
    for (const OpId op : ops_of(g, "all_to_all")) {
      if (g.op(op).phase != Phase::kForward) continue;
      const std::vector<double>& m = *routed.step.routed_work(op, 0)->bytes;
      sum += std::accumulate(m.begin(), m.end(), 0.0);
    }
    return sum;
  };
  CHECK(ops_of(cut->graph, "all_to_all").size() > ops_of(whole->graph, "all_to_all").size());
  CHECK(forward_bytes(cut->graph) == Approx(forward_bytes(whole->graph)));
}

TEST_CASE("a shadow takes its own device's rows off the wire") {
  const auto plan = make_plan(routed_spec(counted(), 2, flat_cluster(2)));
  const Graph& g = plan->graph;
  Routed routed(g, 2, 9);
  std::vector<Placement> placements;
  for (const MoeLayer& layer : routed.step.layers()) {
    Placement p({.experts = layer.experts, .devices = 2, .residents = 2, .shadows = 1});
    p.add_shadow(0, 1);  // device 1 has expert 0 of device 0
    placements.push_back(p);
  }
  routed.step.route(routed.kept, placements);
  const OpId there = ops_of(g, "all_to_all")[0];
  const ExpertCounts& kept = routed.kept[routed.layer_of(g, there)];
  const std::vector<double>& m = *routed.step.routed_work(there, 0)->bytes;
  CHECK(m[2] == 64.0 * static_cast<double>(kept.at(1, 1)));  // of 1 to 0: expert 1 alone
}

TEST_CASE("with static_rows a copy that has rows computes exactly as many, and sends no padding") {
  const auto plan_of = [](int64_t rows) {
    return make_plan(routed_spec(counted({test::copies(rows)}), 2, flat_cluster(2)));
  };
  const auto plain = plan_of(0), fixed = plan_of(50);
  // Device 1 has a copy of expert 0 of device 0, which has rows of device 1 in layer 0 alone.
  const auto routed = [](const Plan& plan) {
    auto r = std::make_unique<Routed>(plan.graph, 2, 9);
    std::vector<Placement> placements = r->step.first_placements();
    for (Placement& p : placements) p.add_shadow(0, 1);
    r->kept[1].at(1, 0) = 0;
    r->step.route(r->kept, placements);
    return r;
  };
  const auto a = routed(*plain), b = routed(*fixed);
  const Graph& g = fixed->graph;
  for (const OpId op : ops_of(g, "expert_linear")) {
    const size_t layer = a->layer_of(g, op);
    const auto rows = [&](const Routed& r, int32_t device) {
      return r.step.routed_work(op, device)->work.slot_occupancy * 4 * 10;  // experts * capacity
    };
    const auto of_copy = static_cast<double>(a->kept[layer].at(1, 0));
    CHECK(rows(*b, 0) == Approx(rows(*a, 0)));
    CHECK(rows(*b, 1) == Approx(rows(*a, 1) + (of_copy > 0 ? 50 - of_copy : 0)));
  }
  for (const OpId op : ops_of(g, "all_to_all")) {
    CHECK(*a->step.routed_work(op, 0)->bytes == *b->step.routed_work(op, 0)->bytes);
  }
  const auto few = plan_of(1);
  CHECK_THROWS_WITH(routed(*few), Catch::Contains("but static_rows = 1; give copies fewer tokens"));
}

TEST_CASE("loads of another number of ranks or experts are refused") {
  const auto plan = make_plan(routed_spec(counted(), 2, flat_cluster(2)));
  RoutedStep step(plan->graph, {2, 1});
  CHECK_THROWS_WITH(
      step.route({ExpertCounts(2, 4), ExpertCounts(2, 5)}, step.first_placements()),
      Catch::Contains(
          "MoE layer 1 has 2 source ranks and 5 experts, but the plan has 2 ranks and 4"));
}

}  // namespace
}  // namespace moe
