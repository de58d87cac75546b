#include "engine/passes/partition/range_times.h"

#include <algorithm>
#include <unordered_map>

#include "engine/base/stop.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

/// Two independent 64-bit hashes of a sequence of numbers: for a million ranges the probability of
/// a collision is about 2^-100.
class Hash2 {
 public:
  void add(uint64_t value) {
    for (size_t i = 0; i < 2; ++i) {
      uint64_t x = state_[i] ^ (value + kSeeds[i]);  // the final mixing step of splitmix64
      x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
      x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
      state_[i] = (x ^ (x >> 31)) + kSeeds[i];
    }
  }
  std::array<uint64_t, 2> value() const { return state_; }

 private:
  static constexpr uint64_t kSeeds[2] = {0x9e3779b97f4a7c15ull, 0xd1b54a32d192ed03ull};
  std::array<uint64_t, 2> state_ = {1, 2};
};

}  // namespace

RangeTimes::RangeTimes(const Graph& graph, std::span<const OpId> program, int64_t batch,
                       int64_t seq, const CostModel& cost)
    : graph_(graph),
      program_(program),
      cost_(cost),
      solver_(graph, program, batch),
      trial_(graph, program, batch, seq),
      reads_(program.size()),
      read_until_(program.size()),
      transfers_(program.size() + 1) {
  std::vector<Read> made(graph.tensors().size(), {-1, 0, TensorId()});
  std::vector<int64_t> place(graph.num_ops(), -1);
  std::unordered_map<std::string, size_t> numbers;
  for (size_t i = 0; i < program.size(); ++i) {
    const Op& op = graph.op(program[i]);
    place[program[i].index()] = static_cast<int64_t>(i);
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      made[op.outputs[o].index()] = {static_cast<int64_t>(i), o, op.outputs[o]};
    }
    classes_.push_back(
        numbers.try_emplace(op_signature(graph, program[i]), numbers.size()).first->second);
    transfers_[i + 1] = transfers_[i] + (graph.def(op).lane == LaneKind::kComm ? 1 : 0);
  }
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId reader(static_cast<int64_t>(i));
    if (graph.removed(reader)) continue;
    for (const TensorId t : graph.op(reader).inputs) {
      if (!t.valid()) continue;
      Read read = made[t.index()];
      read.tensor = t;
      if (place[i] >= 0) reads_[static_cast<size_t>(place[i])].push_back(read);
      if (read.place < 0) continue;
      size_t& until = read_until_[static_cast<size_t>(read.place)];
      until = std::max(until, place[i] < 0 ? program.size() : static_cast<size_t>(place[i]));
    }
  }
}

/// The key of a range holds the number of parts and, for every op, its class, whether ops outside
/// read its outputs, and its inputs: for an input made within the range the op and the output
/// number, for an input from outside its number in the order of first use.
RangeTimes::Key RangeTimes::key_of(size_t begin, size_t end, int64_t parts) const {
  Hash2 hash;
  hash.add(static_cast<uint64_t>(parts));
  std::vector<TensorId> outside;
  for (size_t i = begin; i < end; ++i) {
    hash.add(classes_[i] * 2 + (read_until_[i] >= end ? 1 : 0));
    for (const Read& read : reads_[i]) {
      if (read.place >= static_cast<int64_t>(begin)) {
        hash.add((static_cast<size_t>(read.place) - begin) * 64 + read.output);
        continue;
      }
      const auto at = std::find(outside.begin(), outside.end(), read.tensor);
      hash.add(~static_cast<uint64_t>(at - outside.begin()));
      if (at == outside.end()) outside.push_back(read.tensor);
    }
  }
  return hash.value();
}

CutRange RangeTimes::cut(size_t begin, size_t end, int64_t parts) {
  CutRange range{begin, end, parts, solver_.solve(begin, end, parts)};
  ++num_solved_;
  num_nodes_ += range.axes.nodes;
  return range;
}

std::optional<Nanoseconds> RangeTimes::ns(size_t begin, size_t end, int64_t parts) {
  check_stop();
  const auto [at, fresh] = known_.try_emplace(key_of(begin, end, parts));
  if (!fresh) return at->second;
  if (parts == 1) {
    at->second = pipeline_ns(graph_, program_.subspan(begin, end - begin), cost_);
    return at->second;
  }
  const CutRange range = cut(begin, end, parts);
  if (!range.axes.found) return std::nullopt;
  ++num_evaluated_;
  const std::vector<OpId> made = trial_.cut(range);
  at->second = pipeline_ns(trial_.graph(), made, cost_);
  trial_.forget();
  return at->second;
}

std::string RangeTimes::counts() const {
  return fmt::format("{} evaluated; {} axis problems, {} search nodes", num_evaluated_, num_solved_,
                     num_nodes_);
}

}  // namespace moe
