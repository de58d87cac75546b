// Lancet's operator partition (MLSys 2024, section 5): cuts ranges of the forward around the MoE
// layers along the batch and pipelines them.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/index.h"
#include "engine/base/limits.h"
#include "engine/base/stop.h"
#include "engine/cost/cost_model.h"
#include "engine/graph/op_def.h"
#include "engine/ops/rules.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/partition/axes.h"
#include "engine/passes/partition/cut_range.h"
#include "engine/passes/partition/range_search.h"
#include "engine/passes/pass.h"

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

/// P(i,n,k) of Lancet's dynamic programme: the time that a range of the forward takes uncut or in k
/// parts. A range is really cut and timed; equal ranges (the same layer, again and again) are timed
/// once. Which ranges to cut is decided in range_search.h.
class RangeTimes {
 public:
  /// program: the forward ops in program order. batch: samples per rank. seq: tokens of a sample
  /// per rank.
  /// Requires: graph, program and cost outlive this object.
  RangeTimes(const Graph& graph, std::span<const OpId> program, int64_t batch, int64_t seq,
             const CostModel& cost)
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
    for (const OpId reader : graph.op_ids()) {
      const int64_t at = place[reader.index()];
      for (const TensorId t : graph.op(reader).inputs) {
        if (!t.valid()) continue;
        Read read = made[t.index()];
        read.tensor = t;
        if (at >= 0) reads_[index(at)].push_back(read);
        if (read.place < 0) continue;
        size_t& until = read_until_[index(read.place)];
        until = std::max(until, at < 0 ? program.size() : index(at));
      }
    }
  }

  /// Returns the time of ops [begin, end) in `parts` parts; nullopt when that cut is impossible.
  std::optional<Nanoseconds> ns(size_t begin, size_t end, int64_t parts) {
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

  /// Returns the cut; its field axes.found states whether one exists.
  CutRange cut(size_t begin, size_t end, int64_t parts) {
    CutRange range{begin, end, parts, solver_.solve(begin, end, parts)};
    ++num_solved_;
    num_nodes_ += range.axes.nodes;
    return range;
  }

  /// Returns whether ops [begin, end) contain a transfer.
  bool has_transfer(size_t begin, size_t end) const { return transfers_[end] > transfers_[begin]; }

  /// Returns the statistics as text, such as "84 evaluated; 99 axis problems, 36 search nodes".
  std::string counts() const {
    return fmt::format("{} evaluated; {} axis problems, {} search nodes", num_evaluated_,
                       num_solved_, num_nodes_);
  }

 private:
  using Key = std::array<uint64_t, 2>;
  /// The key of a range holds the number of parts and, for every op, its class, whether ops outside
  /// read its outputs, and its inputs: for an input made within the range the op and the output
  /// number, for an input from outside its number in the order of first use.
  Key key_of(size_t begin, size_t end, int64_t parts) const {
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

  /// An input of an op: the number in the program of the op that made it (-1 when made elsewhere),
  /// the number of that op's output, and the tensor.
  struct Read {
    int64_t place;
    size_t output;
    TensorId tensor;
  };

  const Graph& graph_;
  std::span<const OpId> program_;
  const CostModel& cost_;
  AxisSolver solver_;
  RangeCutter trial_;
  // All indexed by number in the program.
  std::vector<size_t> classes_;           // ops of one class take equally long
  std::vector<std::vector<Read>> reads_;  // inputs that exist
  /// Number of the last reader of the op's outputs; the size of the program when a reader is
  /// elsewhere.
  std::vector<size_t> read_until_;
  /// Number of comm ops before this op; one more entry at the end.
  std::vector<size_t> transfers_;
  std::map<Key, std::optional<Nanoseconds>> known_;
  int64_t num_evaluated_ = 0, num_solved_ = 0, num_nodes_ = 0;
};

int64_t integer_value(const PassContext& context, const char* name) {
  const double value = std::get<double>(context.options.at(name));
  if (value != std::floor(value)) {
    throw user_error("{}.{} = {}: a whole number is allowed", context.stage, name, value);
  }
  return static_cast<int64_t>(value);
}

std::vector<OpId> forward_ops(const Graph& graph) {
  std::vector<OpId> ops;
  for (const OpId id : graph.op_ids()) {
    if (graph.op(id).phase == Phase::kForward) ops.push_back(id);
  }
  return ops;
}

/// The state of one call of the pass.
class Partition {
 public:
  Partition(const Graph& graph, const PassContext& context)
      : graph_(graph),
        context_(context),
        program_(forward_ops(graph)),
        batch_(context.model.batch_per_device),
        times_(graph, program_, batch_, context.model.tokens_per_rank() / batch_, context.cost) {}

  Graph run() {
    find_layers();
    if (layers_.empty()) {
      context_.skip("there is no MoE layer, so there is nothing to cut");
      return graph_;
    }
    choose_allowed_parts();
    if (batch_ == 1 && integer_value(context_, "max_parts") > 1) {
      context_.skip(
          "a rank has one sequence (batch_per_device = 1), and a batch is cut between sequences; "
          "give at least 2");
      return graph_;
    }
    const int64_t before = integer_value(context_, "before");
    const int64_t after = integer_value(context_, "after");
    if ((before < 0) != (after < 0)) {
      throw user_error(
          "{}.before = {}, after = {}: give the number of ops before dispatch and the number after "
          "combine, 0 or more each, or give neither",
          context_.stage, before, after);
    }
    if (before >= 0) {
      take_given(before, after);
      return rewritten();
    }
    search();
    Graph result = rewritten();
    // The sum of the ranges' times would miss the overlap across their borders.
    const Nanoseconds whole_ns = pipeline_ns(graph_, program_, context_.cost);
    const Nanoseconds cut_ns = pipeline_ns(result, forward_ops(result), context_.cost);
    log("partition",
        fmt::format("forward {:.3f} ms, was {:.3f} ms", to_ms(cut_ns), to_ms(whole_ns)));
    if (cut_ns <= whole_ns) {
      say_uncut();
      return result;
    }
    context_.skip(fmt::format("undone: the forward would take {:.3f} ms in parts, {:.3f} ms uncut",
                              to_ms(cut_ns), to_ms(whole_ns)));
    return graph_;
  }

 private:
  /// The ops of an MoE layer from dispatch to combine: the range when `before` and `after` are 0.
  struct Layer {
    size_t begin, end;
  };

  void log(const std::string& op, std::string why) const {
    context_.log->push_back({op, context_.stage, std::move(why)});
  }

  const std::string& name(size_t i) const { return graph_.op(program_[i]).name; }

  void find_layers() {
    for (size_t i = 0; i < program_.size(); ++i) {
      if (is(graph_, program_[i], MoeOp::kDispatch)) layers_.push_back({i, 0});
      if (is(graph_, program_[i], MoeOp::kCombine) && !layers_.empty()) layers_.back().end = i + 1;
    }
    std::erase_if(layers_, [](const Layer& layer) { return layer.end == 0; });
  }

  void choose_allowed_parts() {
    const int64_t given = integer_value(context_, "parts");
    if (given > batch_) {
      throw user_error("{}.parts = {}: 0 to {}, the samples of a rank's batch, is allowed",
                       context_.stage, given, batch_);
    }
    const int64_t most = std::min(integer_value(context_, "max_parts"), batch_);
    const int64_t first = given > 0 ? given : 2, last = given > 0 ? given : most;
    for (int64_t k = std::max<int64_t>(first, 2); k <= last; ++k) allowed_parts_.push_back(k);
  }

  void take_given(int64_t before, int64_t after) {
    size_t taken = 0;  // number of ops up to the end of the last range
    for (const Layer& layer : layers_) {
      const auto more_before = static_cast<size_t>(before), more_after = static_cast<size_t>(after);
      if (more_before > layer.begin) {
        throw user_error("{}.before = {}: the program has only {} ops before op '{}'",
                         context_.stage, before, layer.begin, name(layer.begin));
      }
      const size_t begin = layer.begin - more_before;
      const size_t end = std::min(layer.end + more_after, first_whole(layer.end));
      if (begin < taken) {
        throw user_error(
            "{}.before = {}, after = {}: the ranges of two MoE layers both contain op '{}'",
            context_.stage, before, after, name(begin));
      }
      taken = end;
      take_best(begin, end);
    }
  }

  /// Returns the first op from `from` on that no range can contain (the loss), or the program's
  /// end.
  size_t first_whole(size_t from) const {
    while (from < program_.size() && graph_.def(program_[from]).axes != nullptr) ++from;
    return from;
  }

  void take_best(size_t begin, size_t end) {
    std::optional<CutRange> best;
    Nanoseconds best_ns = 0;
    for (const int64_t parts : allowed_parts_) {
      CutRange range = times_.cut(begin, end, parts);
      if (!range.axes.found) {
        throw user_error("stage '{}': ops '{}' to '{}' cannot be cut into {} parts: {}",
                         context_.stage, name(begin), name(end - 1), parts, range.axes.why);
      }
      const Nanoseconds ns = *times_.ns(begin, end, parts);
      if (best && ns >= best_ns) continue;
      best = std::move(range);
      best_ns = ns;
    }
    if (best) take(std::move(*best));
  }

  void search() {
    std::vector<Nanoseconds> ns;
    std::vector<bool> alone;
    double total = 0;
    for (const OpId op : program_) {
      total += static_cast<double>(ns.emplace_back(context_.cost.op_ns(graph_, op)));
      const OpDef& def = graph_.def(op);
      alone.push_back(def.axes == nullptr || def.axes(graph_, graph_.op(op)).empty());
    }
    checked_ns(total, [] { return "the forward, op by op,"; });
    const double interval = total / static_cast<double>(layers_.size());
    const int64_t groups = integer_value(context_, "groups");
    const double gamma = groups == 0 ? 0 : interval / static_cast<double>(groups);
    const double iota = interval * std::get<double>(context_.options.at("max_range")) + gamma;
    const std::vector<size_t> ends = group_ends(ns, static_cast<Nanoseconds>(gamma), alone);
    const auto first = [&ends](size_t group) { return group == 0 ? 0 : ends[group - 1]; };
    const auto furthest = [&](size_t begin) {
      size_t end = begin;
      for (double length = 0; end < ends.size(); ++end) {
        for (size_t i = first(end); i < ends[end]; ++i) length += static_cast<double>(ns[i]);
        if (end > begin && length > iota) break;
      }
      return end;
    };
    const RangeResult chosen = choose_ranges(
        {ends.size(), furthest, allowed_parts_,
         [&](size_t begin, size_t end) { return times_.has_transfer(first(begin), ends[end - 1]); },
         [&](size_t begin, size_t end, int64_t parts) {
           return times_.ns(first(begin), ends[end - 1], parts);
         }});
    for (const RangeChoice& c : chosen.ranges) {
      if (c.parts > 1) take(times_.cut(first(c.begin), ends[c.end - 1], c.parts));
    }
    log("partition", fmt::format("{} groups of at least {:.3f} ms, ranges of at most {:.3f} ms",
                                 ends.size(), gamma / 1e6, iota / 1e6));
    log("partition", fmt::format("{} ranges cut; {} P asked, {}", ranges_.size(), chosen.num_asked,
                                 times_.counts()));
  }

  /// Reports the MoE layers that no range contains, when the options request parts or when nothing
  /// is cut: their number, and why the first of them is not cut.
  void say_uncut() {
    if (allowed_parts_.empty()) return;
    if (!ranges_.empty() && integer_value(context_, "parts") == 0) return;
    const auto whole = [&](const Layer& layer) {
      return std::none_of(ranges_.begin(), ranges_.end(), [&](const CutRange& range) {
        return range.begin < layer.end && layer.begin < range.end;
      });
    };
    const auto count = std::count_if(layers_.begin(), layers_.end(), whole);
    if (count == 0) return;
    const Layer& first = *std::find_if(layers_.begin(), layers_.end(), whole);
    context_.skip(fmt::format("{} of {} MoE layers stay whole{}: {}", count, layers_.size(),
                              count > 1 ? "; for the first of them" : "", why_uncut(first)));
  }

  std::string why_uncut(const Layer& layer) {
    for (size_t i = layer.begin; i < layer.end; ++i) {
      const Op& op = graph_.op(program_[i]);
      if (op.part < 0 || ops::is_row_part(graph_, op)) continue;
      return fmt::format("op '{}' is already one part of a cut; an op can be cut only once",
                         name(i));
    }
    const int64_t parts = allowed_parts_.front();
    const size_t begin = begin_of_range(layer, parts);
    const CutRange range = times_.cut(begin, layer.end, parts);
    if (!range.axes.found) return range.axes.why;
    return fmt::format(
        "no range around the layer takes less time in {}; from '{}' to '{}' {:.3f} ms in {} parts, "
        "{:.3f} ms uncut",
        allowed_parts_.size() > 1 ? "any number of parts" : fmt::format("{} parts", parts),
        name(begin), name(layer.end - 1), to_ms(*times_.ns(begin, layer.end, parts)), parts,
        to_ms(*times_.ns(begin, layer.end, 1)));
  }

  /// Returns the begin of the shortest range up to the layer's combine that can be cut: the
  /// dispatch, or an op before it where the range needs what counts the rows. If there is none,
  /// returns the dispatch.
  size_t begin_of_range(const Layer& layer, int64_t parts) {
    for (size_t begin = layer.begin;; --begin) {
      if (times_.cut(begin, layer.end, parts).axes.found) return begin;
      if (begin == 0 || is(graph_, program_[begin - 1], MoeOp::kCombine)) return layer.begin;
    }
  }

  void take(CutRange range) {
    log(name(range.begin),
        fmt::format("to '{}' in {} parts: {:.3f} ms, was {:.3f} ms", name(range.end - 1),
                    range.parts, to_ms(*times_.ns(range.begin, range.end, range.parts)),
                    to_ms(*times_.ns(range.begin, range.end, 1))));
    ranges_.push_back(std::move(range));
  }

  Graph rewritten() const {
    RangeCutter cutter(graph_, program_, batch_, context_.model.tokens_per_rank() / batch_);
    std::vector<std::vector<OpId>> made;
    for (const CutRange& range : ranges_) made.push_back(cutter.cut(range));
    return by_source(cutter.result(ranges_, made));
  }

  /// Makes all rows that a source has for an expert go to one device in the placed layers that are
  /// cut, so that the rows of a part of the batch are next to each other.
  Graph by_source(Graph graph) const {
    std::set<int32_t> cut;
    for (const Op& op : graph.ops()) {
      if (ops::is_part(op) && op.attrs.contains("residents")) cut.insert(op.layer);
    }
    for (const OpId id : graph.op_ids()) {
      Op& op = graph.op(id);
      if (cut.contains(op.layer) && op.attrs.contains("residents")) {
        op.attrs["by_source"] = int64_t{1};
      }
    }
    for (const int32_t layer : cut) {
      log("partition", fmt::format("block {}: all rows that a rank has for an expert go to one of "
                                   "the expert's devices, in every step",
                                   layer));
    }
    return graph;
  }

  const Graph& graph_;
  const PassContext& context_;
  const std::vector<OpId> program_;
  const int64_t batch_;
  RangeTimes times_;
  std::vector<Layer> layers_;
  std::vector<int64_t> allowed_parts_;
  std::vector<CutRange> ranges_;
};

}  // namespace

/// Lancet's operator partition (MLSys 2024, section 5): cuts ranges of the forward around the MoE
/// layers into parts of the batch and pipelines them. The ranges and the numbers of parts are given
/// by options, or chosen by dynamic programming over groups of ops. The backward is not cut. Gates
/// of batch scope are never cut. Throws UserError naming the op that cannot be cut when a given
/// range cannot be cut.
Graph partition(Graph graph, const PassContext& context) {
  return Partition(graph, context).run();
}

}  // namespace moe
