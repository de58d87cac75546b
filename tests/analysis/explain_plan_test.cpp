// Does explain find what keeps transfers from overlapping? Plans of a small model into which one
// defect each is planted, beside the same plan without it.
#include <catch2/catch.hpp>
#include <cstdio>

#include "engine/analysis/findings.h"
#include "engine/analysis/idle_stages.h"
#include "engine/base/errors.h"
#include "engine/graph/edit.h"
#include "engine/passes/capacity/capacity_cut.h"
#include "tests/passes/fixture.h"

namespace moe::test {
namespace {

constexpr Nanoseconds kStartUp = 1'000;  // of a transfer or a chunk

/// Times of about the proportions of a real step: an all-to-all is as long as its experts.
Nanoseconds cost_of(const Graph& graph, OpId op) {
  const OpDef& def = graph.def(op);
  const std::string name = def.name;
  const auto bytes = static_cast<double>(message_bytes(graph, op));
  if (name == "exchange_counts") return 8'000;  // a round trip, whatever the bytes
  if (def.collective == Collective::kAllToAll) {
    return kStartUp + static_cast<Nanoseconds>(bytes * 8);
  }
  if (def.collective == Collective::kAllReduce) {
    return kStartUp + static_cast<Nanoseconds>(bytes * 4);
  }
  if (is_view(graph, graph.op(op))) return 0;
  if (name == "dispatch") return 6'000;
  if (name == "sgd") return 100;
  if (name.starts_with("expert_linear")) {
    return static_cast<Nanoseconds>(graph.bytes(graph.op(op).inputs[0])) * 2;
  }
  return 2'000;
}

using Plant = std::function<void(const Graph&, Schedule&)>;

/// A planted stage, before the schedulers of the system.
Stage planted(Plant plant) {
  Stage made;
  made.name = "planted";
  made.kind = StageKind::kSchedule;
  made.schedule = [plant = std::move(plant)](const Graph& graph, Schedule schedule,
                                             const PassContext&) {
    plant(graph, schedule);
    return schedule;
  };
  return made;
}

OpId find(const Graph& graph, const std::string& name) {
  const OpId op = graph.find_op(name);
  INFO(name);
  REQUIRE(op.valid());
  return op;
}

Plant edge(const std::string& from, const std::string& to) {
  return [=](const Graph& graph, Schedule& schedule) {
    schedule.before(find(graph, from), find(graph, to), "planted", "no reason");
  };
}

std::vector<Stage> pipelined(std::vector<Stage> more = {}) {
  std::vector<Stage> stages{stage("capacity_pipeline", {{"degree", 2.0}})};
  for (Stage& s : more) stages.push_back(std::move(s));
  stages.push_back(stage("dw_schedule"));
  return stages;
}

PlanSpec spec_of(std::vector<Stage> stages) {
  PlanSpec spec = small_spec(std::move(stages));
  spec.system.sync.lane = ReduceLane::kOwn;
  spec.cost = std::make_shared<GivenCost>(cost_of);
  return spec;
}

struct Explained {
  std::shared_ptr<const Plan> plan;
  std::vector<Finding> findings;
  std::vector<IdleStage> idle;
};

Explained explained(PlanSpec spec) {
  Explained all{make_plan(std::move(spec)), {}, {}};
  const Plan& plan = *all.plan;
  const auto make_input = [&plan](const Schedule& schedule, const LaneOrders& orders) {
    ReplayInput input = replay_input(plan.graph, schedule, orders, *plan.spec.cost);
    input.chunk_ns = [&plan](OpId op, int32_t, int64_t chunks) {
      return kStartUp + (cost_of(plan.graph, op) - kStartUp + chunks - 1) / chunks;
    };
    return input;
  };
  const ReplayInput input = make_input(plan.schedule, plan.orders);
  const Explanation explanation = explain(input, replay(input));
  all.idle = idle_stages(plan.graph, plan.schedule, plan.spec.cost.get(), plan.stages);
  all.findings = findings({.graph = plan.graph,
                           .schedule = plan.schedule,
                           .explanation = explanation,
                           .make_input = make_input,
                           .idle = all.idle});
  return all;
}

std::string text(const Explained& e, const Finding& f) {
  return fmt::format("'{}' {}: {} | {} | gain {} of {}", e.plan->graph.op(f.exposure.op).name,
                     name_of(f.exposure.cause),
                     cause_text(e.plan->graph, e.plan->schedule, f.exposure), f.advice,
                     f.gain_ns ? fmt::format("{}", *f.gain_ns) : "?", f.worth_ns);
}

/// What a finding must name: the cause, the stage, and these ops.
struct Defect {
  std::string what;
  PlanSpec spec;
  Cause cause;
  std::string stage;
  std::vector<std::string> names;
};

/// One of two names of what a lane's order does.
bool same_cause(Cause a, Cause b) {
  return a == b || (a == Cause::kLaneOrder && b == Cause::kLaneBusy);
}

bool names(const Explained& e, const Finding& f, const Defect& d) {
  const std::string all = text(e, f);
  const bool ops = std::all_of(d.names.begin(), d.names.end(), [&](const std::string& name) {
    return all.find(name) != std::string::npos;
  });
  return same_cause(f.exposure.cause, d.cause) && ops &&
         all.find("stage '" + d.stage + "'") != std::string::npos;
}

/// All collectives of a kind.
Plant each(const std::string& wanted, std::function<void(Schedule&, const Graph&, OpId)> change) {
  return [=](const Graph& graph, Schedule& schedule) {
    for (const OpId op : ops_of(graph, wanted)) change(schedule, graph, op);
  };
}

/// Parts of nine slots and of one.
Stage uneven() {
  Stage made;
  made.name = "uneven";
  made.kind = StageKind::kForward;
  made.transform = [](Graph graph, const PassContext& context) {
    for (const CapacityChain& chain : capacity_chains(graph, context.stage)) {
      std::vector<CutAxis> cuts{{graph.op(chain.ops[0]).inputs[0], 1},
                                {graph.out(chain.ops.back()), 1}};
      for (size_t c = 0; c + 1 < chain.ops.size(); ++c)
        cuts.push_back({graph.out(chain.ops[c]), 2});
      split_ops(graph, chain.ops, cuts, std::vector<int64_t>{9, 1});
    }
    return graph;
  };
  return made;
}

std::vector<Defect> defects() {
  std::vector<Defect> all;
  const auto add = [&](std::string what, std::vector<Stage> stages, Cause cause, std::string stage,
                       std::vector<std::string> names) -> PlanSpec& {
    all.push_back(
        {std::move(what), spec_of(std::move(stages)), cause, std::move(stage), std::move(names)});
    return all.back().spec;
  };
  const auto add_edge = [&](std::string what, const std::string& from, const std::string& to) {
    add(std::move(what), pipelined({planted(edge(from, to))}), Cause::kOrderEdge, "planted",
        {"'" + from + "'", "'" + to + "'"});
  };
  add("all-reduces on the all-to-alls' lane",
      pipelined({planted(each("all_reduce", [](Schedule& s, const Graph&,
                                               OpId op) { s.lane_of[op.index()] = LaneId(1); }))}),
      Cause::kLaneBusy, "planted", {"all_reduce", "'comm'"});
  // After dw_schedule, which would order what it finds on one lane.
  std::vector<Stage> misplaced = pipelined();
  misplaced.push_back(planted([](const Graph& graph, Schedule& s) {
    s.lane_of[find(graph, "b1.moe.a2a_1.p0.dx").index()] = LaneId(2);
  }));
  add("an all-to-all on the all-reduces' lane", std::move(misplaced), Cause::kLaneBusy, "planted",
      {"'b1.moe.a2a_1.p0.dx'", "'comm_reduce'", "all_reduce."});
  add_edge("forward: experts of part 0 wait for the transfer of part 1", "b1.moe.a2a_1.p1",
           "b1.moe.fc1.p0");
  add_edge("forward: the way back of part 0 waits for the experts of part 1", "b3.moe.fc2.p1",
           "b3.moe.a2a_2.p0");
  add_edge("backward: experts of part 1 wait for the transfer of part 0", "b3.moe.a2a_2.p0.dx",
           "b3.moe.fc2.p1.dx");
  add("backward: the combine waits for weight gradients that it does not need",
      pipelined({planted([](const Graph& graph, Schedule& s) {
        for (const char* dw : {"b3.attn.qkv.dw", "b3.attn.out.dw", "b2.mlp.fc1.dw", "b2.mlp.fc2.dw",
                               "b2.attn.qkv.dw", "b2.attn.out.dw", "b3.ln2.dw", "b3.ln1.dw"}) {
          s.before(find(graph, dw), find(graph, "b1.moe.combine.dx"), "planted", "no reason");
        }
      })}),
      Cause::kOrderEdge, "planted", {".dw'", "'b1.moe.combine.dx'"});
  add_edge("backward: a weight gradient before the gradient of the input", "head.dw", "lnf.dx");
  add("backward: an all-to-all waits for an all-reduce",
      pipelined({planted([](const Graph& graph, Schedule& s) {
        const OpId a2a = find(graph, "b1.moe.a2a_2.p1.dx");
        const Reachability reach(graph, dependencies(graph));
        OpId last;
        for (const OpId op : ops_of(graph, "all_reduce")) {
          if (reach.independent(op, a2a)) last = op;
        }
        s.before(last, a2a, "planted", "no reason");
      })}),
      Cause::kOrderEdge, "planted", {"'b1.moe.a2a_2.p1.dx' waits for 'all_reduce."});
  add_edge("update: the first update waits for the last all-reduce", "all_reduce.45", "lnf.w.sgd");
  add("update: all-reduces after the backward, although ready",
      pipelined({planted(each("all_reduce",
                              [](Schedule& s, const Graph& graph, OpId op) {
                                s.before(find(graph, "embed.dw"), op, "planted", "at the end");
                              }))}),
      Cause::kOrderEdge, "planted", {"'embed.dw'", "all_reduce."});
  add("one op after another", {stage("capacity_pipeline", {{"degree", 2.0}}), stage("serial")},
      Cause::kOrderEdge, "serial", {"one by one"});
  add("all-to-alls that block compute",
      {stage("capacity_pipeline", {{"degree", 2.0}}), stage("blocking_a2a")}, Cause::kOrderEdge,
      "blocking_a2a", {"moe.a2a"});
  add("an all-to-all in chunks far too small",
      pipelined({planted([](const Graph& graph, Schedule& s) {
        s.set_chunk(graph, find(graph, "b1.moe.a2a_1.p1"), 64);
      })}),
      Cause::kStartUp, "planted", {"'b1.moe.a2a_1.p1'"});
  add("all-reduces in chunks far too small",
      pipelined({planted(each("all_reduce",
                              [](Schedule& s, const Graph& graph, OpId op) {
                                s.set_chunk(graph, op,
                                            std::min<Bytes>(message_bytes(graph, op), 64));
                              }))}),
      Cause::kStartUp, "planted", {"all_reduce."});
  add("an all-to-all of a lower priority than what it meets",
      pipelined({stage("priority", {{"hold", false}}), planted([](const Graph& graph, Schedule& s) {
                   for (const OpId op : ops_of(graph, "all_to_all")) {
                     const Op& o = graph.op(op);
                     if (o.layer == 1 && o.phase == Phase::kBackward) s.set_priority(op, -1);
                   }
                 })}),
      Cause::kLaneBusy, "planted", {"'b1.moe.a2a_", "all_reduce."});
  add("a hold that begins long before its all-to-all",
      pipelined({stage("priority", {{"hold", false}}), planted([](const Graph& graph, Schedule& s) {
                   s.holds.push_back(
                       {find(graph, "head.dx"), find(graph, "b1.moe.a2a_1.p0.dx"), "planted"});
                 })}),
      Cause::kHold, "planted", {"'head.dx'", "'b1.moe.a2a_1.p0.dx'"});
  add("lanes that exclude each other, without priorities",
      pipelined({planted([](const Graph&, Schedule& s) {
        s.exclusive.push_back({{LaneId(1), LaneId(2)}, "planted"});
      })}),
      Cause::kLaneBusy, "planted", {"all_reduce.", "moe.a2a"});
  add("a large all-reduce whole, before a pressing all-to-all",
      pipelined({stage("priority", {{"hold", false}})}), Cause::kLaneBusy, "priority",
      {"all_reduce.", "in chunks of"})
      .system.sync.bucket_bytes = 12'000;
  add("one bucket of all gradients", pipelined(), Cause::kData, "gradient sync",
      {"'all_reduce.0'", "smaller buckets"})
      .system.sync.bucket_bytes = Bytes{1} << 30;
  add("a pipeline of degree 1",
      {stage("capacity_pipeline", {{"degree", 1.0}}), stage("dw_schedule")}, Cause::kData,
      "capacity_pipeline", {"moe.a2a_", "in parts"});
  add("a part nine times as large as the other", {uneven(), stage("dw_schedule")}, Cause::kData,
      "uneven", {"moe.a2a_", "even parts"});
  add("counts of an irregular transfer exchanged late",
      {stage("irregular_a2a"), planted(edge("b1.moe.dispatch", "b1.moe.gate.exchange_counts")),
       stage("dw_schedule")},
      Cause::kOrderEdge, "planted", {"'b1.moe.dispatch'", "exchange_counts"});
  return all;
}

TEST_CASE("explain finds at least 18 of 20 planted defects among its first three findings") {
  const Explained clean = explained(spec_of(pipelined()));
  for (const Finding& f : clean.findings) std::printf("clean: %s\n", text(clean, f).c_str());
  int found = 0, count = 0;
  for (Defect& defect : defects()) {
    const Explained e = explained(std::move(defect.spec));
    int at = -1;
    for (size_t i = 0; i < e.findings.size() && at < 0; ++i) {
      if (names(e, e.findings[i], defect)) at = static_cast<int>(i);
    }
    for (const Finding& f : clean.findings) CHECK_FALSE(names(clean, f, defect));
    ++count;
    found += at >= 0 && at < 3;
    std::printf("%s %2d %s\n", at >= 0 && at < 3 ? "found " : "MISSED", at + 1,
                defect.what.c_str());
    for (size_t i = 0; i < std::min<size_t>(e.findings.size(), 3); ++i) {
      std::printf("          %s\n", text(e, e.findings[i]).c_str());
    }
  }
  CHECK(count >= 20);
  CHECK(found * 20 >= count * 18);
}

}  // namespace
}  // namespace moe::test
