#include "tests/exec/support.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

#include "engine/base/errors.h"
#include "engine/exec/cpu/executor.h"
#include "engine/exec/data.h"
#include "engine/graph/op_def.h"

namespace moe::test {
namespace {

Cluster any_cluster(int64_t num_ranks) {
  Cluster cluster;
  cluster.devices_per_node = num_ranks;
  cluster.device = {.name = "core",
                    .gemm_flops_per_s = 1e11,
                    .vector_flops_per_s = 1e10,
                    .memory_bytes_per_s = 1e10,
                    .launch_ns = 0,
                    .memory_bytes = 0};
  cluster.intra = {.bytes_per_s = 1e9, .latency_ns = 10'000};
  cluster.nic = cluster.intra;
  return cluster;
}

/// Every op in a random topological order; edges between neighbours of a lane make the lanes follow
/// it.
std::vector<OpId> random_order(const Graph& graph, Rng& rng) {
  const Dependencies deps = dependencies(graph);
  std::vector<size_t> waiting(graph.num_ops());
  std::vector<OpId> ready, order;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    waiting[i] = deps.preds[i].size();
    if (waiting[i] == 0) ready.emplace_back(static_cast<int64_t>(i));
  }
  while (!ready.empty()) {
    std::swap(ready[static_cast<size_t>(rng.below(static_cast<int64_t>(ready.size())))],
              ready.back());
    order.push_back(ready.back());
    ready.pop_back();
    for (const OpId next : deps.succs[order.back().index()]) {
      if (--waiting[next.index()] == 0) ready.push_back(next);
    }
  }
  return order;
}

OpId op_id(size_t i) {
  return OpId(static_cast<int64_t>(i));
}

bool is_transfer(const Graph& graph, OpId op) {
  return graph.def(op).lane == LaneKind::kComm;
}

/// Keeps the hold where it is legal.
void try_hold(const PlanSpec& spec, const Graph& graph, Schedule& schedule, Rng& rng) {
  const auto n = static_cast<int64_t>(graph.num_ops());
  schedule.holds.push_back({OpId(rng.below(n)), OpId(rng.below(n)), "test"});
  try {
    make_plan_of(spec, graph, schedule);
  } catch (const RunError&) {
    schedule.holds.pop_back();
  }
}

/// Collects what differs.
class Differences {
 public:
  template <class T>
  void same(const std::string& name, const T& a, const T& b) {
    if (a != b) text_ += name + " differs\n";
  }
  void near(const std::string& name, double a, double b, double allowed) {
    if (a == b || std::abs(a - b) <= allowed) return;
    text_ += fmt::format("{}: {:.17g} and {:.17g}\n", name, a, b);
  }
  /// sizes: what the allowed differences are relative to.
  void near_all(const std::string& what, const std::map<std::string, double>& a,
                const std::map<std::string, double>& b, const std::map<std::string, double>& sizes,
                double tolerance) {
    if (!as_many(what, a, b)) return;
    for (const auto& [name, value] : a) {
      near(what + " of " + name, value, b.at(name), tolerance * sizes.at(name));
    }
  }
  template <class T>
  bool as_many(const std::string& what, const T& a, const T& b) {
    if (a.size() != b.size()) text_ += fmt::format("{} and {} {}\n", a.size(), b.size(), what);
    return a.size() == b.size();
  }
  /// Calls compare(name, x, y) for what the runs have in each step and layer.
  template <class T, class F>
  void by_layer(const std::string& what, const std::vector<std::vector<T>>& a,
                const std::vector<std::vector<T>>& b, F compare) {
    if (!as_many("steps with " + what, a, b)) return;
    for (size_t step = 0; step < a.size(); ++step) {
      if (!as_many("layers with " + what, a[step], b[step])) return;
      for (size_t i = 0; i < a[step].size(); ++i) {
        compare(fmt::format("step {}, block {}: ", step, a[step][i].layer), a[step][i], b[step][i]);
      }
    }
  }
  std::string text() const { return text_; }

 private:
  std::string text_;
};

void compare_layers(Differences& of, const RunResult& a, const RunResult& b, double tolerance) {
  of.by_layer("routing", a.moe, b.moe,
              [&](const std::string& at, const MoeStats& x, const MoeStats& y) {
                of.same(at + "layer", x.layer, y.layer);
                of.same(at + "checksum", x.checksum, y.checksum);
                of.same(at + "dropped", x.dropped, y.dropped);
                of.same(at + "counts", x.counts, y.counts);
                of.same(at + "load", x.load, y.load);
                of.same(at + "capacity", x.capacity, y.capacity);
                of.near(at + "balance_loss", x.balance_loss, y.balance_loss,
                        tolerance * std::abs(x.balance_loss));
                of.near(at + "z_loss", x.z_loss, y.z_loss, tolerance * std::abs(x.z_loss));
                if (tolerance == 0) of.near(at + "min_margin", x.min_margin, y.min_margin, 0);
              });
}

void compare_places(Differences& of, const RunResult& a, const RunResult& b) {
  of.by_layer("placements", a.placements, b.placements,
              [&](const std::string& at, const PlacementRecord& x, const PlacementRecord& y) {
                of.same(at + "in_force", x.in_force, y.in_force);
                of.same(at + "next", x.next, y.next);
                of.same(at + "computed", x.computed, y.computed);
              });
  of.by_layer("offloaded experts", a.offloads, b.offloads,
              [&](const std::string& at, const OffloadRecord& x, const OffloadRecord& y) {
                of.same(at + "layer", x.layer, y.layer);
                of.same(at + "fine_tunes", x.fine_tunes, y.fine_tunes);
                of.same(at + "again", x.again, y.again);
                of.same(at + "expected", x.expected, y.expected);
                of.same(at + "in_force", x.in_force, y.in_force);
                of.same(at + "rows", x.rows, y.rows);
              });
}

}  // namespace

Gpt2 reference_model(const std::string& gate, int64_t num_ranks) {
  Gpt2 m;
  m.vocab = 512;
  m.layers = 4;
  m.hidden = 128;
  m.heads = 4;
  m.seq = 64;
  m.batch_per_device = 8 / num_ranks;
  m.experts = 4;
  m.gate = gate;
  m.capacity_factor = 1.25;
  return m;
}

Gpt2 small_model(const std::string& gate, int64_t rows) {
  Gpt2 m;
  m.vocab = 32;
  m.layers = 2;
  m.hidden = 16;
  m.heads = 2;
  m.seq = 8;
  m.batch_per_device = rows;
  m.experts = 4;
  m.gate = gate;
  m.capacity_factor = 1.0;
  return m;
}

PlanSpec spec_of(const Gpt2& model, int64_t num_ranks, Precision precision) {
  PlanSpec spec;
  spec.num_ranks = num_ranks;
  set_model(spec, model);
  spec.cluster = any_cluster(num_ranks);
  spec.system.name = "plain";
  spec.cost = std::make_shared<RooflineCost>(spec.cluster, spec.work);
  spec.element_bytes = precision == Precision::kF64 ? 8 : 4;
  if (precision != Precision::kBF16) return spec;
  change_model(spec, [&](Gpt2& m) { m.dtype = DType::kBF16; });
  spec.element_bytes = 0;
  return spec;
}

Graph step_graph(const PlanSpec& spec) {
  Graph graph = spec.model->forward;
  add_backward_and_update(graph, spec.optimizer, spec.system.sync, *spec.model);
  return graph;
}

Graph ragged_step_graph(const PlanSpec& spec) {
  Graph graph = spec.model->forward;
  TensorId received;
  for (size_t i = 0, n = graph.num_ops(); i < n; ++i) {
    const OpId id(static_cast<int64_t>(i));
    if (graph.def(id).name != std::string_view("all_to_all")) continue;
    if (graph.op(id).rows.to_expert()) {
      const OpId exchange =
          graph.add_op("exchange_counts", graph.op(id).name + ".counts", {graph.op(id).inputs[1]});
      received = graph.out(exchange);
    }
    graph.op(id).inputs.resize(2);
    graph.op(id).inputs.push_back(received);
    graph.op(id).rows.irregular = true;
  }
  graph = compact(graph);
  add_backward_and_update(graph, spec.optimizer, spec.system.sync);
  return graph;
}

std::shared_ptr<const Plan> plan_of(const PlanSpec& spec, const Graph& graph) {
  return make_plan_of(spec, graph, default_schedule(graph));
}
std::shared_ptr<const Plan> plan_of(const PlanSpec& spec) {
  return plan_of(spec, step_graph(spec));
}
std::shared_ptr<const Plan> plan_with(PlanSpec spec, std::vector<Stage> stages) {
  spec.system.stages = std::move(stages);
  return make_plan(std::move(spec));
}

Schedule random_schedule(const Graph& graph, Rng& rng) {
  Schedule schedule;
  const int64_t num_comm = 1 + rng.below(3);
  schedule.lanes.push_back({"compute", LaneKind::kCompute});
  for (int64_t l = 0; l < num_comm; ++l) {
    schedule.lanes.push_back({fmt::format("comm{}", l), LaneKind::kComm});
  }
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const bool comm = graph.def(OpId(static_cast<int64_t>(i))).lane == LaneKind::kComm;
    schedule.lane_of.emplace_back(comm ? 1 + rng.below(num_comm) : 0);
  }
  std::vector<OpId> last(schedule.lanes.size());
  for (const OpId op : random_order(graph, rng)) {
    OpId& before = last[schedule.lane_of[op.index()].index()];
    if (before.valid()) schedule.before(before, op, "random", "a random order");
    before = op;
  }
  return schedule;
}

Schedule random_discipline(const PlanSpec& spec, const Graph& graph, Rng& rng) {
  Schedule schedule = default_schedule(graph);
  const int64_t num_comm = 1 + rng.below(3);
  Exclusive shared{{}, "test"};
  for (int64_t l = 1; l <= num_comm; ++l) {
    if (l > 1) schedule.lanes.push_back({fmt::format("comm{}", l), LaneKind::kComm});
    Lane& lane = schedule.lanes.back();
    lane.pick = static_cast<Pick>(rng.below(3));
    if (lane.pick == Pick::kPolicy) {
      lane.choose = [](std::span<const OpId> ready) { return ready[ready.size() / 2]; };
    }
    if (rng.below(2) == 0) shared.lanes.emplace_back(l);
  }
  if (shared.lanes.size() > 1) schedule.exclusive = {shared};
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId op = op_id(i);
    if (!is_transfer(graph, op)) continue;
    schedule.lane_of[i] = LaneId(1 + rng.below(num_comm));
    schedule.set_priority(op, rng.below(3));
    const Bytes message = message_bytes(graph, op);
    if (rng.below(2) == 0) schedule.set_chunk(graph, op, 1 + message / (1 + rng.below(5)) / 2);
  }
  for (int i = 0; i < 8; ++i) try_hold(spec, graph, schedule, rng);
  return schedule;
}

std::function<Nanoseconds(int64_t, OpId, int64_t)> random_delays(uint64_t seed) {
  return [seed](int64_t rank, OpId op, int64_t step) {
    const auto n = static_cast<uint64_t>((step * 4 + rank) * 4096 + op.value);
    const auto drawn = static_cast<Nanoseconds>(random24(n, seed) % 100'000);
    return std::max<Nanoseconds>(0, drawn - 50'000);
  };
}

RunOptions options_of(const Plan& plan, int64_t steps) {
  RunOptions options;
  options.steps = steps;
  options.precision = plan.spec.element_bytes == 8   ? Precision::kF64
                      : plan.spec.element_bytes == 4 ? Precision::kF32
                                                     : Precision::kBF16;
  const Model& m = *plan.spec.model;
  options.data = reference_data(m.vocab, m.batch_per_device, plan.graph.num_ranks, m.seq);
  options.init = reference_init;
  options.timeout_s = 5;
  return options;
}

RunResult run_cpu(const Plan& plan, const RunOptions& options) {
  return make_cpu_executor()->run(plan, options);
}

RunResult run_poisoned(const Plan& plan, int64_t steps, Precision precision) {
  RunOptions options = options_of(plan, steps);
  options.precision = precision;
  options.test.poison = true;
  RunResult result = run_cpu(plan, options);
  MOE_CHECK(result.peak_bytes == plan.memory.peak_bytes(),
            "the run needed {} bytes, but the plan says {}", result.peak_bytes,
            plan.memory.peak_bytes());
  return result;
}

RunResult run_with_norms(const Plan& plan, int64_t steps, PlacementFunction policy) {
  RunOptions options = options_of(plan, steps);
  options.test.poison = true;
  options.train.keep_grad_norms = true;
  if (policy) options.policies.place = [policy](int64_t, const std::string&) { return policy; };
  return run_cpu(plan, options);
}

SameRun same_run(const RunResult& a, const RunResult& b, Tolerance tolerance) {
  Differences of;
  if (of.as_many("losses", a.losses, b.losses)) {
    for (size_t i = 0; i < a.losses.size(); ++i) {
      of.near(fmt::format("loss of step {}", i), a.losses[i], b.losses[i],
              tolerance.losses * std::abs(a.losses[i]));
    }
  }
  of.near("eval_loss", a.eval_loss, b.eval_loss, tolerance.losses * std::abs(a.eval_loss));
  of.same("predictions", a.predictions, b.predictions);
  compare_layers(of, a, b, tolerance.losses);
  of.near_all("gradients", a.grad_l2, b.grad_l2, a.grad_l2, tolerance.norms);
  of.near_all("projected gradients", a.grad_projection, b.grad_projection, a.grad_l2,
              tolerance.norms);
  of.near_all("parameters", a.param_l2, b.param_l2, a.param_l2, tolerance.norms);
  of.near_all("projected parameters", a.param_projection, b.param_projection, a.param_l2,
              tolerance.norms);
  if (tolerance.losses == 0) {
    of.same("digest", a.digest, b.digest);
    compare_places(of, a, b);
  }
  return {of.text()};
}

bool take_turns(const Plan& plan, const Timeline& timeline) {
  for (const Arbiter& lanes : arbiters(plan.schedule)) {
    std::vector<std::vector<Span>> by_rank(static_cast<size_t>(plan.graph.num_ranks));
    for (const Span& s : timeline.spans) {
      if (std::find(lanes.begin(), lanes.end(), s.lane) == lanes.end()) continue;
      by_rank[static_cast<size_t>(s.rank)].push_back(s);
    }
    for (std::vector<Span>& mine : by_rank) {
      // One without rows takes no time.
      std::stable_sort(mine.begin(), mine.end(),
                       [](const Span& a, const Span& b) { return a.end < b.end; });
      if (mine.size() != by_rank[0].size()) return false;
      for (size_t i = 0; i < mine.size(); ++i) {
        const Span& first = by_rank[0][i];
        if (mine[i].op != first.op || mine[i].chunk != first.chunk) return false;
        if (i > 0 && mine[i - 1].end > mine[i].begin) return false;
      }
    }
  }
  return true;
}

}  // namespace moe::test
