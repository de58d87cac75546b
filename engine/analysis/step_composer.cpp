#include "engine/analysis/step_composer.h"

#include <algorithm>
#include <cmath>

#include "engine/base/errors.h"
#include "engine/pipeline/likeness.h"

namespace moe {
namespace {

using pipeline::Paths;

std::vector<pipeline::Row> rows_of(const PipelineSpec& spec) {
  std::vector<pipeline::Row> rows;
  for (const pipeline::Turns& turns : spec.turns) {
    rows.push_back(row_of(turns, std::ssize(rows), spec.shape));
  }
  return rows;
}

/// Returns the ways that end when both do.
std::vector<double> later(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] = std::max(a[i], b[i]);
  return a;
}

/// Returns the ops as they began, each after those that it waits for.
std::vector<OpId> order_of(const Plan& plan, const Precedence& edges, const Timeline& timeline) {
  std::vector<OpId> order = edges.order(plan.graph, plan.schedule);
  std::vector<Nanoseconds> begins(order.size(), -1);
  for (const Span& span : timeline.spans) {
    Nanoseconds& begin = begins[span.op.index()];
    if (begin < 0) begin = span.begin;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](OpId a, OpId b) { return begins[a.index()] < begins[b.index()]; });
  return order;
}

}  // namespace

StepComposer::StepComposer(std::shared_ptr<const Plan> plan, const Timeline& timeline)
    : plan_(std::move(plan)),
      graph_(plan_->graph),
      edges_(graph_, plan_->schedule, &plan_->orders),
      order_(order_of(*plan_, edges_, timeline)),
      producers_(graph_.producers()),
      program_(edges_.order(graph_, plan_->schedule)),
      host_(plan_->spec.cost != nullptr && plan_->spec.cost->has_host()),
      rows_(rows_of(plan_->spec.pipeline)),
      blocks_(rows_.size()),
      lanes_(rows_.size(), 1),
      ops_(graph_.num_ops()) {
  if (plan_->spec.routing != nullptr) {
    throw user_error(
        "detail: 'turns' is not allowed with a routing, under which micro-batches differ; omit it");
  }
  take_times(timeline);
  find_tail();
  find_layers();
  const Entries known = add_blocks();
  for (const OpId op : order_) {
    if (!at(op).tail) place(op, known);
  }
  for (size_t rank = 0; host_ && rank < lanes_.size(); ++rank) ++lanes_[rank];
  for (const OpId op : program_) {
    if (!host_ || at(op).tail) continue;
    blocks_[rank_of(op)][static_cast<size_t>(at(op).entry)].launches.push_back(op);
  }
  for (const OpId op : order_) {
    for (const OpId p : waits_of(op)) {
      if (!at(op).tail || at(p).tail) continue;
      blocks_[rank_of(p)][static_cast<size_t>(at(p).entry)].left[p] = 0;
    }
  }
  for (size_t rank = 0; rank < blocks_.size(); ++rank) {
    for (size_t entry = 0; entry < blocks_[rank].size(); ++entry) find_ways(rank, entry);
  }
}

/// Returns what the op waits for, with the op before it on its lane.
std::vector<OpId> StepComposer::waits_of(OpId op) const {
  std::vector<OpId> waits = edges_.deps.preds[op.index()];
  if (at(op).before.valid()) waits.push_back(at(op).before);
  return waits;
}

/// Sets how long ops took, and in which order lanes served them. Lanes with one arbiter are one.
void StepComposer::take_times(const Timeline& timeline) {
  const Schedule& schedule = plan_->schedule;
  std::vector<size_t> key(schedule.lanes.size());
  for (size_t l = 0; l < key.size(); ++l) key[l] = l;
  for (const Arbiter& arbiter : arbiters(schedule)) {
    for (const LaneId lane : arbiter) key[lane.index()] = arbiter[0].index();
  }
  std::map<size_t, std::pair<size_t, OpId>> known;  // by key: lane of the rank, latest op
  for (const Span& span : timeline.spans) {
    const size_t rank = rank_of(span.op);
    if (static_cast<size_t>(span.rank) != rank) continue;  // the other end of a handoff
    OpState& op = at(span.op);
    op.ns += span.end - span.begin;
    if (span.chunk > 0 || is_handoff(span.op)) continue;
    const size_t k = key[span.lane.index()];
    const bool computes = schedule.lanes[k].kind == LaneKind::kCompute;
    const auto [lane, fresh] = known.try_emplace(k, computes ? 0 : lanes_[rank], OpId());
    if (fresh && !computes) ++lanes_[rank];
    op.lane = lane->second.first;
    op.before = std::exchange(lane->second.second, span.op);
  }
}

/// Finds the ops behind all turns: updates, sums of gradients, and what follows from them, as far
/// as no turn waits for them.
void StepComposer::find_tail() {
  for (const OpId id : order_) {
    const Op& op = graph_.op(id);
    at(id).tail = op.phase == Phase::kUpdate || op.segment == Segment::kUpdate ||
                  (is_handoff(id) && !attr_string(op, "role").empty());
    for (const TensorId t : op.inputs) {
      const OpId maker = t.valid() ? producers_[t.index()] : OpId();
      if (maker.valid() && at(maker).tail) at(id).tail = true;
    }
  }
  for (auto id = order_.rbegin(); id != order_.rend(); ++id) {
    if (at(*id).tail) continue;
    for (const OpId p : waits_of(*id)) at(p).tail = false;
  }
}

/// Sets OpState::layer. What every stage has, such as the angles of positions, is of the layer of
/// what reads it.
void StepComposer::find_layers() {
  for (size_t i = 0; i < ops_.size(); ++i) ops_[i].layer = graph_.ops()[i].layer;
  for (auto id = order_.rbegin(); id != order_.rend(); ++id) {
    const Op& reader = graph_.op(*id);
    for (const TensorId t : reader.inputs) {
      const OpId p = t.valid() ? producers_[t.index()] : OpId();
      if (!p.valid() || graph_.op(p).layer >= 0 || graph_.op(p).phase != reader.phase) continue;
      at(p).layer = std::max(at(p).layer, at(*id).layer);
    }
  }
}

StepComposer::Entries StepComposer::add_blocks() {
  using pipeline::Work;
  Entries known;
  for (size_t rank = 0; rank < rows_.size(); ++rank) {
    bool beside = false;  // the action before
    for (const pipeline::Action& a : rows_[rank]) {
      if (!std::exchange(beside, a.beside)) blocks_[rank].emplace_back();
      const size_t entry = blocks_[rank].size() - 1;
      if (a.work != Work::kB) known[{a.stage, a.micro, a.work}] = entry;
      if (a.work != Work::kB) continue;
      known[{a.stage, a.micro, Work::kI}] = known[{a.stage, a.micro, Work::kW}] = entry;
    }
  }
  return known;
}

/// Finds the entry of an op in a turn: by what it is, or if it runs once, that of what it waits
/// for.
void StepComposer::place(OpId id, const Entries& known) {
  using pipeline::Work;
  const Op& op = graph_.op(id);
  const PipelineSpec& spec = plan_->spec.pipeline;
  OpState& mine = at(id);
  int64_t stage = op.segment == Segment::kEmbed ? 0 : spec.shape.stages - 1;
  if (mine.layer >= 0) {
    int64_t blocks = spec.layers[0];
    for (stage = 0; blocks <= mine.layer;) blocks += spec.layers[static_cast<size_t>(++stage)];
  }
  const Work work = op.phase == Phase::kForward ? Work::kF : op.is_dw ? Work::kW : Work::kI;
  if (is_handoff(id)) {
    stage = attr_int(op, "from_stage");
    mine.taken = static_cast<int64_t>(known.at({attr_int(op, "to_stage"), op.micro, work}));
  }
  for (const OpId p : waits_of(id)) {
    if (rank_of(p) == rank_of(id)) mine.entry = std::max(mine.entry, at(p).entry);
  }
  const auto found = known.find({stage, op.micro, work});
  const bool once = op.phase == Phase::kUpdate || op.segment == Segment::kUpdate;
  if (!once && found != known.end() && spec.shape.rank_of(stage, op.micro) == op.pipeline_rank) {
    const auto entry = static_cast<int64_t>(found->second);
    if (entry < mine.entry && graph_.def(op).lane == LaneKind::kCompute) {
      throw user_error(
          "detail: 'turns' is not allowed where turns run among each other, as op '{}' behind one "
          "of a later turn; omit it",
          op.name);
    }
    mine.entry = entry;
  }
  blocks_[rank_of(id)][static_cast<size_t>(mine.entry)].ops.push_back(id);
}

/// Lets the host launch the ops of a block up to `id`, and returns the ways to its launch.
const StepComposer::Ways& StepComposer::launch(Block& block, OpId id) const {
  Ways& host = block.paths.delays[block.paths.lanes - 1];
  while (!block.launched.contains(id)) {
    const OpId op = block.launches.at(block.launched.size());
    for (double& end : host) end += static_cast<double>(plan_->spec.cost->host_ns(graph_, op));
    block.launched.emplace(op, host);
  }
  return block.launched.at(id);
}

/// Sets the paths of a block: for each op the longest way from each lane and arrival to its end. An
/// op of the block before for which an op here waits is over with the lane of the one here, or else
/// with its own.
void StepComposer::find_ways(size_t rank, size_t entry) {
  Block& block = blocks_[rank][entry];
  const Block* const before = entry > 0 ? &blocks_[rank][entry - 1] : nullptr;
  const size_t lanes = block.paths.lanes = lanes_[rank];
  std::vector<Ways>& ends = block.paths.delays;  // of the lanes, then of what it gives
  ends.assign(lanes + 2, Ways(lanes + 2, Paths::kNone));
  for (size_t lane = 0; lane < lanes; ++lane) ends[lane][lane] = 0;
  for (const OpId id : block.ops) {
    const size_t lane = at(id).lane, kind = graph_.op(id).phase == Phase::kForward ? 0 : 1;
    const auto ns = static_cast<double>(at(id).ns);
    Ways way = is_handoff(id) ? Ways(lanes + 2, Paths::kNone) : ends[lane];
    for (const OpId p : edges_.deps.preds[id.index()]) {
      if (const auto here = block.ways.find(p); here != block.ways.end()) {
        way = later(way, here->second);
      } else if (rank_of(p) != rank) {
        const size_t arrival = graph_.op(p).phase == Phase::kForward ? 0 : 1;
        if (at(p).taken == static_cast<int64_t>(entry)) way[lanes + arrival] = 0;
      } else if (before != nullptr && before->ways.contains(p) && !is_handoff(p)) {
        const Ways& over = before->paths.delays[lane];
        if (later(over, before->ways.at(p)) != over) way[at(p).lane] = 0;
      }
    }
    if (host_) way = later(way, launch(block, id));
    if (is_handoff(id)) ends[lanes + kind] = way, block.paths.wires[kind] = ns;
    for (double& end : way) end += ns;
    block.ways.emplace(id, way);
    if (host_ && plan_->spec.cost->host_waits(graph_, id)) {
      ends[lanes - 1] = later(ends[lanes - 1], way);
    }
    if (is_handoff(id)) continue;
    if (lane == 0) block.paths.busy += ns;
    ends[lane] = std::move(way);
  }
  for (auto& [op, end] : block.left) {
    end = ends.size();
    ends.push_back(block.ways.at(op));
  }
}

/// Returns when the hosts have launched the ops behind the turns, by op; 0 without hosts.
std::vector<double> StepComposer::launches_behind(const pipeline::Timeline& t) const {
  std::vector<double> launched(ops_.size()), free;
  for (size_t rank = 0; host_ && rank < rows_.size(); ++rank) {
    free.push_back(t.ways[rank].back()[lanes_[rank] - 1]);
  }
  for (const OpId op : program_) {
    if (!host_ || !at(op).tail) continue;
    double& host = free[rank_of(op)];
    launched[op.index()] = host += static_cast<double>(plan_->spec.cost->host_ns(graph_, op));
  }
  return launched;
}

/// Returns when the last op behind the turns ends. last: by pipeline rank and entry, which entry of
/// `t` is the last that is like it; busy: gets the compute of each rank.
Nanoseconds StepComposer::tail_end(const std::vector<std::vector<int32_t>>& last,
                                   const pipeline::Timeline& t, std::vector<double>& busy) const {
  const std::vector<double> launched = launches_behind(t);
  std::vector<double> ends(ops_.size());
  const auto end_of = [&](OpId p) {
    if (at(p).tail) return ends[p.index()];
    const size_t rank = rank_of(p), entry = static_cast<size_t>(at(p).entry);
    const int32_t like = last[rank][entry];
    if (like < 0) return t.ends[rank].back();
    return t.ways[rank][static_cast<size_t>(like)][blocks_[rank][entry].left.at(p)];
  };
  double end = 0;
  for (const OpId id : order_) {
    if (!at(id).tail) continue;
    double& mine = ends[id.index()];
    mine = launched[id.index()];
    for (const OpId p : waits_of(id)) mine = std::max(mine, end_of(p));
    const auto ns = static_cast<double>(at(id).ns);
    end = std::max(end, mine += ns);
    if (graph_.def(id).lane == LaneKind::kCompute) busy[rank_of(id)] += ns;
  }
  return std::llround(end);
}

ComposedStep StepComposer::compose(const PipelineSpec& many) const {
  const std::vector<pipeline::Row> rows = rows_of(many);
  pipeline::Costs costs{.mode = pipeline::SendMode::kLink};
  std::vector<std::vector<int32_t>> last;
  for (const std::vector<pipeline::Like>& likes : alike(rows_, rows)) {
    const std::vector<Block>& blocks = blocks_[last.size()];
    std::vector<const Paths*>& paths = costs.paths.emplace_back();
    std::vector<int32_t>& latest = last.emplace_back(blocks.size(), -1);
    for (const pipeline::Like& like : likes) {
      MOE_CHECK(like.entry >= 0, "the plan of {} micro-batches lacks a turn of the step of {}",
                plan_->spec.pipeline.shape.micro_batches, many.shape.micro_batches);
      latest[static_cast<size_t>(like.entry)] = static_cast<int32_t>(paths.size());
      paths.push_back(&blocks[static_cast<size_t>(like.entry)].paths);
    }
  }
  const pipeline::Timeline t = pipeline::compose(rows, many.shape, costs);
  std::vector<double> busy = t.busy;
  ComposedStep step{.step_ns = tail_end(last, t, busy)};
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    for (size_t lane = 0; lane < lanes_[rank]; ++lane) {
      const double end = t.ways[rank].back()[lane];
      step.step_ns = std::max(step.step_ns, static_cast<Nanoseconds>(end));
    }
  }
  for (const double computes : busy) step.idle_ns.push_back(step.step_ns - std::llround(computes));
  return step;
}

}  // namespace moe
