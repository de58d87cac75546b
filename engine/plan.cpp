#include "engine/plan.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>

#include "engine/base/errors.h"
#include "engine/base/packing.h"
#include "engine/cost/dispatch_cost.h"
#include "engine/graph/op_def.h"
#include "engine/graph/text.h"
#include "engine/model/stages.h"
#include "engine/ops/ops.h"
#include "engine/passes/clip_gradients.h"
#include "engine/passes/pipeline.h"
#include "engine/schedule/join.h"
#include "engine/schedule/packed.h"
#include "engine/schedule/slots.h"
#include "engine/schedule/unroll.h"

namespace moe {
namespace {

using Clock = std::chrono::steady_clock;

/// The FNV-1a hash with 64 bits.
class Hash {
 public:
  void add(std::string_view text) {
    for (const char c : text) {
      state_ = (state_ ^ static_cast<unsigned char>(c)) * 1099511628211ull;
    }
  }
  void add(int64_t value) { add({reinterpret_cast<const char*>(&value), sizeof(value)}); }
  std::string text() const { return fmt::format("{:016x}", state_); }

 private:
  uint64_t state_ = 14695981039346656037ull;
};

std::string hash_of(const Plan& plan) {
  Hash hash;
  hash.add(print(plan.graph));
  for (const std::vector<OpId>& lane : plan.orders.lanes) {
    hash.add(static_cast<int64_t>(lane.size()));
    for (const OpId op : lane) hash.add(op.value);
  }
  for (const OrderEdge& edge : plan.schedule.order_edges) {
    hash.add(edge.from.value);
    hash.add(edge.to.value);
  }
  for (const Lane& lane : plan.schedule.lanes) hash.add(static_cast<int64_t>(lane.pick));
  for (const int64_t priority : plan.schedule.priority) hash.add(priority);
  for (const Bytes chunk : plan.schedule.chunk_bytes) hash.add(chunk);
  for (const Hold& hold : plan.schedule.holds) {
    hash.add(hold.from.value);
    hash.add(hold.until.value);
  }
  for (const Exclusive& group : plan.schedule.exclusive) {
    for (const LaneId lane : group.lanes) hash.add(lane.value);
  }
  const auto add_buffers = [&hash](const MemoryPlan& memory) {
    for (const Buffer& buffer : memory.buffers) {
      hash.add(buffer.offset);
      hash.add(buffer.bytes);
    }
  };
  if (plan.programs.empty()) add_buffers(plan.memory);
  for (const auto& program : plan.programs) add_buffers(program->memory);
  return hash.text();
}

/// Lists the passes by which the plan's dispatcher, if it has one, moves the rows in use, which
/// experts then compute, unless the system says itself that all-to-alls count rows.
void list_dispatched(PlanSpec& spec) {
  const Graph& forward = spec.model->forward;
  const auto exchanges = [&](const Op& op) { return forward.def(op).payload == Payload::kRows; };
  if (!spec.dispatcher || std::none_of(forward.ops().begin(), forward.ops().end(), exchanges)) {
    return;
  }
  std::vector<Stage>& stages = spec.system.stages;
  const auto listed = [&](const char* name) {
    return std::any_of(stages.begin(), stages.end(), [&](const Stage& s) {
      return s.name == name || kind_of(s) == StageKind::kPlacement;
    });
  };
  if (!listed("irregular_a2a")) {
    if (!listed("used_rows")) stages.push_back({.name = "used_rows"});
    stages.push_back({.name = "irregular_a2a"});
  }
  const dispatch::Route& route = spec.dispatcher->route;
  stages.push_back(
      {.name = "dispatched",
       .options = {
           {"dispatcher", route.name}, {"shares", route.shares()}, {"to_all", route.to_all}}});
}

StepSpec step_of(const PlanSpec& spec) {
  return {spec.inference, spec.optimizer, spec.system.sync, spec.lowering,
          !spec.pipeline.turns.empty()};
}

/// Orders the placement policies of a step by layer, because the policy of a layer gets the time of
/// the experts of the layer before (PlaceInput::experts_before_s).
void order_places(const Graph& graph, Schedule& schedule) {
  std::map<int32_t, OpId> places;
  for (const OpId op : graph.op_ids()) {
    if (is(graph, op, MoeOp::kPlace)) places[graph.op(op).layer] = op;
  }
  OpId before;
  for (const auto& [layer, op] : places) {
    if (before.valid()) {
      schedule.before(before, op, attr_string(graph.op(op), "stage"),
                      "copies of a layer travel beside the layer before");
    }
    before = op;
  }
}

/// Returns the default schedule, with all collectives on the lane "comm"; if the system has a lane
/// for all-reduces, they are on that lane.
Schedule first_schedule(const Graph& graph, ReduceLane reduce_lane) {
  Schedule schedule = default_schedule(graph);
  order_places(graph, schedule);
  if (reduce_lane == ReduceLane::kWithAllToAlls) return schedule;
  const LaneId own(static_cast<int64_t>(schedule.lanes.size()));
  schedule.lanes.push_back({name_of(reduce_lane), LaneKind::kComm});
  for (const OpId op : graph.op_ids()) {
    if (is_sync(graph.def(op).payload)) schedule.lane_of[op.index()] = own;
  }
  return schedule;
}

/// Which pipeline rank has the other end of a stage's transfers.
class Neighbours {
 public:
  /// Of the stage that is chunk `chunk` of pipeline rank `rank`.
  Neighbours(const PlanSpec& spec, int64_t rank, int64_t chunk)
      : spec_(spec), shape_(spec.pipeline.shape), rank_(rank), chunk_(chunk) {}

  int64_t of(const Op& op) const {
    const int64_t mine = shape_.stage_of(rank_, chunk_), from = attr_int(op, "from_stage");
    const int64_t other = from == mine ? attr_int(op, "to_stage") : from;
    const bool two_way = shape_.placing == pipeline::Placing::kTwoWay;
    const std::string role = attr_string(op, "role");
    if (role == name_of(SharedParam::Role::kGives) || role == name_of(SharedParam::Role::kTakes)) {
      return rank_;
    }
    // Both copies of a stage sum the gradients of its parameters.
    if (two_way && !role.empty()) return shape_.ranks - 1 - rank_;
    return shape_.rank_of(other, two_way && chunk_ == 1 ? shape_.micro_batches - 1 : 0);
  }
  /// Whether ranks of the two pipeline ranks at the same place are in different nodes.
  bool far(int64_t other) const {
    const auto node = [&](int64_t p) {
      return p * spec_.num_ranks / spec_.cluster.devices_per_node;
    };
    return node(rank_) != node(other);
  }

 private:
  const PlanSpec& spec_;
  const pipeline::Shape& shape_;
  const int64_t rank_, chunk_;
};

/// Says of each transfer to another pipeline rank which it is, and whether it is in another node.
void set_peers(Graph& graph, const Neighbours& neighbours) {
  for (const OpId id : graph.op_ids()) {
    if (graph.def(id).collective != Collective::kHandoff) continue;
    const int64_t peer = neighbours.of(graph.op(id));
    graph.op(id).attrs["peer"] = peer;
    graph.op(id).attrs["far"] = int64_t{neighbours.far(peer)};
  }
}

/// Puts transfers to other pipeline ranks on lanes of their own, one per ordered pair of ranks.
void add_handoff_lanes(const Graph& graph, Schedule& schedule, int64_t rank) {
  for (const OpId id : graph.op_ids()) {
    if (graph.def(id).collective != Collective::kHandoff) continue;
    const Op& op = graph.op(id);
    const int64_t peer = attr_int(op, "peer");
    if (peer == rank) continue;  // unroll() leaves it out
    const bool both = !op.inputs.empty() && !op.outputs.empty();
    const bool sends = both ? rank < peer : !op.inputs.empty();
    const std::string name = sends ? lane_to(peer) : lane_from(peer);
    const auto known = std::find_if(schedule.lanes.begin(), schedule.lanes.end(),
                                    [&](const Lane& lane) { return lane.name == name; });
    schedule.lane_of[id.index()] = LaneId(known - schedule.lanes.begin());
    if (known == schedule.lanes.end()) schedule.lanes.push_back({name, LaneKind::kComm});
  }
}

/// Sets Model::shared of each chunk of each pipeline rank.
class SharedParams {
 public:
  SharedParams(const std::vector<Model>& stages, const pipeline::Shape& shape, int64_t chunks) {
    for (int64_t rank = 0; rank < shape.ranks; ++rank) {
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t stage = shape.stage_of(rank, chunk);
        for (const ParamInfo& p : stages[static_cast<size_t>(stage)].parameters) {
          holders_[p.name][rank].push_back(stage);
        }
      }
    }
    for (auto& [name, ranks] : holders_) {
      for (auto& [rank, held] : ranks) std::sort(held.begin(), held.end());
      if (ranks.size() <= 2) continue;
      throw user_error(
          "grid.layout: {} pipeline ranks would hold the parameter '{}', but gradients are summed "
          "over 2 at most; give a layout in which MTP layers (m) are in one stage, with a tied "
          "head in that of the loss (L)",
          ranks.size(), name);
    }
  }

  std::vector<SharedParam> of(const Model& stage, int64_t rank) const {
    using Role = SharedParam::Role;
    std::vector<SharedParam> shared;
    for (const ParamInfo& p : stage.parameters) {
      const std::map<int64_t, std::vector<int64_t>>& ranks = holders_.at(p.name);
      const std::vector<int64_t>& here = ranks.at(rank);
      if (stage.stage != here[0]) {
        shared.push_back({p.name, Role::kGives, here[0]});
        continue;
      }
      if (here.size() > 1) shared.push_back({p.name, Role::kTakes, here[1]});
      for (const auto& [other, held] : ranks) {
        if (other != rank) shared.push_back({p.name, Role::kMeets, held[0]});
      }
    }
    return shared;
  }

 private:
  /// By name, then pipeline rank: the stages that hold the parameter, ascending.
  std::map<std::string, std::map<int64_t, std::vector<int64_t>>> holders_;
};

/// Adds what a stage of the system did in another stage of the pipeline.
void add_reports(std::vector<StageReport>& all, std::vector<StageReport> more) {
  for (StageReport& report : more) {
    const auto known = std::find_if(all.begin(), all.end(),
                                    [&](const StageReport& r) { return r.name == report.name; });
    if (known == all.end()) {
      all.push_back(std::move(report));
      continue;
    }
    StageChanges& sum = known->changes;
    const StageChanges& c = report.changes;
    sum = {sum.ops + c.ops,       sum.order_edges + c.order_edges,
           sum.lanes + c.lanes,   sum.priorities + c.priorities,
           sum.chunks + c.chunks, sum.disciplines + c.disciplines,
           sum.holds + c.holds};
    known->took_ns += report.took_ns;
    // It did what was requested if it did so in some stage.
    if (report.changed && !known->changed) known->without_effect = report.without_effect;
    known->changed |= report.changed;
  }
}

void refuse_without_pipeline(const PlanSpec& spec) {
  const auto refuse = [](const char* what, const char* remedy) {
    throw user_error("grid.pp: {} is not planned on several pipeline ranks yet; {}, or give pp = 1",
                     what, remedy);
  };
  if (spec.inference) refuse("inference", "use moe.infer without a grid");
  if (spec.pipeline.shape.placing != pipeline::Placing::kTwoWay) return;
  constexpr const char* kRemedy = "take a schedule in which one pipeline rank holds a stage";
  if (spec.model->bias_balance.rate > 0) {
    refuse("model.bias_balance, whose loads the two copies of a stage would have to add,", kRemedy);
  }
  const std::vector<Stage>& stages = spec.system.stages;
  if (std::any_of(stages.begin(), stages.end(),
                  [](const Stage& s) { return kind_of(s) == StageKind::kPlacement; })) {
    refuse("a placement of experts, which the two copies of a stage would have to share,", kRemedy);
  }
}

/// Adds the scaling of gradients by their norm over all pipeline ranks.
void add_clipping(const PlanSpec& spec, UnrolledStep& step, int64_t rank) {
  const double norm = clip_norm(spec.optimizer);
  if (norm <= 0) return;
  const PipelinePlace place = {rank, spec.pipeline_ranks(),
                               [&](int64_t other) { return Neighbours(spec, rank, 0).far(other); }};
  const LaneId lane = step.program.schedule.lane(name_of(spec.system.sync.lane));
  clip_over_ranks(step, norm, spec.model->grid(spec.num_ranks), lane, place);
  add_handoff_lanes(step.program.graph, step.program.schedule, rank);
}

/// Returns the program of each pipeline rank.
std::vector<ScheduledGraph> programs_of(const PlanSpec& spec, std::vector<StageReport>& reports) {
  refuse_without_pipeline(spec);
  const pipeline::Shape& shape = spec.pipeline.shape;
  const bool two_way = shape.placing == pipeline::Placing::kTwoWay;
  const int64_t chunks = two_way ? 2 : shape.stages / shape.ranks;
  const std::vector<Model> stages = split_stages(*spec.model, spec.pipeline.layers);
  const SharedParams shared(stages, shape, chunks);
  StepSpec step = step_of(spec);
  std::visit([](auto& optimizer) { optimizer.clip = {}; }, step.optimizer);  // add_clipping()
  const Cluster part = spec.rank_cluster();
  std::vector<ScheduledGraph> programs;
  for (int64_t rank = 0; rank < shape.ranks; ++rank) {
    std::vector<ScheduledGraph> own;
    std::deque<Model> models;
    std::deque<Pipeline> pipelines;  // of the chunks
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      Model& model = models.emplace_back(stages[static_cast<size_t>(shape.stage_of(rank, chunk))]);
      model.shared = shared.of(model, rank);
      const Neighbours neighbours(spec, rank, chunk);
      Pipeline& pipeline =
          pipelines.emplace_back(model, part, *spec.cost, step, spec.system.stages);
      Graph graph = pipeline.transform(model.forward);
      set_peers(graph, neighbours);
      Schedule schedule = first_schedule(graph, spec.system.sync.lane);
      add_handoff_lanes(graph, schedule, rank);
      schedule.log = pipeline.log();
      schedule = pipeline.schedule(graph, std::move(schedule));
      own.push_back({std::move(graph), std::move(schedule)});
    }
    UnrolledStep all = unroll(own, spec.pipeline.turns[static_cast<size_t>(rank)]);
    add_clipping(spec, all, rank);
    Schedule& schedule = all.program.schedule;
    order_slots(all.program.graph, schedule, all.turns);
    schedule = pipelines.back().schedule_step(all.program.graph, std::move(schedule), all.turns);
    for (const Pipeline& pipeline : pipelines) add_reports(reports, pipeline.reports());
    programs.push_back(std::move(all.program));
  }
  return programs;
}

/// Lets a transfer from another pipeline rank wait for those transfers of this rank that, by what
/// the other rank waits for, have taken place: their ends on this rank, after which their memory is
/// used again, follow from nothing else.
void wait_for_own_ends(const HappensBefore& among, Plan& program) {
  const auto transfers = [&](OpId op) {
    return program.graph.def(op).collective == Collective::kHandoff;
  };
  for (size_t lane = 0; lane < among.num_chains(); ++lane) {
    const std::vector<OpId>& ops = among.chains().lanes[lane];
    if (!transfers(ops[0])) continue;
    std::vector<int32_t> waited(among.num_chains());
    for (const OpId op : ops) {
      if (program.graph.op(op).outputs.empty()) continue;
      for (size_t c = 0; c < among.num_chains(); ++c) {
        const int32_t over = among.clock(op)[c];
        if (c == lane || over <= waited[c] || !transfers(among.chains().lanes[c][0])) continue;
        waited[c] = over;
        std::vector<OpId>& waits = program.waits[op.index()];
        const OpId end = among.chains().lanes[c][static_cast<size_t>(over) - 1];
        if (std::find(waits.begin(), waits.end(), end) == waits.end()) waits.push_back(end);
      }
    }
  }
}

/// Completes a plan of several pipeline ranks with these programs.
std::shared_ptr<const Plan> finish(Plan plan, std::vector<ScheduledGraph> programs,
                                   Clock::time_point begin) {
  Joined joined = join(programs);
  plan.graph = std::move(joined.step.graph);
  plan.schedule = std::move(joined.step.schedule);
  plan.orders = std::move(joined.orders);
  check_order(plan.graph, plan.schedule, {&plan.orders, 1});
  const HappensBefore hb(plan.graph, plan.schedule, plan.orders);
  for (size_t p = 0; p < programs.size(); ++p) {
    Plan own{.spec = plan.spec,
             .graph = std::move(programs[p].graph),
             .schedule = std::move(programs[p].schedule),
             .stages = {},
             .pipeline_rank = static_cast<int64_t>(p),
             .step_ops = std::move(joined.ops[p]),
             .step_lanes = std::move(joined.lanes[p])};
    std::vector<OpId> here(plan.graph.num_ops());
    for (size_t i = 0; i < own.step_ops.size(); ++i) {
      here[own.step_ops[i].index()] = OpId(static_cast<int64_t>(i));
    }
    for (const LaneId lane : own.step_lanes) {
      std::vector<OpId>& mine = own.orders.lanes.emplace_back();
      for (const OpId op : plan.orders.lanes[lane.index()]) mine.push_back(here[op.index()]);
    }
    own.waits = cross_lane_waits(own.graph, own.schedule, own.orders);
    const HappensBefore among = hb.among(own.step_ops);
    wait_for_own_ends(among, own);
    own.memory = plan_memory(own.graph, among, own.orders, plan.spec.element_bytes);
    check_storage(own.graph, own.schedule, among, own.memory);
    plan.programs.push_back(std::make_shared<Plan>(std::move(own)));
  }
  plan.memory = plan.fullest().first->memory;
  plan.hash = hash_of(plan);
  for (auto& program : plan.programs) {
    auto own = std::make_shared<Plan>(*program);
    own->hash = plan.hash;
    program = std::move(own);
  }
  plan.plan_ns = std::chrono::nanoseconds(Clock::now() - begin).count();
  return std::make_shared<const Plan>(std::move(plan));
}

/// Reads what packed_program() puts of a model.
void get_model(Unpacker& unpacker, Model& model) {
  unpacker.get(model.parameters);
  unpacker.get(model.states);
  unpacker.get(model.moe_blocks);
}

std::shared_ptr<const Plan> finish(Plan plan, Clock::time_point begin) {
  plan.orders = lane_orders(plan.graph, plan.schedule);
  plan.waits = cross_lane_waits(plan.graph, plan.schedule, plan.orders);
  plan.memory = plan_memory(plan.graph, plan.schedule, plan.orders, plan.spec.element_bytes);
  check_legal(plan.graph, plan.schedule, {&plan.orders, 1}, plan.memory);
  plan.hash = hash_of(plan);
  plan.plan_ns = std::chrono::nanoseconds(Clock::now() - begin).count();
  return std::make_shared<const Plan>(std::move(plan));
}

}  // namespace

std::pair<const Plan*, int64_t> Plan::fullest() const {
  std::pair<const Plan*, int64_t> found{this, 0};
  for (size_t p = 0; p < programs.size(); ++p) {
    const Bytes bytes = programs[p]->memory.peak_bytes();
    if (p > 0 && bytes <= found.first->memory.peak_bytes()) continue;
    found = {programs[p].get(), static_cast<int64_t>(p)};
  }
  return found;
}

std::shared_ptr<const Plan> make_plan(PlanSpec spec) {
  MOE_CHECK(spec.cost != nullptr, "make_plan: PlanSpec::cost is null, but must be a cost model");
  MOE_CHECK(spec.model != nullptr && spec.model->forward.num_ranks == spec.num_ranks,
            "make_plan: PlanSpec::model must have been built for the plan's {} ranks",
            spec.num_ranks);
  const Clock::time_point begin = Clock::now();
  list_dispatched(spec);
  if (spec.pipeline_ranks() > 1) {
    std::vector<StageReport> reports;
    std::vector<ScheduledGraph> programs = programs_of(spec, reports);
    Plan plan{.spec = std::move(spec),
              .graph = Graph(op_table()),
              .schedule = {},
              .stages = std::move(reports)};
    return finish(std::move(plan), std::move(programs), begin);
  }
  const StepSpec step = step_of(spec);
  Pipeline pipeline(*spec.model, spec.cluster, *spec.cost, step, spec.system.stages);
  Graph graph = pipeline.transform(spec.model->forward);
  Schedule schedule = first_schedule(graph, spec.system.sync.lane);
  schedule.log = pipeline.log();
  schedule = pipeline.schedule(graph, std::move(schedule));
  StepTurns turns;
  if (spec.model->micro_batches > 1) {
    const ScheduledGraph one{std::move(graph), std::move(schedule)};
    UnrolledStep all =
        unroll({&one, 1}, spec.pipeline.turns.empty() ? turns_in_order(spec.model->micro_batches)
                                                      : spec.pipeline.turns[0]);
    graph = std::move(all.program.graph);
    schedule = std::move(all.program.schedule);
    turns = std::move(all.turns);
    if (step.in_flight) order_slots(graph, schedule, turns);
  }
  schedule = pipeline.schedule_step(graph, std::move(schedule), turns);
  std::vector<StageReport> reports = pipeline.reports();
  Plan plan{.spec = std::move(spec),
            .graph = std::move(graph),
            .schedule = std::move(schedule),
            .stages = std::move(reports)};
  return finish(std::move(plan), begin);
}

std::shared_ptr<const Plan> make_plan_of(PlanSpec spec, Graph graph, Schedule schedule) {
  Plan plan{.spec = std::move(spec), .graph = std::move(graph), .schedule = std::move(schedule)};
  return finish(std::move(plan), Clock::now());
}

std::shared_ptr<Model> model_of_program(ModelSpec spec, std::string_view packed) {
  auto model = std::make_shared<Model>(std::move(spec), Graph(op_table()));
  Unpacker unpacker(packed);
  get_model(unpacker, *model);
  return model;
}

std::string packed_program(const Plan& plan) {
  Packer packer;
  const Model& model = *plan.spec.model;
  packer.put(model.parameters);
  packer.put(model.states);
  packer.put(model.moe_blocks);
  packer.put(plan.hash);
  const auto put = [&packer](const Plan& program) {
    packer.put(print(program.graph));
    put_schedule(program.schedule, packer);
  };
  if (plan.programs.empty()) put(plan);
  for (const auto& program : plan.programs) put(*program);
  return packer.take();
}

std::shared_ptr<const Plan> plan_of_program(PlanSpec spec, std::string_view packed) {
  Unpacker unpacker(packed);
  auto model = std::make_shared<Model>(*spec.model);
  get_model(unpacker, *model);
  spec.model = std::move(model);
  std::string hash;
  unpacker.get(hash);
  const auto next = [&unpacker] {
    std::string text;
    unpacker.get(text);
    Graph graph = parse_graph(text, op_table());
    return ScheduledGraph{std::move(graph), get_schedule(unpacker)};
  };
  std::shared_ptr<const Plan> plan;
  if (spec.pipeline_ranks() == 1) {
    ScheduledGraph one = next();
    plan = make_plan_of(std::move(spec), std::move(one.graph), std::move(one.schedule));
  } else {
    std::vector<ScheduledGraph> programs;
    while (std::ssize(programs) < spec.pipeline_ranks()) programs.push_back(next());
    plan = finish(Plan{.spec = std::move(spec), .graph = Graph(op_table()), .schedule = {}},
                  std::move(programs), Clock::now());
  }
  if (plan->hash == hash) return plan;
  throw run_error(
      "the received plan has hash {}, but this process computed hash {} for it; all processes must "
      "run the same build",
      hash, plan->hash);
}

}  // namespace moe
