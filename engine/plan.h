// Plan: graph, schedule and memory for one target (model, cluster or ranks, system). make_plan()
// creates it once; it never changes afterwards, not even during a run. Plans are executed in run.h.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cost/cost_model.h"
#include "engine/model/model.h"
#include "engine/passes/pass.h"
#include "engine/pipeline/turn.h"
#include "engine/routing/routing_model.h"
#include "engine/schedule/legality.h"
#include "engine/schedule/memory.h"
#include "engine/schedule/schedule.h"

namespace moe {

struct Dispatcher;  // cost/dispatch_cost.h

/// A named mix of passes with an all-reduce policy.
struct SystemSpec {
  std::string name;
  std::vector<Stage> stages;
  GradientSync sync;
};

/// How the blocks of a model and the micro-batches of a step are spread over pipeline ranks. The
/// ranks of pipeline rank p, from 0, are those from p * PlanSpec::num_ranks on.
struct PipelineSpec {
  pipeline::Shape shape;
  std::vector<pipeline::Turns> turns;  // by pipeline rank
  std::vector<int64_t> layers;         // number of blocks of each stage
};

struct PlanSpec {
  ModelPtr model;
  GateSpec gate;
  OptimizerSpec optimizer;
  Cluster cluster;        // the simulated cluster, or the link and node of a CPU target
  int64_t num_ranks = 1;  // of each pipeline rank
  PipelineSpec pipeline;  // without turns: one pipeline rank that runs F0, B0, F1, B1, ...
  SystemSpec system;
  WorkContext work;
  std::shared_ptr<const CostModel> cost;
  Bytes element_bytes = 0;  // as in plan_memory()
  /// Whether the plan has the forward pass only: no backward, no update, no optimizer state.
  bool inference = false;
  DeviceLowering lowering;
  /// Chooses the experts of tokens instead of the model's gate, or gives the gate its scores
  /// (RoutingModel::runs_gate); null means the gate.
  std::shared_ptr<const RoutingModel> routing;
  /// What exchanges rows in place of all-to-alls, in simulations; null: none. `cost` knows it.
  std::shared_ptr<const Dispatcher> dispatcher;

  int64_t pipeline_ranks() const { return std::max<int64_t>(1, std::ssize(pipeline.turns)); }
  /// Returns the part of the cluster that a pipeline rank is.
  Cluster rank_cluster() const {
    return pipeline_ranks() == 1 ? cluster : part_of(cluster, num_ranks);
  }
};

struct Plan {
  PlanSpec spec;
  Graph graph;  // of all pipeline ranks (schedule/join.h)
  Schedule schedule;
  LaneOrders orders;
  std::vector<std::vector<OpId>> waits;  // from cross_lane_waits(); of several pipeline ranks empty
  MemoryPlan memory;                     // of the pipeline rank with the highest peak
  std::vector<StageReport> stages;
  Nanoseconds plan_ns = 0;  // time that planning took
  std::string hash;         // of graph text, schedule, orders and buffers, as 16 hex digits

  /// What each pipeline rank runs, as a plan of its own with the ops that it takes part in;
  /// empty if there is one.
  std::vector<std::shared_ptr<const Plan>> programs;
  /// In a plan of `programs`: its pipeline rank, and the ops and lanes of the whole plan that its
  /// own are; else empty.
  int64_t pipeline_rank = 0;
  std::vector<OpId> step_ops;
  std::vector<LaneId> step_lanes;

  int64_t num_ranks() const { return spec.num_ranks * spec.pipeline_ranks(); }
  /// Returns what a rank of the whole plan, from 0, runs.
  const Plan& program(int64_t rank) const {
    return programs.empty() ? *this : *programs[static_cast<size_t>(rank / spec.num_ranks)];
  }
  OpId in_step(OpId op) const { return step_ops.empty() ? op : step_ops[op.index()]; }
  LaneId in_step(LaneId lane) const { return step_lanes.empty() ? lane : step_lanes[lane.index()]; }
  /// Returns the plan of the pipeline rank with the highest peak memory, and its number.
  std::pair<const Plan*, int64_t> fullest() const;
};

/// Makes a plan: runs the stages in order, verifies the graph after each, and checks the legality
/// of the result. Throws UserError or RunError naming the stage.
std::shared_ptr<const Plan> make_plan(PlanSpec spec);

/// Makes a plan from a given graph and schedule (for tests and Lua scripts): computes orders, waits
/// and memory, and checks legality.
std::shared_ptr<const Plan> make_plan_of(PlanSpec spec, Graph graph, Schedule schedule);

/// Packs the model's parameters and states, and the graph, schedule and hash of a plan into bytes,
/// for another process of the same job.
/// Policy functions of lanes (Lane::choose) are not packed.
std::string packed_program(const Plan& plan);
/// Returns the model of a packed plan, without its forward graph. spec: what the recipe declares.
std::shared_ptr<Model> model_of_program(ModelSpec spec, std::string_view packed);
/// Returns the plan with the packed model, graph and schedule, and otherwise with `spec`; orders,
/// waits, memory and legality are computed again. Throws RunError naming both hashes if the result
/// has another hash than the packed plan.
std::shared_ptr<const Plan> plan_of_program(PlanSpec spec, std::string_view packed);

}  // namespace moe
