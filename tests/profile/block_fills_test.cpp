#include "engine/cost/block_fills.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "engine/base/index.h"
#include "engine/cost/profile_cache.h"
#include "engine/graph/op_def.h"
#include "engine/profile/indices.h"
#include "tests/sim/routing.h"

namespace moe {
namespace {

using test::copies;
using test::counted;
using test::flat_cluster;
using test::ops_of;
using test::routed_spec;

size_t counts_input(const Graph& graph, OpId id) {
  const Op& op = graph.op(id);
  const auto is_counts = [&](TensorId t) { return t == input_of(graph, op, Role::kRecvCounts); };
  return index(std::find_if(op.inputs.begin(), op.inputs.end(), is_counts) - op.inputs.begin());
}

/// The time of an op that runs one product for each entry of `rows`: weights are read where it has
/// rows, and a gradient is cleared where it has none.
double time_of(const std::vector<int64_t>& rows) {
  double ns = 0;
  for (const int64_t n : rows) ns += n > 0 ? 1e6 + 7e4 * static_cast<double>(n) : 5e4;
  return ns;
}

/// Returns the sums of `sources` neighbours each.
std::vector<int64_t> by_slot(const std::vector<int64_t>& rows, int64_t sources) {
  std::vector<int64_t> sums(rows.size() / index(sources));
  for (size_t i = 0; i < rows.size(); ++i) sums[i / index(sources)] += rows[i];
  return sums;
}

bool is_packed(const Graph& graph, OpId op) {
  return graph.tensor(graph.op(op).inputs[0]).stored_rows > 0;
}

PlanSpec spec_of(bool packed, bool placed, int64_t ranks) {
  PlanSpec spec = routed_spec(placed ? counted({copies()}) : counted(), ranks, flat_cluster(ranks),
                              packed ? 0.25 : 0.8);
  if (packed) test::change_model(spec, [](test::Gpt2& m) { m.capacity_factor = 0; });
  return spec;
}

/// Returns the choices that find a slot when each rank spreads its choices over experts in the
/// ratio of `weights`, each rank beginning at another expert.
ExpertCounts routed_by(const std::vector<int64_t>& weights, const MoeLayer& layer, int64_t ranks) {
  ExpertCounts counts(ranks, layer.experts);
  int64_t all = 0;
  for (const int64_t w : weights) all += w;
  for (int64_t s = 0; s < ranks; ++s) {
    for (int64_t e = 0; e < layer.experts; ++e) {
      const int64_t weight = weights[index((e + s) % layer.experts)];
      counts.at(s, e) = layer.tokens * layer.k * weight / all;
    }
  }
  return kept_rows(counts, layer.capacity);
}

TEST_CASE("an op at the experts takes the sum of what its blocks take, however rows are spread") {
  const bool packed = GENERATE(false, true), placed = GENERATE(false, true);
  const int64_t ranks = GENERATE(2, 4);
  const std::vector<int64_t> weights =
      GENERATE(std::vector<int64_t>{1, 1, 1, 1}, std::vector<int64_t>{1, 0, 0, 0},
               std::vector<int64_t>{0, 0, 0, 1}, std::vector<int64_t>{5, 2, 1, 0});
  INFO((packed ? "packed" : "in blocks")
       << (placed ? ", with copies, " : ", ") << ranks << " ranks; first weight " << weights[0]);
  const PlanSpec spec = spec_of(packed, placed, ranks);
  const auto plan = make_plan(spec);
  const Graph& g = plan->graph;
  const auto measure = [](const Graph& graph, OpId op, const WorkContext& work) {
    if (!counts_blocks(graph, graph.op(op))) return Samples{{1}};
    const std::vector<int32_t> counts = index_values(graph, op, counts_input(graph, op), work);
    std::vector<int64_t> rows(counts.begin(), counts.end());
    const Tensor& in = graph.tensor(graph.op(op).inputs[0]);
    if (in.stored_rows > 0) {
      CHECK(std::accumulate(rows.begin(), rows.end(), int64_t{0}) <= in.stored_rows);
      rows = by_slot(rows, static_cast<int64_t>(rows.size()) / in.shape[0]);
    }
    return Samples{{std::llround(time_of(rows))}};
  };
  const ProfileCost cost(std::make_shared<ProfileCache>(""), "cpu", measure, nullptr, spec.work);
  REQUIRE(cost.reads_blocks());

  RoutedStep step(g, {ranks, 1}, true);
  std::vector<ExpertCounts> kept;
  for (const MoeLayer& layer : step.layers()) kept.push_back(routed_by(weights, layer, ranks));
  std::vector<Placement> placements = step.first_placements();
  for (Placement& p : placements) {
    if (placed) p.add_shadow(0, ranks - 1);
  }
  step.route(kept, placements);

  int64_t checked = 0;
  for (const OpId op : step.ops()) {
    if (!counts_blocks(g, g.op(op))) continue;
    ++checked;
    size_t l = 0;
    while (step.layers()[l].block != g.op(op).layer) ++l;
    const std::vector<int64_t> all = rows_by_slot(placements[l], kept[l]);
    const size_t blocks = all.size() / index(ranks);
    for (int32_t r = 0; r < static_cast<int32_t>(ranks); ++r) {
      const auto begin = all.begin() + static_cast<int64_t>(index(r) * blocks);
      std::vector<int64_t> rows(begin, begin + static_cast<int64_t>(blocks));
      if (is_packed(g, op)) rows = by_slot(rows, ranks);
      INFO(g.op(op).name << " on rank " << r);
      const auto ns = static_cast<double>(cost.routed_ns(g, op, *step.routed_work(op, r)));
      CHECK(ns == Approx(time_of(rows)).epsilon(0.01));
    }
  }
  CHECK(checked >= 10);
}

TEST_CASE("without a routing, slots of copies are empty and the others are filled evenly") {
  const bool packed = GENERATE(false, true);
  const auto plan = make_plan(spec_of(packed, true, 2));
  const Graph& g = plan->graph;
  for (const OpId op : ops_of(g, "expert_linear")) {
    const auto measure = [&](const Graph&, OpId, const WorkContext& work) {
      const TimedRows rows = timed_rows(g, g.op(op), work.slot_occupancy * 2 / 3);
      return Samples{{10 * (rows.slots - rows.filled) + 1000 * rows.filled * rows.rows_of_slot}};
    };
    const ProfileCost cost(std::make_shared<ProfileCache>(""), "cpu", measure, nullptr,
                           plan->spec.work);
    const TimedRows even = timed_rows(g, g.op(op), plan->spec.work.slot_occupancy);
    CHECK(even.slots == 3);  // two of the device's own, one for copies
    CHECK(static_cast<double>(cost.op_ns(g, op)) ==
          Approx(2000.0 * static_cast<double>(even.rows_of_slot)).epsilon(0.02));
  }
}

}  // namespace
}  // namespace moe
