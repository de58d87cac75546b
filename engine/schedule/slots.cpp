#include "engine/schedule/slots.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/schedule/lifetime.h"

namespace moe {
namespace {

/// What an op fills, and the ops that read it, also as part of the whole storage.
struct Fill {
  OpId op;
  std::set<OpId> readers;
};

/// Returns the fills of each range of the storage of a parameter, by group and first element.
/// Ranges are equal or apart, since each micro-batch fills the same ones.
std::map<std::pair<size_t, int64_t>, std::vector<Fill>> fills_of(const Graph& graph,
                                                                 const JoinedTensors& joined) {
  std::map<std::pair<size_t, int64_t>, std::vector<Fill>> fills;
  std::vector<std::vector<OpId>> readers;
  std::vector<OpId> producers;
  for (size_t g = 0; g < joined.groups.size(); ++g) {
    const std::vector<TensorId>& members = joined.groups[g].members;
    if (std::none_of(members.begin(), members.end(),
                     [&](TensorId t) { return is_persistent(graph, t); })) {
      continue;
    }
    if (producers.empty()) {
      readers = TensorUses(graph).readers;
      producers = graph.producers();
    }
    for (const TensorId t : members) {
      const OpId maker = producers[t.index()];
      if (!maker.valid() || is_view(graph, graph.op(maker))) continue;
      Fill fill{maker, {}};
      std::vector<TensorId> open{t};
      while (!open.empty()) {
        const TensorId next = open.back();
        open.pop_back();
        for (const OpId reader : readers[next.index()]) {
          if (!is_view(graph, graph.op(reader))) {
            fill.readers.insert(reader);
            continue;
          }
          for (const TensorId out : graph.op(reader).outputs) open.push_back(out);
        }
      }
      fills[{g, joined.offset[t.index()]}].push_back(std::move(fill));
    }
  }
  return fills;
}

}  // namespace

void order_slots(const Graph& graph, Schedule& schedule, const StepTurns& turns) {
  const JoinedTensors joined(graph);
  // Of each turn: the first op of its pair, and the first and the last of its own.
  const size_t n = turns.turns.size();
  std::vector<int64_t> first(n + 1, -1), last(n + 1, -1), pair(n + 1);
  for (size_t i = 0; i < turns.turn_of.size(); ++i) {
    const auto turn = static_cast<size_t>(turns.turn_of[i]);
    if (first[turn] < 0) first[turn] = static_cast<int64_t>(i);
    last[turn] = static_cast<int64_t>(i);
  }
  for (size_t s = 0; s <= n; ++s) {
    pair[s] = s > 0 && s < n && turns.turns[s - 1].beside ? pair[s - 1] : static_cast<int64_t>(s);
  }
  const auto key = [&](OpId op) {
    const auto turn = static_cast<size_t>(turns.turn_of[op.index()]);
    const auto length = static_cast<double>(std::max<int64_t>(1, last[turn] - first[turn]));
    return std::pair(pair[turn], static_cast<double>(op.value - first[turn]) / length);
  };
  std::set<std::pair<OpId, OpId>> known;
  for (auto& [range, fills] : fills_of(graph, joined)) {
    std::sort(fills.begin(), fills.end(),
              [&](const Fill& a, const Fill& b) { return key(a.op) < key(b.op); });
    for (size_t i = 1; i < fills.size(); ++i) {
      for (const OpId reader : fills[i - 1].readers) {
        if (!known.emplace(reader, fills[i].op).second) continue;
        schedule.before(reader, fills[i].op, "pipeline", "micro-batches fill the same slots");
      }
    }
  }
}

void check_slots(const Graph& graph, const JoinedTensors& joined, const HappensBefore& hb) {
  std::vector<size_t> place(graph.num_ops());
  for (size_t i = 0; i < hb.serial().size(); ++i) place[hb.serial()[i].index()] = i;
  for (auto& [range, fills] : fills_of(graph, joined)) {
    std::sort(fills.begin(), fills.end(), [&](const Fill& a, const Fill& b) {
      return place[a.op.index()] < place[b.op.index()];
    });
    for (size_t i = 1; i < fills.size(); ++i) {
      for (const OpId reader : fills[i - 1].readers) {
        if (hb.before(reader, fills[i].op)) continue;
        throw run_error(
            "illegal schedule: op '{}' copies experts into slots whose experts op '{}' may still "
            "read, since no edge makes it run first",
            graph.op(fills[i].op).name, graph.op(reader).name);
      }
    }
  }
}

}  // namespace moe
