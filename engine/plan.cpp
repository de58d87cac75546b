#include "engine/plan.h"

#include <chrono>
#include <map>

#include "engine/base/errors.h"
#include "engine/base/packing.h"
#include "engine/graph/op_def.h"
#include "engine/graph/text.h"
#include "engine/graph/verify.h"
#include "engine/ops/ops.h"
#include "engine/passes/pipeline.h"
#include "engine/schedule/packed.h"
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
  for (const Buffer& buffer : plan.memory.buffers) {
    hash.add(buffer.offset);
    hash.add(buffer.bytes);
  }
  return hash.text();
}

/// Orders the placement policies of a step by layer, because the policy of a layer gets the time of
/// the experts of the layer before (PlaceInput::experts_before_s).
void order_places(const Graph& graph, Schedule& schedule) {
  std::map<int32_t, OpId> places;
  for (OpId op(0); op.index() < graph.num_ops(); op = OpId(op.value + 1)) {
    if (!graph.removed(op) && is(graph, op, MoeOp::kPlace)) places[graph.op(op).layer] = op;
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
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (is_sync(graph.def(op).payload)) schedule.lane_of[i] = own;
  }
  return schedule;
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

std::shared_ptr<const Plan> make_plan(PlanSpec spec) {
  MOE_CHECK(spec.cost != nullptr, "make_plan: PlanSpec::cost is null, but must be a cost model");
  MOE_CHECK(spec.model != nullptr && spec.model->forward.num_ranks == spec.num_ranks,
            "make_plan: PlanSpec::model must have been built for the plan's {} ranks",
            spec.num_ranks);
  const Clock::time_point begin = Clock::now();
  const StepSpec step = {spec.inference, spec.optimizer, spec.system.sync, spec.lowering};
  Pipeline pipeline(*spec.model, spec.cluster, *spec.cost, step, spec.system.stages);
  Graph graph = pipeline.transform(spec.model->forward);
  Schedule schedule = first_schedule(graph, spec.system.sync.lane);
  schedule.log = pipeline.log();
  schedule = pipeline.schedule(graph, std::move(schedule));
  std::vector<StageReport> reports = pipeline.reports();
  if (spec.model->micro_batches > 1) {
    Unrolled all = unroll(graph, schedule, spec.model->micro_batches);
    graph = std::move(all.graph);
    schedule = std::move(all.schedule);
  }
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
  packer.put(print(plan.graph));
  put_schedule(plan.schedule, packer);
  return packer.take();
}

std::shared_ptr<const Plan> plan_of_program(PlanSpec spec, std::string_view packed) {
  Unpacker unpacker(packed);
  auto model = std::make_shared<Model>(*spec.model);
  get_model(unpacker, *model);
  spec.model = std::move(model);
  std::string hash, text;
  unpacker.get(hash);
  unpacker.get(text);
  Schedule schedule = get_schedule(unpacker);
  auto plan = make_plan_of(std::move(spec), parse_graph(text, op_table()), std::move(schedule));
  if (plan->hash == hash) return plan;
  throw run_error(
      "the received plan has hash {}, but this process computed hash {} for it; all processes must "
      "run the same build",
      hash, plan->hash);
}

}  // namespace moe
