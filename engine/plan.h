// Plan: the immutable bundle for one target (model, cluster or ranks, system), made once by
// make_plan() and never rebuilt in the middle of a run.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cost/cost_model.h"
#include "engine/model/model.h"
#include "engine/passes/device/kernel_variants.h"
#include "engine/passes/pass.h"
#include "engine/routing/routing_model.h"
#include "engine/schedule/legality.h"
#include "engine/schedule/memory.h"
#include "engine/schedule/schedule.h"

namespace moe {

/// A mix of techniques under a name.
struct SystemSpec {
  std::string name;
  std::vector<Stage> stages;
  GradientSync sync;
};

/// What is changed in a plan's graph for a device, after all passes.
struct DeviceLowering {
  bool fuse_gelu = false;   // passes/fuse_gelu.h
  bool round_once = false;  // passes/round_once.h
};

struct PlanSpec {
  ModelSpec model;
  GateSpec gate;
  OptimizerSpec optimizer;
  Cluster cluster;  // the simulated cluster, or the link and node of a CPU target
  int64_t num_ranks = 1;
  SystemSpec system;
  WorkContext work;
  std::shared_ptr<const CostModel> cost;
  Bytes element_bytes = 0;  // as plan_memory
  /// The forward alone: no backward, no update, no optimiser state.
  bool inference = false;
  /// How a device is to run ops that have several variants; and whether ops that this says nothing
  /// of take the fastest one by `cost`, not the usual one.
  WantedVariants variants;
  bool autotune = false;
  DeviceLowering lowering;
  /// Which experts tokens choose, in place of the model's gate; null: the gate.
  std::shared_ptr<const RoutingModel> routing;
};

struct Plan {
  PlanSpec spec;
  Graph graph;
  Schedule schedule;
  LaneOrders orders;
  std::vector<std::vector<OpId>> waits;  // cross_lane_waits
  MemoryPlan memory;
  std::vector<StageReport> stages;
  Nanoseconds plan_ns = 0;  // time that planning took
  std::string hash;         // of graph text, orders and buffers, 16 hex digits
};

/// Runs the stages in order, verifies after each, and passes the legality door.
/// Throws UserError or RunError naming the stage.
std::shared_ptr<const Plan> make_plan(PlanSpec spec);

/// The same for a graph and a schedule given (tests, Lua scripts): order, waits, memory, legality.
std::shared_ptr<const Plan> make_plan_of(PlanSpec spec, Graph graph, Schedule schedule);

/// The program of a plan as bytes for another process of the same program: graph, schedule, hash.
/// Throws UserError naming a lane that picks by a function, which has no bytes.
std::string packed_program(const Plan& plan);
/// The plan with that program and this spec: order, waits, memory and legality are made anew.
/// Throws RunError naming both hashes where the hash of what comes out is another.
std::shared_ptr<const Plan> plan_of_program(PlanSpec spec, std::string_view packed);

}  // namespace moe
