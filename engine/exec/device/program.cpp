#include "engine/exec/device/program.h"

#include <algorithm>
#include <set>

#include "engine/base/contains.h"
#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/schedule/lifetime.h"
#include "engine/schedule/precedence.h"

namespace moe {
namespace {

/// The tensors that an op writes: outputs, and inputs that it overwrites.
std::vector<TensorId> written(const Graph& graph, const Op& op) {
  std::vector<TensorId> tensors = op.outputs;
  for (const int i : mutated_inputs(graph, op)) {
    tensors.push_back(op.inputs[static_cast<size_t>(i)]);
  }
  return tensors;
}

class Builder {
 public:
  Builder(const Plan& plan, const DeviceChoices& choices)
      : plan_(plan), uses_(plan.graph), wanted_(plan.graph.tensors().size()) {
    program_.on_host = choices.on_host;
    for (const TensorId t : choices.kept) wanted_[t.index()] = true;
    for (const OpId op : plan.graph.op_ids()) {
      for (const TensorId t : read_on_host(op)) wanted_[t.index()] = true;
    }
    program_.mirrored = wanted_;
    for (size_t t = 0; t < wanted_.size(); ++t) {
      if (plan.graph.tensors()[t].kind == TensorKind::kInput) program_.mirrored[t] = true;
    }
  }

  DeviceProgram build() {
    program_.host_only = stay_on_host();
    std::vector<DeviceStep> steps;
    for (const OpId op : plan_.graph.op_ids()) steps.push_back(step_of(op));
    mark(steps);
    for (const OpId op : issue_order(steps)) {
      program_.steps.push_back(std::move(steps[op.index()]));
    }
    program_.recordable =
        arbiters(plan_.schedule).empty() &&
        std::none_of(program_.steps.begin(), program_.steps.end(), [&](const DeviceStep& s) {
          return !s.host_waits.empty() || program_.on_host[s.op.index()];
        });
    return std::move(program_);
  }

 private:
  std::vector<TensorId> read_on_host(OpId id) const {
    const Op& op = plan_.graph.op(id);
    std::vector<TensorId> tensors;
    if (program_.on_host[id.index()]) {
      tensors = op.inputs;
      std::erase(tensors, TensorId());
    } else if (!runs_on_host(plan_.graph, op)) {
      tensors = host_inputs(plan_.graph, op);
    }
    return tensors;
  }

  std::vector<bool> stay_on_host() const {
    std::vector<bool> stay = wanted_;
    for (size_t t = 0; t < stay.size(); ++t) {
      const bool joined = plan_.memory.buffers[t].joined >= 0;
      if (joined || plan_.graph.tensors()[t].kind != TensorKind::kParam) stay[t] = false;
    }
    for (const OpId id : plan_.graph.op_ids()) {
      const Op& op = plan_.graph.op(id);
      for (const TensorId t : written(plan_.graph, op)) stay[t.index()] = false;
      const std::vector<TensorId> read = read_on_host(id);
      for (const TensorId t : op.inputs) {
        if (t.valid() && !contains(read, t)) stay[t.index()] = false;
      }
    }
    return stay;
  }

  DeviceStep step_of(OpId id) {
    const Op& op = plan_.graph.op(id);
    DeviceStep step = {.op = id,
                       .lane = plan_.schedule.lane_of[id.index()],
                       .stream_waits = plan_.waits[id.index()],
                       .host_reads = read_on_host(id)};
    for (const TensorId t : step.host_reads) {
      const OpId from = uses_.producer[t.index()];
      if (from.valid() && !program_.on_host[from.index()]) step.host_waits.push_back(from);
    }
    std::sort(step.host_waits.begin(), step.host_waits.end());
    step.host_waits.erase(std::unique(step.host_waits.begin(), step.host_waits.end()),
                          step.host_waits.end());
    for (const TensorId t : written(plan_.graph, op)) {
      if (program_.on_host[id.index()]) {
        step.push.push_back(t);
        program_.mirrored[t.index()] = true;
      } else if (wanted_[t.index()]) {
        step.fetch.push_back(t);
      }
    }
    return step;
  }

  static void mark(std::vector<DeviceStep>& steps) {
    for (size_t i = 0; i < steps.size(); ++i) {
      for (const OpId op : steps[i].stream_waits) steps[op.index()].marked = true;
      for (const OpId op : steps[i].host_waits) steps[op.index()].marked = true;
    }
  }

  std::vector<OpId> issue_order(const std::vector<DeviceStep>& steps) const {
    const Precedence edges(plan_.graph, plan_.schedule, &plan_.orders);
    std::vector<size_t> left(steps.size());
    std::set<OpId> ready, blocking;  // ops in `blocking` make the host wait
    const auto add = [&](OpId op) {
      (steps[op.index()].host_waits.empty() ? ready : blocking).insert(op);
    };
    for (size_t i = 0; i < steps.size(); ++i) {
      left[i] = edges.deps.preds[i].size();
      if (left[i] == 0) add(steps[i].op);
    }
    std::vector<OpId> order;
    while (!ready.empty() || !blocking.empty()) {
      std::set<OpId>& from = ready.empty() ? blocking : ready;
      const OpId op = *from.begin();
      from.erase(from.begin());
      order.push_back(op);
      for (const OpId next : edges.deps.succs[op.index()]) {
        if (--left[next.index()] == 0) add(next);
      }
    }
    MOE_CHECK(
        order.size() == steps.size(),
        "device program: only {} of {} ops have an order, must be all; the others wait for each "
        "other in a cycle",
        order.size(), steps.size());
    return order;
  }

  const Plan& plan_;
  const TensorUses uses_;
  std::vector<bool> wanted_;  // indexed by tensor: whether the host reads it
  DeviceProgram program_;
};

/// A vector clock: for each chain, how many of its ops have finished. A lane that runs in order is
/// one chain. On a lane that picks its next op at run time, each op is a chain of its own.
using Clock = std::vector<int32_t>;

void join(Clock& clock, const Clock& with) {
  for (size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], with[i]);
}

class Checker {
 public:
  Checker(const Plan& plan, const DeviceProgram& program)
      : plan_(plan),
        program_(program),
        uses_(plan.graph),
        edges_(plan.graph, plan.schedule, &plan.orders),
        after_(plan.graph.num_ops()),
        marked_(plan.graph.num_ops()) {
    size_t chains = plan.orders.lanes.size();
    for (size_t i = 0; i < plan.graph.num_ops(); ++i) {
      const LaneId lane = plan.schedule.lane_of[i];
      chain_.push_back(plan.schedule.picks(lane) ? chains++ : lane.index());
    }
    chains_.assign(chains, Clock(chains));
    host_.resize(chains);
    for (const DeviceStep& step : program.steps) marked_[step.op.index()] = step.marked;
  }

  void check() {
    for (const DeviceStep& step : program_.steps) {
      if (!after_[step.op.index()].empty())
        throw run_error("op {} is in the device program twice; every op must be in it once",
                        name(step.op));
      issue(step);
    }
    for (size_t i = 0; i < after_.size(); ++i) {
      if (after_[i].empty())
        throw run_error("op {} is not in the device program; every op must be in it once",
                        name(OpId(int64_t(i))));
    }
  }

 private:
  const std::string& name(OpId op) const { return plan_.graph.op(op).name; }
  const std::string& lane(OpId op) const {
    return plan_.schedule.lanes[plan_.schedule.lane_of[op.index()].index()].name;
  }

  /// Returns the ops that have finished at the event after `op`. Throws RunError when that event
  /// has not been recorded before.
  const Clock& at_event(OpId op, OpId waiting) const {
    const Clock& clock = after_[op.index()];
    if (clock.empty() || !marked_[op.index()]) {
      throw run_error(
          "op {} waits for the event of op {}, which must be recorded before the wait and is not",
          name(waiting), name(op));
    }
    return clock;
  }

  void issue(const DeviceStep& step) {
    const size_t chain = chain_[step.op.index()];
    Clock& clock = chains_[chain];
    for (const OpId op : step.stream_waits) join(clock, at_event(op, step.op));
    for (const OpId op : step.host_waits) join(host_, at_event(op, step.op));
    // Ops that the host has waited for have finished before everything that it issues from now on.
    join(clock, host_);
    for (const OpId op : edges_.deps.preds[step.op.index()]) {
      if (is_over(op, clock)) continue;
      throw run_error(
          "op {} on lane {} may begin before op {} on lane {} has finished, but must wait ({})",
          name(step.op), lane(step.op), name(op), lane(op),
          edge_text(plan_.graph, plan_.schedule, op, step.op));
    }
    for (const TensorId t : step.host_reads) {
      const OpId from = uses_.producer[t.index()];
      if (!from.valid() || program_.on_host[from.index()] || is_over(from, host_)) continue;
      throw run_error("op {}: the host may read tensor {} before op {} on lane {} has finished",
                      name(step.op), plan_.graph.tensor(t).name, name(from), lane(from));
    }
    ++clock[chain];
    after_[step.op.index()] = clock;
  }

  bool is_over(OpId op, const Clock& clock) const {
    const size_t chain = chain_[op.index()];
    const Clock& at_end = after_[op.index()];
    return !at_end.empty() && clock[chain] >= at_end[chain];
  }

  const Plan& plan_;
  const DeviceProgram& program_;
  const TensorUses uses_;
  const Precedence edges_;
  std::vector<size_t> chain_;  // indexed by op
  std::vector<Clock> chains_;
  Clock host_;
  std::vector<Clock> after_;  // indexed by op: the clock at its end; empty before it is issued
  std::vector<bool> marked_;  // indexed by op
};

}  // namespace

DeviceProgram device_program(const Plan& plan, const DeviceChoices& choices) {
  return Builder(plan, choices).build();
}

void check_program(const Plan& plan, const DeviceProgram& program) {
  Checker(plan, program).check();
}

}  // namespace moe
