#include "engine/analysis/step_composer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
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
      rows_(rows_of(plan_->spec.pipeline)),
      blocks_(rows_.size()),
      lane_of_(graph_.num_ops()),
      lanes_(rows_.size(), 1),
      before_(graph_.num_ops()),
      ns_(graph_.num_ops()),
      tail_(graph_.num_ops()),
      entry_(graph_.num_ops()),
      layer_(graph_.num_ops()),
      taken_(graph_.num_ops()) {
  if (plan_->spec.routing != nullptr) {
    throw user_error(
        "detail: 'turns' is not allowed with a routing, under which micro-batches differ; omit it");
  }
  take_times(timeline);
  find_tail();
  place_ops();
  connect();
  for (size_t rank = 0; rank < blocks_.size(); ++rank) {
    Found before;
    for (Block& block : blocks_[rank]) before = find_ways(rank, block, before);
  }
}

bool StepComposer::is_handoff(OpId op) const {
  return graph_.def(op).collective == Collective::kHandoff;
}

/// Sets how long ops took, and in which order lanes served them. Lanes with one arbiter are one.
void StepComposer::take_times(const Timeline& timeline) {
  const Schedule& schedule = plan_->schedule;
  std::vector<size_t> key(schedule.lanes.size());
  for (size_t l = 0; l < key.size(); ++l) key[l] = l;
  for (const Arbiter& arbiter : arbiters(schedule)) {
    for (const LaneId lane : arbiter) key[lane.index()] = arbiter[0].index();
  }
  std::map<size_t, size_t> known;  // by key: the lane of its pipeline rank
  std::map<size_t, OpId> latest;
  for (const Span& span : timeline.spans) {
    const auto rank = static_cast<size_t>(graph_.op(span.op).pipeline_rank);
    if (static_cast<size_t>(span.rank) != rank) continue;  // the other end of a handoff
    ns_[span.op.index()] += span.end - span.begin;
    if (span.chunk > 0 || is_handoff(span.op)) continue;
    const size_t k = key[span.lane.index()];
    const bool computes = schedule.lanes[k].kind == LaneKind::kCompute;
    const auto [lane, fresh] = known.try_emplace(k, computes ? 0 : lanes_[rank]);
    if (fresh && !computes) ++lanes_[rank];
    lane_of_[span.op.index()] = lane->second;
    before_[span.op.index()] = std::exchange(latest[k], span.op);
  }
}

/// Finds the ops behind all turns: updates, sums of gradients, and what follows from them, as far
/// as no turn waits for them.
void StepComposer::find_tail() {
  for (const OpId id : order_) {
    const Op& op = graph_.op(id);
    const bool follows = std::any_of(op.inputs.begin(), op.inputs.end(), [&](TensorId t) {
      return t.valid() && producers_[t.index()].valid() && tail_[producers_[t.index()].index()];
    });
    tail_[id.index()] = follows || op.phase == Phase::kUpdate || op.segment == Segment::kUpdate ||
                        (is_handoff(id) && !attr_string(op, "role").empty());
  }
  std::vector<bool> needed(graph_.num_ops());
  for (auto id = order_.rbegin(); id != order_.rend(); ++id) {
    for (const OpId next : edges_.deps.succs[id->index()]) {
      if (!tail_[next.index()]) needed[id->index()] = true;
    }
    if (needed[id->index()]) tail_[id->index()] = false;
    const OpId before = before_[id->index()];
    if (!tail_[id->index()] && before.valid()) needed[before.index()] = true;
  }
}

/// Finds the entry of each op in a turn.
void StepComposer::place_ops() {
  using pipeline::Work;
  Entries known;
  for (size_t rank = 0; rank < rows_.size(); ++rank) {
    for (const pipeline::Action& a : rows_[rank]) {
      const bool second = &a != rows_[rank].data() && (&a - 1)->beside;
      if (!second) blocks_[rank].emplace_back();
      const size_t entry = blocks_[rank].size() - 1;
      if (a.work != Work::kB) known[{a.stage, a.micro, a.work}] = entry;
      if (a.work == Work::kB) {
        known[{a.stage, a.micro, Work::kI}] = known[{a.stage, a.micro, Work::kW}] = entry;
      }
    }
  }
  // What every stage has, such as the angles of positions, is of the layer of what reads it.
  for (size_t i = 0; i < graph_.num_ops(); ++i) layer_[i] = graph_.ops()[i].layer;
  for (auto id = order_.rbegin(); id != order_.rend(); ++id) {
    const Op& reader = graph_.op(*id);
    for (const TensorId t : reader.inputs) {
      const OpId p = t.valid() ? producers_[t.index()] : OpId();
      if (!p.valid() || graph_.op(p).layer >= 0 || graph_.op(p).phase != reader.phase) continue;
      layer_[p.index()] = std::max(layer_[p.index()], layer_[id->index()]);
    }
  }
  for (const OpId op : order_) {
    if (!tail_[op.index()]) place(op, known);
  }
}

void StepComposer::place(OpId id, const Entries& known) {
  using pipeline::Work;
  const Op& op = graph_.op(id);
  const PipelineSpec& spec = plan_->spec.pipeline;
  const auto rank = static_cast<size_t>(op.pipeline_rank);
  const int32_t layer = layer_[id.index()];
  int64_t stage = op.segment == Segment::kEmbed ? 0 : spec.shape.stages - 1;
  if (layer >= 0) {
    int64_t blocks = spec.layers[0];
    for (stage = 0; blocks <= layer;) blocks += spec.layers[static_cast<size_t>(++stage)];
  }
  const Work work = op.phase == Phase::kForward ? Work::kF : op.is_dw ? Work::kW : Work::kI;
  if (is_handoff(id)) {
    stage = attr_int(op, "from_stage");
    taken_[id.index()] = static_cast<int64_t>(known.at({attr_int(op, "to_stage"), op.micro, work}));
  }
  const auto found = known.find({stage, op.micro, work});
  const bool once = op.phase == Phase::kUpdate || op.segment == Segment::kUpdate;
  int64_t entry = 0;  // of the last op that it waits for
  std::vector<OpId> waits = edges_.deps.preds[id.index()];
  if (before_[id.index()].valid()) waits.push_back(before_[id.index()]);
  for (const OpId p : waits) {
    if (graph_.op(p).pipeline_rank == op.pipeline_rank) entry = std::max(entry, entry_[p.index()]);
  }
  if (!once && found != known.end() && spec.shape.rank_of(stage, op.micro) == op.pipeline_rank) {
    entry_[id.index()] = static_cast<int64_t>(found->second);
    if (entry_[id.index()] < entry && graph_.def(op).lane == LaneKind::kCompute) {
      throw user_error(
          "detail: 'turns' is not allowed where turns run among each other, as op '{}' behind one "
          "of a later turn; omit it",
          op.name);
    }
  } else {
    entry_[id.index()] = entry;
  }
  blocks_[rank][static_cast<size_t>(entry_[id.index()])].ops.push_back(id);
}

/// Notes the results that entries hand off, and what the tail waits for.
void StepComposer::connect() {
  const auto block_of = [&](OpId op) -> Block& {
    const auto rank = static_cast<size_t>(graph_.op(op).pipeline_rank);
    return blocks_[rank][static_cast<size_t>(entry_[op.index()])];
  };
  for (const OpId id : order_) {
    if (is_handoff(id) && !tail_[id.index()]) {
      const size_t result = graph_.op(id).phase == Phase::kForward ? 0 : 1;
      block_of(id).paths.wires[result] = static_cast<double>(ns_[id.index()]);
    }
    if (!tail_[id.index()]) continue;
    std::vector<OpId> waits = edges_.deps.preds[id.index()];
    if (before_[id.index()].valid()) waits.push_back(before_[id.index()]);
    for (const OpId p : waits) {
      if (tail_[p.index()]) continue;
      auto& left = block_of(p).left;
      const auto same = [&](const auto& known) { return known.first == p; };
      if (std::none_of(left.begin(), left.end(), same)) left.emplace_back(p, 0);
    }
  }
}

/// Sets the block's paths: for each op the longest way from each lane and arrival to its end.
/// before: what was found of the block before. An op of it for which an op here waits is over with
/// the lane of the one here, or else with its own.
StepComposer::Found StepComposer::find_ways(size_t rank, Block& block, const Found& before) {
  const size_t lanes = lanes_[rank];
  const int64_t entry = &block - blocks_[rank].data();
  Found found;
  auto& [ways, ends] = found;
  std::vector<Ways> given(2, Ways(lanes + 2, Paths::kNone));
  for (size_t lane = 0; lane < lanes; ++lane) {
    ends.emplace_back(lanes + 2, Paths::kNone)[lane] = 0;
  }
  for (const OpId id : block.ops) {
    Ways way(lanes + 2, Paths::kNone);
    const size_t lane = lane_of_[id.index()];
    const auto wait = [&](OpId p) {
      const auto early = before.ways.find(p);
      if (const auto here = ways.find(p); here != ways.end()) {
        way = later(way, here->second);
      } else if (graph_.op(p).pipeline_rank != graph_.op(id).pipeline_rank) {
        const size_t arrival = graph_.op(p).phase == Phase::kForward ? 0 : 1;
        if (taken_[p.index()] == entry) way[lanes + arrival] = 0;
      } else if (early != before.ways.end() && !is_handoff(p)) {
        const Ways& over = before.ends[lane];
        if (later(over, early->second) != over) way[lane_of_[p.index()]] = 0;
      }
    };
    const bool handoff = is_handoff(id);
    if (!handoff) way = ends[lane];
    for (const OpId p : edges_.deps.preds[id.index()]) wait(p);
    if (handoff) given[graph_.op(id).phase == Phase::kForward ? 0 : 1] = way;
    for (double& at : way) at += static_cast<double>(ns_[id.index()]);
    ways.emplace(id, way);
    if (handoff) continue;
    if (lane == 0) block.paths.busy += static_cast<double>(ns_[id.index()]);
    ends[lane] = std::move(way);
  }
  block.paths.lanes = lanes;
  block.paths.delays = ends;
  block.paths.delays.insert(block.paths.delays.end(), given.begin(), given.end());
  for (auto& [op, end] : block.left) {
    end = block.paths.delays.size();
    block.paths.delays.push_back(ways.at(op));
  }
  return found;
}

/// Returns when the last op behind the turns ends. last: by pipeline rank and entry, which entry of
/// `t` is the last that is like it; busy: gets the compute of each rank.
Nanoseconds StepComposer::tail_end(const std::vector<std::vector<int32_t>>& last,
                                   const pipeline::Timeline& t, std::vector<double>& busy) const {
  std::vector<double> ends(graph_.num_ops());
  double end = 0;
  const auto end_of = [&](OpId p) {
    if (tail_[p.index()]) return ends[p.index()];
    const auto rank = static_cast<size_t>(graph_.op(p).pipeline_rank);
    const auto entry = static_cast<size_t>(entry_[p.index()]);
    if (last[rank][entry] < 0) return t.ends[rank].back();
    for (const auto& [op, way] : blocks_[rank][entry].left) {
      if (op == p) return t.ways[rank][static_cast<size_t>(last[rank][entry])][way];
    }
    return 0.0;
  };
  for (const OpId id : order_) {
    if (!tail_[id.index()]) continue;
    double& at = ends[id.index()];
    for (const OpId p : edges_.deps.preds[id.index()]) at = std::max(at, end_of(p));
    if (before_[id.index()].valid()) at = std::max(at, end_of(before_[id.index()]));
    const auto ns = static_cast<double>(ns_[id.index()]);
    at += ns;
    end = std::max(end, at);
    if (graph_.def(id).lane == LaneKind::kCompute) {
      busy[static_cast<size_t>(graph_.op(id).pipeline_rank)] += ns;
    }
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
      if (like.entry < 0) {
        throw user_error("detail: the plan of {} micro-batches lacks a turn of the step of {}",
                         plan_->spec.pipeline.shape.micro_batches, many.shape.micro_batches);
      }
      latest[static_cast<size_t>(like.entry)] = static_cast<int32_t>(paths.size());
      paths.push_back(&blocks[static_cast<size_t>(like.entry)].paths);
    }
  }
  const pipeline::Timeline t = pipeline::compose(rows, many.shape, costs);
  std::vector<double> busy = t.busy;
  ComposedStep step{.step_ns = tail_end(last, t, busy)};
  for (const auto& of_rank : t.ways) {
    for (size_t lane = 0; lane < lanes_[static_cast<size_t>(&of_rank - t.ways.data())]; ++lane) {
      step.step_ns = std::max(step.step_ns, static_cast<Nanoseconds>(of_rank.back()[lane]));
    }
  }
  for (const double computes : busy) step.idle_ns.push_back(step.step_ns - std::llround(computes));
  return step;
}

}  // namespace moe
