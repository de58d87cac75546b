#include "engine/schedule/unroll.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_set>

#include "engine/base/errors.h"
#include "engine/graph/micro_batches.h"
#include "engine/graph/op_def.h"
#include "engine/schedule/precedence.h"

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
  for (const OpId id : graph.op_ids()) {
    const Op& op = graph.op(id);
    Runs& run = runs[id.index()];
    const bool receives = op.inputs.empty() && graph.def(op).collective == Collective::kHandoff;
    bool any = receives, all = !op.is_dw && !receives;
    for (const TensorId t : op.inputs) {
      if (!t.valid() || !live[t.index()]) continue;
      any = true;
      all = all && summed[t.index()];
    }
    const bool update = op.phase == Phase::kUpdate || op.segment == Segment::kUpdate;
    if (any || update) run = update || all ? Runs::kLast : Runs::kEach;
    for (const TensorId t : op.outputs) {
      if (!t.valid()) continue;
      live[t.index()] = run != Runs::kFirst;
      summed[t.index()] = run == Runs::kLast || op.is_dw;
    }
  }
  run_with_readers(graph, runs);
  return runs;
}

/// Which part of a micro-batch's work an op belongs to.
enum class Part : uint8_t { kForward, kInputGradient, kWeightGradient };

/// Returns the part of each op that runs in each micro-batch; what reads the gradient of a weight
/// belongs to it.
std::vector<Part> parts_of(const Graph& graph, const std::vector<Runs>& runs) {
  std::vector<Part> parts(graph.num_ops());
  std::vector<bool> of_weight(graph.tensors().size());
  for (const OpId id : graph.op_ids()) {
    const Op& op = graph.op(id);
    if (op.phase == Phase::kForward) continue;
    const bool follows = std::any_of(op.inputs.begin(), op.inputs.end(),
                                     [&](TensorId t) { return t.valid() && of_weight[t.index()]; });
    const bool weight = op.is_dw || (runs[id.index()] == Runs::kEach && follows);
    parts[id.index()] = weight ? Part::kWeightGradient : Part::kInputGradient;
    for (const TensorId t : op.outputs) of_weight[t.index()] = weight;
  }
  return parts;
}

/// An input of an op.
struct Place {
  OpId op;
  size_t input = 0;
};

/// A turn, or the forward of a micro-batch and its backward right behind it.
struct Visit {
  size_t chunk = 0, micro = 0;
  std::array<bool, 3> has{};  // indexed by Part
  bool beside = false;
  bool last = false;  // of its chunk
  std::string text;
};

std::vector<Visit> visits_of(const pipeline::Turns& turns, size_t num_chunks) {
  using pipeline::Work;
  std::vector<Visit> visits;
  for (const pipeline::Turn& turn : turns) {
    const auto chunk = static_cast<size_t>(turn.chunk), micro = static_cast<size_t>(turn.micro);
    const std::string text = fmt::format("{}{}", name_of(turn.work), turn.micro);
    const bool follows = turn.work == Work::kB && !visits.empty() && !visits.back().beside &&
                         visits.back().chunk == chunk && visits.back().micro == micro &&
                         visits.back().has == std::array{true, false, false};
    if (!follows) visits.push_back({.chunk = chunk, .micro = micro, .text = text});
    Visit& visit = visits.back();
    visit.has[0] |= turn.work == Work::kF;
    visit.has[1] |= turn.work == Work::kB || turn.work == Work::kI;
    visit.has[2] |= turn.work == Work::kB || turn.work == Work::kW;
    visit.beside = turn.beside;
  }
  std::vector<bool> seen(num_chunks);
  for (size_t s = visits.size(); s-- > 0;) {
    visits[s].last = !seen[visits[s].chunk];
    seen[visits[s].chunk] = true;
  }
  return visits;
}

/// The key of what is handed off: what, from and to which stage, in which phase.
using Key = std::tuple<std::string, int64_t, int64_t, Phase>;
Key key_of(const Op& op) {
  return {attr_string(op, "what"), attr_int(op, "from_stage"), attr_int(op, "to_stage"), op.phase};
}

/// The program of one micro-batch of a stage, and what it became.
struct Chunk {
  Chunk(const ScheduledGraph& program, size_t n, size_t micros)
      : number(n),
        graph(program.graph),
        schedule(program.schedule),
        producers(graph.producers()),
        readers(graph.tensors().size()),
        runs(runs_of(graph)),
        parts(parts_of(graph, runs)),
        tensors(graph.tensors().size()),
        ops(graph.num_ops()),
        first(graph.num_ops()),
        last(graph.num_ops()),
        accumulators(graph.tensors().size()),
        added(graph.tensors().size()),
        sums(graph.tensors().size()),
        latest(graph.tensors().size()),
        runs_micro(micros) {
    behind.resize(graph.num_ops());
    for (const OpId id : graph.op_ids()) {
      const Op& op = graph.op(id);
      for (const TensorId t : op.inputs) {
        if (t.valid()) readers[t.index()].push_back(id);
      }
      if (graph.def(op).collective != Collective::kHandoff) continue;
      if (!op.inputs.empty() && op.outputs.empty()) sent.emplace(key_of(op), op.inputs[0]);
      if (op.inputs.empty()) received.insert(key_of(op));
    }
  }

  bool in_each(TensorId t) const {
    const OpId maker = producers[t.index()];
    return maker.valid() ? runs[maker.index()] == Runs::kEach
                         : graph.tensor(t).kind == TensorKind::kInput;
  }
  /// Whether the tensor holds loads, integers that may be added up.
  bool are_loads(TensorId t) const {
    return output_of(graph, graph.op(producers[t.index()]), Role::kLoads) == t;
  }
  /// Returns the tensor of micro-batch m.
  TensorId at(TensorId t, size_t m) const {
    const std::vector<TensorId>& all = tensors[t.index()];
    return all[all.size() == 1 ? 0 : m];
  }

  const size_t number;  // of the rank's chunks, from 0
  const Graph& graph;
  const Schedule& schedule;
  const std::vector<OpId> producers;
  std::vector<std::vector<OpId>> readers;
  const std::vector<Runs> runs;
  const std::vector<Part> parts;
  std::vector<OpId> order;   // in which a turn adds ops
  std::vector<bool> behind;  // by op: whether it runs behind all turns of the rank
  // By tensor or op of `graph`: what it is in each micro-batch (invalid: not there), or once.
  std::vector<std::vector<TensorId>> tensors;
  std::vector<std::vector<OpId>> ops;
  std::vector<OpId> first, last;  // of `ops`, in the order of turns
  // By tensor of `graph` that is added up: where its sum so far is read (an invalid op: nowhere,
  // since it is not added up in this way), and whether an op `add` adds it.
  std::vector<Place> accumulators;
  std::vector<bool> added;
  std::vector<TensorId> sums;    // by tensor that an op `add` adds: its sum so far
  std::vector<TensorId> latest;  // of `tensors`, in the order of turns
  std::vector<bool> runs_micro;  // by micro-batch
  std::map<Key, TensorId> sent;
  std::set<Key> received;
};

class Unroller {
 public:
  Unroller(std::span<const ScheduledGraph> chunks, const pipeline::Turns& turns)
      : visits_(visits_of(turns, chunks.size())), to_{Graph(chunks[0].graph.table()), {}} {
    for (const pipeline::Turn& turn : turns) {
      micros_ = std::max(micros_, static_cast<size_t>(turn.micro) + 1);
    }
    for (const ScheduledGraph& program : chunks) {
      chunks_.emplace_back(program, chunks_.size(), micros_);
    }
    for (const pipeline::Turn& turn : turns) {
      chunks_[static_cast<size_t>(turn.chunk)].runs_micro[static_cast<size_t>(turn.micro)] = true;
    }
  }

  UnrolledStep run() {
    to_.graph.name = chunks_[0].graph.name;
    to_.graph.num_ranks = chunks_[0].graph.num_ranks;
    for (Chunk& chunk : chunks_) {
      set_order(chunk);
      find_sums(chunk);
      add_tensors_without_producer(chunk);
    }
    for (size_t s = 0; s < visits_.size(); ++s) {
      Chunk& chunk = chunks_[visits_[s].chunk];
      for (const OpId op : chunk.order) {
        if (chunk.behind[op.index()] || !runs_in(chunk, op, visits_[s])) continue;
        add(chunk, op, visits_[s].micro);
      }
      turn_of_.resize(to_.graph.num_ops(), static_cast<int32_t>(s));
    }
    for (Chunk& chunk : chunks_) {
      for (const OpId op : chunk.order) {
        if (chunk.behind[op.index()]) add(chunk, op, 0);
      }
    }
    turn_of_.resize(to_.graph.num_ops(), static_cast<int32_t>(visits_.size()));
    add_schedule();
    UnrolledStep step{std::move(to_), {{}, std::move(turn_of_)}};
    for (const Visit& v : visits_) {
      step.turns.turns.push_back(
          {static_cast<int32_t>(v.chunk), static_cast<int32_t>(v.micro), v.beside, v.text});
    }
    return step;
  }

 private:
  static bool runs_in(const Chunk& chunk, OpId op, const Visit& visit) {
    const Runs runs = chunk.runs[op.index()];
    if (runs == Runs::kLast) return visit.last;
    const bool now = visit.has[static_cast<size_t>(chunk.parts[op.index()])];
    return now && (runs == Runs::kEach || chunk.ops[op.index()].empty());
  }
  /// Returns the chunk on this rank that sends what the op receives, or the reverse, in
  /// micro-batch m; null if there is none.
  const Chunk* other_end(const Op& op, size_t m) const {
    for (const Chunk& chunk : chunks_) {
      const bool there = op.outputs.empty() ? chunk.received.contains(key_of(op))
                                            : chunk.sent.contains(key_of(op));
      if (there && chunk.runs_micro[m]) return &chunk;
    }
    return nullptr;
  }

  /// Sets the order of the stage's ops in a turn. On a rank with one stage that no other feeds, the
  /// order edges of its schedule act later, among all ops of the step.
  void set_order(Chunk& chunk) const {
    const bool alone = chunks_.size() == 1 && chunk.sent.empty() && chunk.received.empty();
    if (!alone) {
      chunk.order = Precedence(chunk.graph, chunk.schedule).order(chunk.graph, chunk.schedule);
      // Compute that runs once waits for other pipeline ranks, which may wait for the turns.
      std::vector<bool> late(chunk.tensors.size());  // made or overwritten behind the turns
      for (const OpId id : chunk.order) {
        if (chunk.runs[id.index()] != Runs::kLast) continue;
        const Op& op = chunk.graph.op(id);
        const bool behind = chunk.graph.def(op).lane == LaneKind::kCompute ||
                            attr_string(op, "role") == "takes" ||
                            std::any_of(op.inputs.begin(), op.inputs.end(),
                                        [&](TensorId t) { return t.valid() && late[t.index()]; });
        if (!behind) continue;
        chunk.behind[id.index()] = true;
        for (const TensorId t : op.outputs) late[t.index()] = true;
        for (const int i : mutated_inputs(chunk.graph, op)) {
          late[op.inputs[static_cast<size_t>(i)].index()] = true;
        }
      }
      return;
    }
    for (const OpId op : chunk.graph.op_ids()) chunk.order.push_back(op);
  }

  /// Finds the tensors of micro-batches that ops that run once read.
  void find_sums(Chunk& chunk) const {
    for (size_t t = 0; t < chunk.tensors.size(); ++t) {
      const TensorId tensor(static_cast<int64_t>(t));
      const auto last = [&](OpId op) { return chunk.runs[op.index()] == Runs::kLast; };
      const std::vector<OpId>& readers = chunk.readers[t];
      const auto reader = std::find_if(readers.begin(), readers.end(), last);
      if (reader == readers.end() || !chunk.in_each(tensor)) continue;
      if (chunk.graph.tensor(tensor).dtype == DType::kI32 && !chunk.are_loads(tensor)) {
        throw user_error(
            "op '{}' runs once per step, but reads tensor '{}' of integers, which each of the {} "
            "micro-batches makes; leave the stage that adds the op out, or give grid.micro_batches "
            "= 1",
            chunk.graph.op(*reader).name, chunk.graph.tensor(tensor).name, micros_);
      }
      if (const std::optional<Place> place = accumulator_of(chunk, tensor)) {
        chunk.accumulators[t] = *place;
      } else {
        chunk.added[t] = true;
      }
    }
  }

  /// Returns the absent input of the op that computes the gradient, to which it adds, or of the op
  /// whose result it adds to, and so on.
  static std::optional<Place> accumulator_of(const Chunk& chunk, TensorId gradient) {
    const Graph& graph = chunk.graph;
    while (true) {
      const OpId maker = chunk.producers[gradient.index()];
      const Op& op = graph.op(maker);
      if (!op.is_dw) return {};
      const auto output = std::find(op.outputs.begin(), op.outputs.end(), gradient);
      const std::vector<std::pair<int, int>>& pairs = graph.def(op).may_alias;
      const auto pair = std::find_if(pairs.begin(), pairs.end(), [&](const auto& p) {
        return p.first == output - op.outputs.begin();
      });
      if (pair == pairs.end()) return {};
      const auto input = static_cast<size_t>(pair->second);
      if (input >= op.inputs.size() || !op.inputs[input].valid()) return Place{maker, input};
      gradient = op.inputs[input];
      const OpId before = chunk.producers[gradient.index()];
      if (!before.valid() || !graph.op(before).is_dw ||
          chunk.readers[gradient.index()].size() > 1) {
        return {};
      }
    }
  }

  void add_tensors_without_producer(Chunk& chunk) {
    for (size_t t = 0; t < chunk.tensors.size(); ++t) {
      if (chunk.producers[t].valid()) continue;
      const Tensor& tensor = chunk.graph.tensors()[t];
      if (tensor.kind == TensorKind::kInput) {
        chunk.tensors[t].resize(micros_);
        for (size_t m = 0; m < micros_; ++m) {
          if (!chunk.runs_micro[m]) continue;
          Tensor copy = tensor;
          copy.name = name_in(tensor.name, static_cast<int64_t>(m));
          const auto [known, fresh] = persistent_.try_emplace(copy.name);
          if (fresh) known->second = to_.graph.add_tensor(std::move(copy));
          chunk.tensors[t][m] = known->second;
        }
        if (micros_ == 1) chunk.tensors[t].resize(1);
        continue;
      }
      const auto [known, fresh] = persistent_.try_emplace(tensor.name);
      if (fresh) known->second = to_.graph.add_tensor(tensor);
      chunk.tensors[t] = {known->second};
    }
  }

  /// Adds the op of micro-batch m.
  void add(Chunk& chunk, OpId id, size_t m) {
    if (add_handoff(chunk, id, m) || add_sum_of_copies(chunk, id)) return;
    const Op& given = chunk.graph.op(id);
    Op op = given;
    const Runs runs = chunk.runs[id.index()];
    const bool each = runs == Runs::kEach;
    op.micro = each ? static_cast<int32_t>(m) : 0;
    op.name =
        free_name(each ? name_in(given.name, static_cast<int64_t>(m)) : given.name, chunk.number);
    for (TensorId& t : op.inputs) {
      if (!t.valid()) continue;
      const bool summed = runs == Runs::kLast && chunk.added[t.index()];
      const bool last = runs == Runs::kLast && chunk.latest[t.index()].valid();
      t = summed ? chunk.sums[t.index()] : last ? chunk.latest[t.index()] : chunk.at(t, m);
    }
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      const TensorId old = given.outputs[i];
      if (!old.valid()) continue;
      Tensor tensor = chunk.graph.tensor(old);
      tensor.name = tensor.name == output_name(given.name, i) ? output_name(op.name, i)
                    : each ? name_in(tensor.name, static_cast<int64_t>(m))
                           : tensor.name;
      const TensorId made = to_.graph.add_tensor(std::move(tensor));
      std::vector<TensorId>& all = chunk.tensors[old.index()];
      all.resize(each ? micros_ : 1);
      all[each ? m : 0] = made;
      op.outputs[i] = made;
    }
    if (op.of.valid()) op.of = chunk.at(op.of, m);
    const OpId made = to_.graph.append(std::move(op));
    std::vector<OpId>& all = chunk.ops[id.index()];
    all.resize(each ? micros_ : 1);
    all[each ? m : 0] = made;
    if (!chunk.first[id.index()].valid()) chunk.first[id.index()] = made;
    chunk.last[id.index()] = made;
    for (const TensorId t : given.outputs) {
      if (t.valid() && each) add_sum(chunk, t, m);
    }
  }

  /// For a transfer between two stages on this rank: lets the one read what the other makes, and
  /// returns true.
  bool add_handoff(Chunk& chunk, OpId id, size_t m) {
    const Op& op = chunk.graph.op(id);
    const bool sends = op.outputs.empty(), receives = op.inputs.empty();
    if (chunk.graph.def(op).collective != Collective::kHandoff || sends == receives) return false;
    const Chunk* const other = other_end(op, m);
    if (other == nullptr) return false;
    if (sends) return true;
    const TensorId sent = other->at(other->sent.at(key_of(op)), m);
    MOE_CHECK(sent.valid(), "op '{}' reads what a later turn makes, in micro-batch {}", op.name, m);
    std::vector<TensorId>& all = chunk.tensors[op.outputs[0].index()];
    all.resize(micros_);
    all[m] = sent;
    return true;
  }

  /// For a sum of the gradients of a parameter that two stages on this rank hold: adds the sum, or
  /// notes what the other stage adds, and returns true.
  bool add_sum_of_copies(Chunk& chunk, OpId id) {
    const Op& op = chunk.graph.op(id);
    const std::string role = attr_string(op, "role");
    if (role != "gives" && role != "takes") return false;
    const std::string what = attr_string(op, "what");
    const auto total = [&](TensorId t) {
      return chunk.added[t.index()] ? chunk.sums[t.index()] : chunk.latest[t.index()];
    };
    if (role == "gives") {
      given_[what] = total(op.inputs[0]);
      return true;
    }
    MOE_CHECK(given_.contains(what), "op '{}' adds a gradient that a later turn makes", op.name);
    const BasicOp add = BasicOp::kAdd;
    const OpId made = to_.graph.add_op(to_.graph.table().basic(add), op.name,
                                       {total(op.inputs[0]), given_[what]}, {}, op.phase);
    to_.graph.op(made).segment = Segment::kUpdate;
    const TensorId sum = to_.graph.out(made);
    to_.graph.tensor(sum).held = chunk.graph.tensor(op.outputs[0]).held;
    to_.graph.tensor(sum).kind = chunk.graph.tensor(op.outputs[0]).kind;
    chunk.tensors[op.outputs[0].index()] = {sum};
    return true;
  }

  /// Adds the tensor of micro-batch m, which has just been made, to the sum of those before.
  void add_sum(Chunk& chunk, TensorId t, size_t m) {
    const TensorId before = std::exchange(chunk.latest[t.index()], chunk.at(t, m));
    if (const Place place = chunk.accumulators[t.index()]; place.op.valid() && before.valid()) {
      Op& op = to_.graph.op(chunk.last[place.op.index()]);
      if (op.inputs.size() <= place.input) op.inputs.resize(place.input + 1);
      op.inputs[place.input] = before;
    }
    if (!chunk.added[t.index()]) return;
    TensorId& sum = chunk.sums[t.index()];
    if (!sum.valid()) {
      sum = chunk.at(t, m);
      return;
    }
    const Op& maker = chunk.graph.op(chunk.producers[t.index()]);
    const BasicOp add = chunk.are_loads(t) ? BasicOp::kAddLoads : BasicOp::kAdd;
    const std::string name = name_in(chunk.graph.tensor(t).name + ".sum", static_cast<int64_t>(m));
    const OpId id = to_.graph.add_op(to_.graph.table().basic(add), free_name(name, chunk.number),
                                     {sum, chunk.at(t, m)}, {}, maker.phase);
    Op& op = to_.graph.op(id);
    op.segment = maker.segment;
    op.layer = maker.layer;
    op.micro = static_cast<int32_t>(m);
    op.is_dw = maker.is_dw;
    sum = to_.graph.out(id);
    to_.graph.tensor(sum).held = chunk.graph.tensor(t).held;
    to_.graph.tensor(sum).kind = chunk.graph.tensor(t).kind;
  }

  void add_schedule() {
    to_.schedule.lane_of.assign(to_.graph.num_ops(), LaneId(0));
    for (const Chunk& chunk : chunks_) {
      std::vector<LaneId> lanes;
      add_lanes(chunk, lanes);
      add_ops(chunk, lanes);
      add_edges(chunk);
    }
    add_turn_edges();
  }

  /// Adds the lanes of the chunk that no chunk before has. lanes: by lane of the chunk, its number.
  void add_lanes(const Chunk& chunk, std::vector<LaneId>& lanes) {
    Schedule& to = to_.schedule;
    for (const Lane& lane : chunk.schedule.lanes) {
      const auto same = [&](const Lane& known) { return known.name == lane.name; };
      const auto known = std::find_if(to.lanes.begin(), to.lanes.end(), same);
      lanes.emplace_back(known - to.lanes.begin());
      if (known == to.lanes.end()) to.lanes.push_back(lane);
    }
    for (Exclusive group : chunk.schedule.exclusive) {
      for (LaneId& lane : group.lanes) lane = lanes[lane.index()];
      std::set<LaneId> shared(group.lanes.begin(), group.lanes.end());
      // A chunk without ops on some of the lanes may have fewer of them.
      std::erase_if(to.exclusive, [&](const Exclusive& known) {
        const bool meets = std::any_of(known.lanes.begin(), known.lanes.end(),
                                       [&](LaneId lane) { return shared.contains(lane); });
        if (meets) shared.insert(known.lanes.begin(), known.lanes.end());
        return meets;
      });
      group.lanes.assign(shared.begin(), shared.end());
      to.exclusive.push_back(group);
    }
    to.log.insert(to.log.end(), chunk.schedule.log.begin(), chunk.schedule.log.end());
  }

  void add_ops(const Chunk& chunk, const std::vector<LaneId>& lanes) {
    Schedule& to = to_.schedule;
    const Schedule& from = chunk.schedule;
    const size_t n = to_.graph.num_ops();
    if (!from.priority.empty()) to.priority.resize(n, 0);
    if (!from.chunk_bytes.empty()) to.chunk_bytes.resize(n, 0);
    if (!from.chunk_stage.empty()) to.chunk_stage.resize(n);
    for (size_t i = 0; i < chunk.ops.size(); ++i) {
      for (const OpId op : chunk.ops[i]) {
        if (!op.valid()) continue;
        to.lane_of[op.index()] = lanes[from.lane_of[i].index()];
        if (!from.priority.empty()) to.priority[op.index()] = from.priority[i];
        if (!from.chunk_bytes.empty()) to.chunk_bytes[op.index()] = from.chunk_bytes[i];
        if (!from.chunk_stage.empty()) to.chunk_stage[op.index()] = from.chunk_stage[i];
      }
    }
    for (const Setting& setting : from.settings) {
      for (const OpId op : chunk.ops[setting.op.index()]) {
        if (!op.valid()) continue;
        to.settings.push_back(setting);
        to.settings.back().op = op;
      }
    }
  }

  void add_edges(const Chunk& chunk) {
    // The pairs of ops (a, b) that an edge from `a` to `b` stands for: those of the same
    // micro-batch; where one op runs once, it and the other in the micro-batch in which it runs.
    const auto for_each_pair = [&](OpId a, OpId b, const auto& call) {
      const std::vector<OpId>&from = chunk.ops[a.index()], &to = chunk.ops[b.index()];
      if (from.empty() || to.empty()) return;
      if (from.size() == to.size()) {
        for (size_t m = 0; m < from.size(); ++m) {
          if (from[m].valid() && to[m].valid()) call(from[m], to[m]);
        }
        return;
      }
      const OpId once = from.size() == 1 ? a : b;
      const std::vector<OpId>& ends =
          chunk.runs[once.index()] == Runs::kFirst ? chunk.first : chunk.last;
      call(ends[a.index()], ends[b.index()]);
    };
    const auto turn = [&](OpId op) { return turn_of_[op.index()]; };
    std::set<std::string> dropped;  // stages with an edge that turns contradict
    for (const OrderEdge& edge : chunk.schedule.order_edges) {
      for_each_pair(edge.from, edge.to, [&](OpId from, OpId to) {
        if (turn(from) <= turn(to)) return to_.schedule.before(from, to, edge.stage, edge.why);
        if (!dropped.insert(edge.stage).second) return;
        to_.schedule.log.push_back(
            {edge.stage, edge.stage,
             fmt::format("the turns of the pipeline put '{}' before '{}' and the like",
                         to_.graph.op(to).name, to_.graph.op(from).name),
             true});
      });
    }
    for (const Hold& hold : chunk.schedule.holds) {
      for_each_pair(hold.from, hold.until, [&](OpId from, OpId until) {
        if (turn(from) <= turn(until)) to_.schedule.holds.push_back({from, until, hold.stage});
      });
    }
  }

  /// Turns follow each other on the compute lane.
  void add_turn_edges() {
    std::vector<std::pair<OpId, OpId>> computes(visits_.size());  // first and last of each turn
    for (const Chunk& chunk : chunks_) {
      for (size_t i = 0; i < chunk.ops.size(); ++i) {
        if (chunk.runs[i] != Runs::kEach) continue;
        for (const OpId op : chunk.ops[i]) {
          if (!op.valid() || to_.graph.def(op).lane != LaneKind::kCompute) continue;
          auto& [first, last] = computes[static_cast<size_t>(turn_of_[op.index()])];
          if (!first.valid() || op < first) first = op;
          if (!last.valid() || last < op) last = op;
        }
      }
    }
    std::vector<size_t> before, beside;  // turns that the next one follows, and that it is beside
    for (size_t s = 0; s < visits_.size(); ++s) {
      if (!computes[s].first.valid()) continue;
      for (const size_t b : before) {
        to_.schedule.before(computes[b].second, computes[s].first, "pipeline",
                            fmt::format("turn {} ({}) follows {} ({})", s + 1, visits_[s].text,
                                        b + 1, visits_[b].text));
      }
      if (visits_[s].beside) {
        beside.push_back(s);
        continue;
      }
      before = std::exchange(beside, {});
      before.push_back(s);
    }
  }

  /// Returns the name, or where another chunk has an op of this name, one that is free.
  std::string free_name(std::string name, size_t chunk) {
    if (chunks_.size() > 1 && !names_.insert(name).second) {
      name += fmt::format(".c{}", chunk);
      names_.insert(name);
    }
    return name;
  }

  size_t micros_ = 1;
  const std::vector<Visit> visits_;
  std::deque<Chunk> chunks_;
  std::map<std::string, TensorId> persistent_;  // parameters and states, by name
  std::map<std::string, TensorId> given_;       // SharedParam::Role::kGives, by parameter
  std::unordered_set<std::string> names_;       // of ops, where there are several chunks
  std::vector<int32_t> turn_of_;                // by op of the result: index in visits_
  ScheduledGraph to_;
};

}  // namespace

pipeline::Turns turns_in_order(int64_t micro_batches) {
  pipeline::Turns turns;
  for (int32_t m = 0; m < micro_batches; ++m) {
    turns.push_back({.work = pipeline::Work::kF, .micro = m});
    turns.push_back({.work = pipeline::Work::kB, .micro = m});
  }
  return turns;
}

UnrolledStep unroll(std::span<const ScheduledGraph> chunks, const pipeline::Turns& turns) {
  MOE_CHECK(!chunks.empty() && !turns.empty(), "unroll: {} chunks and {} turns, must be at least 1",
            chunks.size(), turns.size());
  return Unroller(chunks, turns).run();
}

}  // namespace moe
