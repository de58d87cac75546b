#include "engine/exec/device/queue.h"

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/base/rethrow.h"
#include "engine/graph/op_def.h"

namespace moe {

DeviceQueue::DeviceQueue(const Plan& plan, const RunOptions& options, const DeviceProgram& program,
                         const kernels::DeviceTable& device, const Ranks& ranks,
                         DeviceCommunicator& comm, WaitUntil wait_until)
    : plan_(plan),
      program_(program),
      device_(device),
      ranks_(ranks),
      comm_(comm),
      wait_until_(std::move(wait_until)),
      arbiters_(plan, options,
                {[this](OpId op) { return is_over(op); },
                 [this](OpId op) {
                   return enqueued_[op.index()] &&
                          std::any_of(ranks_.begin(), ranks_.end(),
                                      [&](const auto& rank) { return rank->has_begun(op); });
                 },
                 [this](OpId op, int64_t chunk) {
                   enqueue_chunk(program_.steps[step_of_[op.index()]], chunk);
                 },
                 [this](OpId op, int64_t chunk) {
                   return std::all_of(ranks_.begin(), ranks_.end(),
                                      [&](const auto& rank) { return rank->is_over(op, chunk); });
                 }}),
      go_(device, false),
      start_(device, true),
      step_of_(plan.graph.num_ops()),
      enqueued_(plan.graph.num_ops()) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    ready_.emplace_back(device, false);
    for (size_t l = 0; l < plan.orders.lanes.size(); ++l) over_.emplace_back(device, false);
  }
  for (size_t s = 0; s < program.steps.size(); ++s) step_of_[program.steps[s].op.index()] = s;
}

bool DeviceQueue::runs(OpId op, const ProgramRun& spec) const {
  return spec.train || plan_.graph.op(op).phase == Phase::kForward;
}

void DeviceQueue::start_step(const ProgramRun& spec) {
  arbiters_.start_step(spec.step, [&](OpId op) { return runs(op, spec); });
  comm_.expect_step();
}

void DeviceQueue::enqueue(const ProgramRun& spec) {
  step_ = spec.step;
  device_.record(go_.get(), first_stream());
  for (size_t r = 0; r < ranks_.size(); ++r) begin(r);
  if (arbiters_.any()) {
    enqueue_arbitrated(spec);
  } else {
    for (const DeviceStep& step : program_.steps) {
      if (runs(step.op, spec)) enqueue(step, spec);
    }
  }
  for (size_t r = 0; r < ranks_.size(); ++r) end(r);
  for (size_t r = 1; r < ranks_.size(); ++r) device_.wait(first_stream(), ready_[r].get());
}

void DeviceQueue::enqueue_arbitrated(const ProgramRun& spec) {
  std::fill(enqueued_.begin(), enqueued_.end(), false);
  queues_.assign(plan_.orders.lanes.size(), {});
  heads_.assign(queues_.size(), 0);
  for (size_t l = 0; l < queues_.size(); ++l) {
    if (arbiters_.is_mine(LaneId(static_cast<int64_t>(l)))) continue;
    std::copy_if(plan_.orders.lanes[l].begin(), plan_.orders.lanes[l].end(),
                 std::back_inserter(queues_[l]), [&](OpId op) { return runs(op, spec); });
  }
  const auto all_enqueued = [&] {
    for (size_t l = 0; l < queues_.size(); ++l) {
      if (heads_[l] < queues_[l].size()) return false;
    }
    return arbiters_.done();
  };
  while (!all_enqueued()) {
    wait_until_([&] {
      const bool turned = arbiters_.go_on();
      return enqueue_ready(spec) || turned;
    });
  }
}

/// Queues the ops of each lane without an arbiter, until the next op waits for an op that is not
/// queued yet, or for one whose result the host reads and that has not finished. Returns whether
/// any op was queued.
bool DeviceQueue::enqueue_ready(const ProgramRun& spec) {
  bool any = false;
  for (size_t l = 0; l < queues_.size(); ++l) {
    for (size_t& head = heads_[l]; head < queues_[l].size(); ++head) {
      const DeviceStep& step = program_.steps[step_of_[queues_[l][head].index()]];
      if (!can_be_enqueued(step)) break;
      enqueue(step, spec);
      enqueued_[step.op.index()] = any = true;
    }
  }
  return any;
}

bool DeviceQueue::is_over(OpId op) const {
  return enqueued_[op.index()] && std::all_of(ranks_.begin(), ranks_.end(),
                                              [&](const auto& rank) { return rank->is_over(op); });
}

bool DeviceQueue::can_be_enqueued(const DeviceStep& step) const {
  const auto is_enqueued = [&](OpId op) { return enqueued_[op.index()]; };
  const auto is_there = [&](OpId op) { return is_over(op); };
  return std::all_of(step.stream_waits.begin(), step.stream_waits.end(), is_enqueued) &&
         std::all_of(step.host_waits.begin(), step.host_waits.end(), is_there);
}

void DeviceQueue::enqueue(const DeviceStep& step, const ProgramRun& spec) {
  if (plan_.graph.def(step.op).collective == Collective::kNone) {
    for (const auto& rank : ranks_) guarded(*rank, [&] { enqueue_compute(*rank, step, spec); });
    return;
  }
  const int64_t chunks = ranks_[0]->num_chunks(step.op);
  for (int64_t c = 0; c < chunks; ++c) enqueue_chunk(step, c);
}

void DeviceQueue::enqueue_compute(DeviceRank& rank, const DeviceStep& step,
                                  const ProgramRun& spec) {
  rank.wait_for(step);
  rank.begin(step);
  rank.compute(step, spec);
  rank.end(step);
}

/// Queues one chunk on all ranks; with its last chunk the op counts as queued.
void DeviceQueue::enqueue_chunk(const DeviceStep& step, int64_t chunk) {
  const bool experts = plan_.graph.def(step.op).collective == Collective::kExperts;
  for (const auto& rank : ranks_) {
    if (chunk == 0) guarded(*rank, [&] { rank->wait_for(step); });
  }
  guarded(*ranks_[0], [&] {
    if (experts) {
      move_experts(step);
    } else {
      move(step, chunk);
    }
    for (const auto& rank : ranks_) rank->moved(step, chunk);
    if (chunk + 1 < ranks_[0]->num_chunks(step.op)) return;
    for (const auto& rank : ranks_) rank->end(step);
    enqueued_[step.op.index()] = true;
  });
}

void DeviceQueue::move(const DeviceStep& step, int64_t chunk) {
  std::vector<DeviceMember> members;
  for (const auto& rank : ranks_) members.push_back(rank->member(step, chunk));
  const DeviceTransfer transfer = {plan_.graph.op(step.op).name, step.lane, members};
  comm_.meet(transfer);
  for (const auto& rank : ranks_) rank->begin(step, chunk);
  comm_.move(transfer);
}

/// Queues all exchanges of an op that moves experts, on all ranks. All ranks have the same
/// placement, and so the same number of exchanges.
void DeviceQueue::move_experts(const DeviceStep& step) {
  std::vector<size_t> at(ranks_.size());
  for (const auto& rank : ranks_) rank->begin(step);
  while (true) {
    std::vector<DeviceMember> members;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      members.push_back(ranks_[r]->next_exchange(step, at[r]));
      MOE_CHECK((members[r].pieces == nullptr) == (members[0].pieces == nullptr),
                "op {}: ranks 0 and {} have different numbers of exchanges of experts; they must "
                "be equal",
                plan_.graph.op(step.op).name, r);
    }
    if (members[0].pieces == nullptr) return;
    const DeviceTransfer transfer = {plan_.graph.op(step.op).name, step.lane, members};
    comm_.meet(transfer);
    comm_.move(transfer);
  }
}

void DeviceQueue::begin(size_t r) {
  DeviceRank& rank = *ranks_[r];
  const kernels::Stream first = rank.stream(LaneId(0));
  if (r > 0) device_.wait(first, go_.get());
  rank.queue_inputs();
  if (r == 0) {
    device_.record(start_.get(), first);
    comm_.begin_step(first);
  }
  device_.record(ready_[r].get(), first);
  for (size_t l = 1; l < plan_.orders.lanes.size(); ++l) {
    device_.wait(rank.stream(LaneId(static_cast<int64_t>(l))), ready_[r].get());
  }
}

void DeviceQueue::end(size_t r) {
  DeviceRank& rank = *ranks_[r];
  const size_t lanes = plan_.orders.lanes.size();
  const kernels::Stream first = rank.stream(LaneId(0));
  for (size_t l = 1; l < lanes; ++l) {
    const kernels::Event over = over_[r * lanes + l].get();
    device_.record(over, rank.stream(LaneId(static_cast<int64_t>(l))));
    device_.wait(first, over);
  }
  rank.queue_results();
  device_.record(ready_[r].get(), first);
}

template <class Body>
void DeviceQueue::guarded(const DeviceRank& rank, Body body) const {
  try {
    body();
  } catch (const std::exception&) {
    std::rethrow_exception(with_prefix(rank.whereabouts(step_) + ": ", std::current_exception()));
  }
}

}  // namespace moe
