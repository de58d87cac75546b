// Lancet's operator partition (MLSys 2024, section 5): cuts ranges of the forward around the MoE
// layers along the batch and pipelines them.
#include <cmath>
#include <map>
#include <unordered_map>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/passes/builtin.h"
#include "engine/passes/cut_range.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/range_search.h"

namespace moe {
namespace {

int64_t whole_option(const PassContext& context, const char* name) {
  const double value = std::get<double>(context.options.at(name));
  if (value != std::floor(value)) {
    throw user_error("{}.{} = {}: a whole number is allowed", context.stage, name, value);
  }
  return static_cast<int64_t>(value);
}

/// One call of the pass.
class Partition {
 public:
  Partition(const Graph& graph, const PassContext& context)
      : graph_(graph),
        context_(context),
        program_(forward_ops(graph)),
        batch_(context.model.batch_per_device),
        solver_(graph, program_, batch_) {
    for (size_t i = 0; i < program_.size(); ++i) {
      place_[program_[i]] = i;
      for (const TensorId t : graph.op(program_[i]).outputs) maker_[t] = i;
      const bool comm = graph.def(program_[i]).lane == LaneKind::kComm;
      transfers_.push_back(transfers_.back() + (comm ? 1 : 0));
    }
  }

  Graph run() {
    const std::vector<Layer> layers = moe_layers();
    if (layers.empty()) {
      log("partition", "no MoE layer, nothing to cut");
      return graph_;
    }
    const int64_t before = whole_option(context_, "before"),
                  after = whole_option(context_, "after");
    if ((before < 0) != (after < 0)) {
      throw user_error("{}.{} is chosen and {}.{} is given: give both or neither", context_.stage,
                       before < 0 ? "before" : "after", context_.stage,
                       before < 0 ? "after" : "before");
    }
    if (before < 0) {
      search(layers);
    } else {
      take_given(layers, before, after);
    }
    log("partition",
        fmt::format("{} ranges cut; {} P asked, {} evaluated; {} axis problems, {} "
                    "search nodes",
                    ranges_.size(), num_asked_, num_evaluated_, num_solved_, num_nodes_));
    RangeCutter cutter(graph_, program_, batch_, context_.model.seq);
    std::vector<std::vector<OpId>> made;
    for (const CutRange& range : ranges_) made.push_back(cutter.cut(range));
    Graph result = cutter.result(ranges_, made);
    if (before >= 0) return result;
    // The sum of the ranges' times misses what overlaps across their borders.
    const Nanoseconds whole_ns = pipeline_ns(graph_, program_, context_.cost);
    const Nanoseconds cut_ns = pipeline_ns(result, forward_ops(result), context_.cost);
    log("partition",
        fmt::format("forward {:.3f} ms, was {:.3f} ms", to_ms(cut_ns), to_ms(whole_ns)));
    if (cut_ns <= whole_ns) return result;
    log("partition", "undone: the forward would be longer");
    return graph_;
  }

 private:
  /// From dispatch to combine: what a range without ops before or after holds.
  struct Layer {
    size_t begin, end;
  };

  static std::vector<OpId> forward_ops(const Graph& graph) {
    std::vector<OpId> ops;
    for (size_t i = 0; i < graph.num_ops(); ++i) {
      const OpId id(static_cast<int64_t>(i));
      if (!graph.removed(id) && graph.op(id).phase == Phase::kForward) ops.push_back(id);
    }
    return ops;
  }

  void log(const std::string& op, std::string why) const {
    context_.log->push_back({op, context_.stage, std::move(why)});
  }

  std::vector<Layer> moe_layers() const {
    std::vector<Layer> layers;
    for (size_t i = 0; i < program_.size(); ++i) {
      if (is_kind(graph_, program_[i], "dispatch")) layers.push_back({i, 0});
      if (is_kind(graph_, program_[i], "combine") && !layers.empty()) layers.back().end = i + 1;
    }
    std::erase_if(layers, [](const Layer& layer) { return layer.end == 0; });
    return layers;
  }

  std::vector<int64_t> allowed_parts() const {
    const int64_t given = whole_option(context_, "parts");
    const int64_t most = std::min(whole_option(context_, "max_parts"), batch_);
    std::vector<int64_t> parts;
    if (given > 1) {
      parts.push_back(given);
    } else if (given == 0) {
      for (int64_t k = 2; k <= most; ++k) parts.push_back(k);
    }
    return parts;
  }

  // --- given ranges

  void take_given(const std::vector<Layer>& layers, int64_t before, int64_t after) {
    size_t taken = 0;  // ops that the range before took
    for (const Layer& layer : layers) {
      const auto more_before = static_cast<size_t>(before), more_after = static_cast<size_t>(after);
      if (more_before > layer.begin || layer.end + more_after > program_.size()) {
        throw user_error(
            "{}.before = {}, after = {}: the program has {} ops before and {} after "
            "the layer of '{}'",
            context_.stage, before, after, layer.begin, program_.size() - layer.end,
            name(layer.begin));
      }
      const size_t begin = layer.begin - more_before, end = layer.end + more_after;
      if (begin < taken) {
        throw user_error("{}.before = {}, after = {}: the ranges of two MoE layers meet at op '{}'",
                         context_.stage, before, after, name(begin));
      }
      taken = end;
      take_best(begin, end);
    }
  }

  void take_best(size_t begin, size_t end) {
    std::optional<CutRange> best;
    Nanoseconds best_ns = 0;
    for (const int64_t parts : allowed_parts()) {
      CutRange range{begin, end, parts, solve(begin, end, parts)};
      if (!range.axes.found) {
        throw user_error("stage '{}': ops '{}' to '{}' cannot be cut into {} parts: {}",
                         context_.stage, name(begin), name(end - 1), parts, range.axes.why);
      }
      const Nanoseconds ns = evaluate(range);
      if (!best || ns < best_ns) {
        best = std::move(range);
        best_ns = ns;
      }
    }
    if (best) take(std::move(*best), best_ns);
  }

  // --- the dynamic programme

  void search(const std::vector<Layer>& layers) {
    std::vector<Nanoseconds> ns;
    Nanoseconds total = 0;
    for (const OpId op : program_) total += ns.emplace_back(context_.cost.op_ns(graph_, op));
    const auto interval = static_cast<double>(total) / static_cast<double>(layers.size());
    const int64_t groups = whole_option(context_, "groups");
    const double gamma = groups == 0 ? 0 : interval / static_cast<double>(groups);
    const double iota = interval * std::get<double>(context_.options.at("max_range")) + gamma;
    std::vector<bool> alone;
    for (const OpId op : program_) {
      const OpDef& def = graph_.def(op);
      alone.push_back(def.axes == nullptr || def.axes(graph_, graph_.op(op)).empty());
    }
    ends_ = group_ends(ns, static_cast<Nanoseconds>(gamma), alone);
    classify();
    const auto furthest = [&](size_t begin) {
      size_t end = begin;
      double length = 0;
      for (; end < ends_.size(); ++end) {
        for (size_t i = first_op(end); i < ends_[end]; ++i) length += static_cast<double>(ns[i]);
        if (end > begin && length > iota) break;
      }
      return end;
    };
    const auto has_transfer = [this](size_t begin, size_t end) {
      return transfers_[ends_[end - 1]] > transfers_[first_op(begin)];
    };
    const auto ns_of = [this](size_t begin, size_t end, int64_t parts) {
      return range_ns(first_op(begin), ends_[end - 1], parts);
    };
    const RangeResult chosen =
        choose_ranges({ends_.size(), furthest, allowed_parts(), has_transfer, ns_of});
    num_asked_ = chosen.num_asked;
    for (const RangeChoice& c : chosen.ranges) {
      if (c.parts == 1) continue;
      const size_t begin = first_op(c.begin), end = ends_[c.end - 1];
      take({begin, end, c.parts, solve(begin, end, c.parts)}, *range_ns(begin, end, c.parts));
    }
    log("partition", fmt::format("{} groups of at least {:.3f} ms, ranges of at most {:.3f} ms",
                                 ends_.size(), gamma / 1e6, iota / 1e6));
  }

  size_t first_op(size_t group) const { return group == 0 ? 0 : ends_[group - 1]; }

  /// Numbers the ops by what decides their times; layers that are alike then share their P.
  void classify() {
    std::unordered_map<std::string, int32_t> numbers;
    for (const OpId op : program_) {
      const auto next = static_cast<int32_t>(numbers.size());
      classes_.push_back(numbers.try_emplace(op_signature(graph_, op), next).first->second);
    }
    read_until_.assign(program_.size(), 0);
    for (size_t i = 0; i < graph_.num_ops(); ++i) {
      const OpId reader(static_cast<int64_t>(i));
      if (graph_.removed(reader)) continue;
      const auto at = place_.find(reader);
      for (const TensorId t : graph_.op(reader).inputs) {
        const auto made = maker_.find(t);
        if (made == maker_.end()) continue;
        size_t& until = read_until_[made->second];
        until = std::max(until, at == place_.end() ? program_.size() : at->second);
      }
    }
  }

  /// Two ranges with equal keys take equally long: the same ops, wired alike, whose results are
  /// read outside alike.
  std::vector<int32_t> key_of(size_t begin, size_t end, int64_t parts) const {
    std::vector<int32_t> key{static_cast<int32_t>(parts)};
    for (size_t i = begin; i < end; ++i) {
      const Op& op = graph_.op(program_[i]);
      key.push_back(classes_[i]);
      key.push_back(read_until_[i] >= end ? 1 : 0);
      for (const TensorId t : op.inputs) {
        const auto made = maker_.find(t);
        const bool inside = made != maker_.end() && made->second >= begin;
        key.push_back(inside ? static_cast<int32_t>(made->second - begin) : -1);
      }
    }
    return key;
  }

  std::optional<Nanoseconds> range_ns(size_t begin, size_t end, int64_t parts) {
    const auto [at, fresh] = known_.try_emplace(key_of(begin, end, parts));
    if (!fresh) return at->second;
    if (parts == 1) {
      at->second =
          pipeline_ns(graph_, std::span(program_).subspan(begin, end - begin), context_.cost);
      return at->second;
    }
    const CutRange range{begin, end, parts, solve(begin, end, parts)};
    if (range.axes.found) at->second = evaluate(range);
    return at->second;
  }

  // --- both

  AxisSolution solve(size_t begin, size_t end, int64_t parts) {
    AxisSolution solution = solver_.solve(begin, end, parts);
    ++num_solved_;
    num_nodes_ += solution.nodes;
    return solution;
  }

  Nanoseconds evaluate(const CutRange& range) {
    constexpr size_t kMostTrialOps = 100'000;  // some 50 MB
    ++num_evaluated_;
    if (!trial_ || trial_->graph().num_ops() > kMostTrialOps) {
      trial_.emplace(graph_, program_, batch_, context_.model.seq);
    }
    const std::vector<OpId> made = trial_->cut(range);
    return pipeline_ns(trial_->graph(), made, context_.cost);
  }

  void take(CutRange range, Nanoseconds ns) {
    const Nanoseconds whole = pipeline_ns(
        graph_, std::span(program_).subspan(range.begin, range.end - range.begin), context_.cost);
    log(name(range.begin), fmt::format("to '{}' in {} parts: {:.3f} ms, was {:.3f} ms",
                                       name(range.end - 1), range.parts, to_ms(ns), to_ms(whole)));
    ranges_.push_back(std::move(range));
  }

  const std::string& name(size_t i) const { return graph_.op(program_[i]).name; }

  const Graph& graph_;
  const PassContext& context_;
  const std::vector<OpId> program_;  // forward ops
  const int64_t batch_;
  AxisSolver solver_;
  std::optional<RangeCutter> trial_;  // what is evaluated grows here
  std::vector<size_t> transfers_{0};  // comm ops before each op of the program, and in all
  std::map<OpId, size_t> place_;
  std::map<TensorId, size_t> maker_;
  std::vector<CutRange> ranges_;
  int64_t num_asked_ = 0, num_evaluated_ = 0, num_solved_ = 0, num_nodes_ = 0;
  // Of the search.
  std::vector<size_t> ends_;        // by group
  std::vector<int32_t> classes_;    // by op
  std::vector<size_t> read_until_;  // by op: its results' last reader; program_.size(): a later one
  std::map<std::vector<int32_t>, std::optional<Nanoseconds>> known_;
};

}  // namespace

Graph partition(Graph graph, const PassContext& context) {
  return Partition(graph, context).run();
}

}  // namespace moe
