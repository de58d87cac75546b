#include "engine/schedule/unroll.h"

#include <algorithm>
#include <optional>

#include "engine/base/errors.h"
#include "engine/graph/micro_batches.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

/// How often an op runs in a step.
enum class Runs : uint8_t { kFirst, kEach, kLast };

/// Lets ops on gradients of parameters whose results ops of each micro-batch read run in each, too.
void run_with_readers(const Graph& graph, std::vector<Runs>& runs) {
  std::vector<bool> read(graph.tensors().size());
  for (size_t i = graph.num_ops(); i-- > 0;) {
    const Op& op = graph.ops()[i];
    if (!op.kind.valid()) continue;
    const bool needed = std::any_of(op.outputs.begin(), op.outputs.end(),
                                    [&](TensorId t) { return t.valid() && read[t.index()]; });
    if (runs[i] == Runs::kLast && needed) {
      MOE_CHECK(op.phase != Phase::kUpdate && op.segment != Segment::kUpdate,
                "op '{}' runs once per step, so only ops that run once may read its result, but an "
                "op of each micro-batch does",
                op.name);
      runs[i] = Runs::kEach;
    }
    if (runs[i] != Runs::kEach) continue;
    for (const TensorId t : op.inputs) {
      if (t.valid()) read[t.index()] = true;
    }
  }
}

/// Returns, per op, how often it runs. Requires: ops in program order.
std::vector<Runs> runs_of(const Graph& graph) {
  std::vector<Runs> runs(graph.num_ops(), Runs::kFirst);
  // Per tensor: whether it depends on the step's inputs, and whether it is a gradient of a
  // parameter or follows from such gradients alone.
  std::vector<bool> live(graph.tensors().size()), summed(graph.tensors().size());
  for (size_t t = 0; t < live.size(); ++t) {
    live[t] = graph.tensors()[t].kind == TensorKind::kInput;
  }
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const Op& op = graph.ops()[i];
    if (!op.kind.valid()) continue;
    bool any = false, all = !op.is_dw;
    for (const TensorId t : op.inputs) {
      if (!t.valid() || !live[t.index()]) continue;
      any = true;
      all = all && summed[t.index()];
    }
    const bool update = op.phase == Phase::kUpdate || op.segment == Segment::kUpdate;
    if (any || update) runs[i] = update || all ? Runs::kLast : Runs::kEach;
    for (const TensorId t : op.outputs) {
      if (!t.valid()) continue;
      live[t.index()] = runs[i] != Runs::kFirst;
      summed[t.index()] = runs[i] == Runs::kLast || op.is_dw;
    }
  }
  run_with_readers(graph, runs);
  return runs;
}

/// An input of an op.
struct Place {
  OpId op;
  size_t input = 0;
};

class Unroller {
 public:
  Unroller(const Graph& graph, const Schedule& schedule, int64_t micro_batches)
      : from_(graph),
        schedule_(schedule),
        micros_(static_cast<size_t>(micro_batches)),
        producers_(graph.producers()),
        readers_(graph.tensors().size()),
        runs_(runs_of(graph)),
        tensors_(graph.tensors().size()),
        ops_(graph.num_ops()),
        accumulators_(graph.tensors().size()),
        added_(graph.tensors().size()),
        sums_(graph.tensors().size()),
        to_{Graph(graph.table()), {}} {
    for (size_t i = 0; i < graph.num_ops(); ++i) {
      for (const TensorId t : graph.ops()[i].inputs) {
        if (t.valid()) readers_[t.index()].emplace_back(static_cast<int64_t>(i));
      }
    }
  }

  Unrolled run() {
    to_.graph.name = from_.name;
    to_.graph.num_ranks = from_.num_ranks;
    find_sums();
    add_tensors_without_producer();
    for (size_t m = 0; m < micros_; ++m) {
      for (size_t i = 0; i < from_.num_ops(); ++i) {
        if (runs_in(i, m)) add(OpId(static_cast<int64_t>(i)), m);
      }
    }
    add_schedule();
    return std::move(to_);
  }

 private:
  bool runs_in(size_t op, size_t m) const {
    if (!from_.ops()[op].kind.valid()) return false;
    return runs_[op] == Runs::kEach || m == (runs_[op] == Runs::kFirst ? 0 : micros_ - 1);
  }
  bool in_each(TensorId t) const {
    const OpId maker = producers_[t.index()];
    return maker.valid() ? runs_[maker.index()] == Runs::kEach
                         : from_.tensor(t).kind == TensorKind::kInput;
  }
  /// Whether the tensor holds loads, integers that may be added up.
  bool are_loads(TensorId t) const {
    const Op& maker = from_.op(producers_[t.index()]);
    return output_of(from_, maker, Role::kLoads) == t;
  }
  /// Returns the tensor of micro-batch m.
  TensorId at(TensorId t, size_t m) const {
    const std::vector<TensorId>& all = tensors_[t.index()];
    return all[all.size() == 1 ? 0 : m];
  }

  void find_sums();
  std::optional<Place> accumulator_of(TensorId gradient) const;
  void add_tensors_without_producer();
  void add(OpId id, size_t m);
  void add_sum(TensorId t, size_t m);
  void add_schedule();
  void add_edges();

  const Graph& from_;
  const Schedule& schedule_;
  const size_t micros_;
  const std::vector<OpId> producers_;
  std::vector<std::vector<OpId>> readers_;
  const std::vector<Runs> runs_;
  // By tensor or op of from_: what it is in each micro-batch, or once.
  std::vector<std::vector<TensorId>> tensors_;
  std::vector<std::vector<OpId>> ops_;
  // By tensor of from_ that is added up: where its sum so far is read (an invalid op: nowhere,
  // since it is not added up in this way), and whether an op `add` adds it.
  std::vector<Place> accumulators_;
  std::vector<bool> added_;
  std::vector<TensorId> sums_;  // by tensor of from_ that an op `add` adds: its sum so far
  Unrolled to_;
};

/// Finds the tensors of micro-batches that ops that run once read.
void Unroller::find_sums() {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const TensorId tensor(static_cast<int64_t>(t));
    const auto last = [&](OpId op) { return runs_[op.index()] == Runs::kLast; };
    const auto reader = std::find_if(readers_[t].begin(), readers_[t].end(), last);
    if (reader == readers_[t].end() || !in_each(tensor)) continue;
    if (from_.tensor(tensor).dtype == DType::kI32 && !are_loads(tensor)) {
      throw user_error(
          "op '{}' runs once per step, but reads tensor '{}' of integers, which each of the {} "
          "micro-batches makes; leave the stage that adds the op out, or give grid.micro_batches = "
          "1",
          from_.op(*reader).name, from_.tensor(tensor).name, micros_);
    }
    if (const std::optional<Place> place = accumulator_of(tensor)) {
      accumulators_[t] = *place;
    } else {
      added_[t] = true;
    }
  }
}

/// Returns the absent input of the op that computes the gradient, to which it adds, or of the op
/// whose result it adds to, and so on.
std::optional<Place> Unroller::accumulator_of(TensorId gradient) const {
  while (true) {
    const OpId maker = producers_[gradient.index()];
    const Op& op = from_.op(maker);
    if (!op.is_dw) return {};
    const auto output = std::find(op.outputs.begin(), op.outputs.end(), gradient);
    const std::vector<std::pair<int, int>>& pairs = from_.def(op).may_alias;
    const auto pair = std::find_if(pairs.begin(), pairs.end(), [&](const auto& p) {
      return p.first == output - op.outputs.begin();
    });
    if (pair == pairs.end()) return {};
    const auto input = static_cast<size_t>(pair->second);
    if (input >= op.inputs.size() || !op.inputs[input].valid()) return Place{maker, input};
    gradient = op.inputs[input];
    const OpId before = producers_[gradient.index()];
    if (!before.valid() || !from_.op(before).is_dw || readers_[gradient.index()].size() > 1) {
      return {};
    }
  }
}

void Unroller::add_tensors_without_producer() {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    if (producers_[t].valid()) continue;
    const Tensor& tensor = from_.tensors()[t];
    const size_t copies = tensor.kind == TensorKind::kInput ? micros_ : 1;
    for (size_t m = 0; m < copies; ++m) {
      Tensor copy = tensor;
      copy.name = name_in(tensor.name, m);
      tensors_[t].push_back(to_.graph.add_tensor(std::move(copy)));
    }
  }
}

/// Adds the op of micro-batch m.
void Unroller::add(OpId id, size_t m) {
  const Op& given = from_.op(id);
  Op op = given;
  const bool each = runs_[id.index()] == Runs::kEach;
  op.micro = each ? static_cast<int32_t>(m) : 0;
  if (each) op.name = name_in(given.name, m);
  for (TensorId& t : op.inputs) {
    if (!t.valid()) continue;
    t = runs_[id.index()] == Runs::kLast && added_[t.index()] ? sums_[t.index()] : at(t, m);
  }
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const TensorId old = given.outputs[i];
    if (!old.valid()) continue;
    Tensor tensor = from_.tensor(old);
    tensor.name = tensor.name == output_name(given.name, i) ? output_name(op.name, i)
                  : each                                    ? name_in(tensor.name, m)
                                                            : tensor.name;
    op.outputs[i] = to_.graph.add_tensor(std::move(tensor));
    tensors_[old.index()].push_back(op.outputs[i]);
  }
  if (op.of.valid()) op.of = at(op.of, m);
  ops_[id.index()].push_back(to_.graph.append(std::move(op)));
  for (const TensorId t : given.outputs) {
    if (t.valid() && each) add_sum(t, m);
  }
}

/// Adds the tensor of micro-batch m, which has just been made, to the sum of those before.
void Unroller::add_sum(TensorId t, size_t m) {
  if (const Place place = accumulators_[t.index()]; place.op.valid() && m > 0) {
    Op& op = to_.graph.op(ops_[place.op.index()].back());
    if (op.inputs.size() <= place.input) op.inputs.resize(place.input + 1);
    op.inputs[place.input] = at(t, m - 1);
  }
  if (!added_[t.index()]) return;
  TensorId& sum = sums_[t.index()];
  if (m == 0) {
    sum = at(t, 0);
    return;
  }
  const Op& maker = from_.op(producers_[t.index()]);
  const BasicOp add = are_loads(t) ? BasicOp::kAddLoads : BasicOp::kAdd;
  const OpId id =
      to_.graph.add_op(to_.graph.table().basic(add), name_in(from_.tensor(t).name + ".sum", m),
                       {sum, at(t, m)}, {}, maker.phase);
  Op& op = to_.graph.op(id);
  op.segment = maker.segment;
  op.layer = maker.layer;
  op.micro = static_cast<int32_t>(m);
  op.is_dw = maker.is_dw;
  sum = to_.graph.out(id);
  to_.graph.tensor(sum).held = from_.tensor(t).held;
  to_.graph.tensor(sum).kind = from_.tensor(t).kind;
}

void Unroller::add_schedule() {
  Schedule& to = to_.schedule;
  const size_t n = to_.graph.num_ops();
  to.lanes = schedule_.lanes;
  to.exclusive = schedule_.exclusive;
  to.log = schedule_.log;
  to.lane_of.assign(n, LaneId(0));
  if (!schedule_.priority.empty()) to.priority.assign(n, 0);
  if (!schedule_.chunk_bytes.empty()) to.chunk_bytes.assign(n, 0);
  if (!schedule_.chunk_stage.empty()) to.chunk_stage.resize(n);
  for (size_t i = 0; i < ops_.size(); ++i) {
    for (const OpId op : ops_[i]) {
      to.lane_of[op.index()] = schedule_.lane_of[i];
      if (!to.priority.empty()) to.priority[op.index()] = schedule_.priority[i];
      if (!to.chunk_bytes.empty()) to.chunk_bytes[op.index()] = schedule_.chunk_bytes[i];
      if (!to.chunk_stage.empty()) to.chunk_stage[op.index()] = schedule_.chunk_stage[i];
    }
  }
  for (const Setting& setting : schedule_.settings) {
    for (const OpId op : ops_[setting.op.index()]) {
      to.settings.push_back(setting);
      to.settings.back().op = op;
    }
  }
  add_edges();
}

void Unroller::add_edges() {
  // The pairs of ops (a, b) that an edge from `a` to `b` stands for: those of the same micro-batch;
  // where one op runs once, it and the other in the micro-batch in which it runs.
  const auto for_each_pair = [&](OpId a, OpId b, const auto& call) {
    const std::vector<OpId>&from = ops_[a.index()], &to = ops_[b.index()];
    if (from.size() == to.size()) {
      for (size_t m = 0; m < from.size(); ++m) call(from[m], to[m]);
      return;
    }
    const OpId once = from.size() == 1 ? a : b;
    const bool first = runs_[once.index()] == Runs::kFirst;
    call(first ? from.front() : from.back(), first ? to.front() : to.back());
  };
  for (const OrderEdge& edge : schedule_.order_edges) {
    for_each_pair(edge.from, edge.to,
                  [&](OpId from, OpId to) { to_.schedule.before(from, to, edge.stage, edge.why); });
  }
  for (const Hold& hold : schedule_.holds) {
    for_each_pair(hold.from, hold.until, [&](OpId from, OpId until) {
      to_.schedule.holds.push_back({from, until, hold.stage});
    });
  }
  // Turns follow each other on the compute lane.
  std::vector<size_t> computes;
  for (size_t i = 0; i < ops_.size(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (!from_.removed(op) && runs_[i] == Runs::kEach && from_.def(op).lane == LaneKind::kCompute) {
      computes.push_back(i);
    }
  }
  for (size_t m = 1; m < micros_ && !computes.empty(); ++m) {
    to_.schedule.before(ops_[computes.back()][m - 1], ops_[computes.front()][m], "pipeline",
                        fmt::format("micro-batch {} follows {}, from 0", m, m - 1));
  }
}

}  // namespace

Unrolled unroll(const Graph& graph, const Schedule& schedule, int64_t micro_batches) {
  MOE_CHECK(micro_batches >= 1, "unroll: micro_batches is {}, must be at least 1", micro_batches);
  return Unroller(graph, schedule, micro_batches).run();
}

}  // namespace moe
