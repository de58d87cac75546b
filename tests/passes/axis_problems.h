// Axis problems for the tests of the solver: fake ops whose ways to be cut are an attribute, random
// programs of them, and the plain definition of a solution, by which all can be enumerated.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/rng.h"
#include "engine/graph/op_def.h"
#include "engine/passes/partition/axes.h"

namespace moe::test {

/// "0 w > r t | 1 w > 1": an axis, or whole, rows, row ends (t), for every input and output.
inline std::vector<AxisTuple> parse_ways(const std::string& text) {
  std::vector<AxisTuple> ways(1);
  std::istringstream words(text);
  bool outputs = false;
  for (std::string word; words >> word;) {
    if (word == "|" || word == ">") {
      outputs = word == ">";
      if (!outputs) ways.emplace_back();
      continue;
    }
    const int axis = word == "w"   ? kWhole
                     : word == "r" ? kRows
                     : word == "t" ? kRowEnds
                                   : std::stoi(word);
    (outputs ? ways.back().outputs : ways.back().inputs).push_back(axis);
  }
  return ways;
}

inline std::string text_of(const std::vector<AxisTuple>& ways) {
  std::string text;
  const auto add = [&text](const std::vector<int>& axes) {
    for (const int axis : axes) {
      text += axis >= 0 ? std::to_string(axis) + " " : std::string(1, "wrt"[-axis - 1]) + " ";
    }
  };
  for (const AxisTuple& way : ways) {
    if (!text.empty()) text += "| ";
    add(way.inputs);
    text += "> ";
    add(way.outputs);
  }
  return text;
}

inline std::vector<AxisTuple> fake_axes(const Graph&, const Op& op) {
  const std::string ways = attr_string(op, "ways");
  return ways.empty() ? std::vector<AxisTuple>() : parse_ways(ways);
}

/// Outputs of the shapes in attr shapes, as "4 8 | 32".
inline std::vector<TensorSpec> fake_infer(const Graph&, const Op& op) {
  std::vector<TensorSpec> specs(1);
  std::istringstream words(attr_string(op, "shapes"));
  for (std::string word; words >> word;) {
    if (word == "|") {
      specs.emplace_back();
    } else {
      specs.back().shape.push_back(std::stoi(word));
    }
  }
  return specs;
}

/// cut and gate take their ways from attr ways, none when it is empty; stuck has no rule.
inline const OpTable& axis_ops() {
  const auto def = [](const char* name, bool rule) {
    OpDef made;
    made.name = name;
    made.doc = "fake";
    made.inputs = {{"x", Role::kAny, true, 8}};
    made.outputs = {{"y", Role::kAny, true, 8}};
    made.infer = fake_infer;
    if (rule) made.axes = fake_axes;
    if (made.name == std::string_view("gate")) made.moe = MoeOp::kGate;
    return made;
  };
  static const OpDef cut = def("cut", true), gate = def("gate", true), stuck = def("stuck", false);
  static const OpTable table({&cut, &gate, &stuck});
  return table;
}

inline std::vector<OpId> all_ops(const Graph& graph) {
  std::vector<OpId> ops;
  for (size_t i = 0; i < graph.num_ops(); ++i) ops.emplace_back(static_cast<int64_t>(i));
  return ops;
}

struct AxisProblem {
  const Graph& graph;
  std::span<const OpId> ops;  // contiguous ops of the program, in program order
  int64_t batch;              // B, the samples of this rank
  int64_t parts;              // 1 or more
};

inline AxisSolution solve_axes(const AxisProblem& problem) {
  return AxisSolver(problem.graph, problem.ops, problem.batch)
      .solve(0, problem.ops.size(), problem.parts);
}

inline AxisProblem range_of(const AxisProblem& whole, size_t begin, size_t end) {
  return {whole.graph, whole.ops.subspan(begin, end - begin), whole.batch, whole.parts};
}

/// A candidate solution: the value of each tensor that an op of the range has, if it has only one.
using Cuts = std::vector<std::optional<int>>;

/// The definition, read off the comments of AxisSolver: one value per tensor, long enough axes that
/// are cut at the same places, and what may become of a tensor at the border.
class AxisRules {
 public:
  explicit AxisRules(const AxisProblem& problem)
      : problem_(problem), producers_(problem.graph.producers()) {
    for (const OpId id : problem.ops) {
      const OpDef& def = problem.graph.def(id);
      ways_.push_back(def.axes == nullptr ? std::vector<AxisTuple>()
                                          : def.axes(problem.graph, problem.graph.op(id)));
      for (const TensorId t : problem.graph.op(id).outputs) inside_.insert(t);
    }
  }

  const std::vector<std::vector<AxisTuple>>& ways() const { return ways_; }

  bool allowed(TensorId t, int axis) const {
    const Graph& graph = problem_.graph;
    if (axis >= 0) return graph.tensor(t).shape.at(static_cast<size_t>(axis)) >= problem_.parts;
    const OpId producer = producers_[t.index()];
    if (axis == kWhole || inside_.contains(t)) return true;
    if (axis == kRows) return producer.valid();
    return producer.valid() && graph.def(producer).name == std::string("gate");
  }

  /// (tensor, axis) of every place of op i in this way.
  std::vector<std::pair<TensorId, int>> places(size_t i, const AxisTuple& way) const {
    const Op& op = problem_.graph.op(problem_.ops[i]);
    std::vector<std::pair<TensorId, int>> found;
    for (size_t j = 0; j < op.inputs.size(); ++j) {
      if (op.inputs[j].valid()) found.emplace_back(op.inputs[j], way.inputs[j]);
    }
    for (size_t j = 0; j < op.outputs.size(); ++j) {
      found.emplace_back(op.outputs[j], way.outputs[j]);
    }
    return found;
  }

  bool same_places(size_t i, const AxisTuple& way) const {
    std::set<int64_t> lengths;
    for (const auto& [t, axis] : places(i, way)) {
      if (axis >= 0) lengths.insert(problem_.graph.tensor(t).shape[static_cast<size_t>(axis)]);
    }
    return lengths.size() <= 1 || std::all_of(lengths.begin(), lengths.end(), [this](int64_t n) {
             return n % problem_.batch == 0;
           });
  }

  /// The cuts that these ways (one per op) give; none when they contradict each other or the rules.
  std::optional<Cuts> cuts(const std::vector<size_t>& chosen) const {
    Cuts cuts(problem_.graph.tensors().size());
    for (size_t i = 0; i < chosen.size(); ++i) {
      const AxisTuple& way = ways_[i][chosen[i]];
      if (!same_places(i, way)) return std::nullopt;
      for (const auto& [t, axis] : places(i, way)) {
        std::optional<int>& cut = cuts[t.index()];
        if (cut.value_or(axis) != axis || !allowed(t, axis)) return std::nullopt;
        cut = axis;
      }
    }
    return cuts;
  }

 private:
  AxisProblem problem_;
  std::vector<OpId> producers_;
  std::vector<std::vector<AxisTuple>> ways_;
  std::set<TensorId> inside_;
};

/// Calls visit(cuts) for every solution, in the order of preference, until it returns false.
template <class Visit>
void for_each_solution(const AxisProblem& problem, const Visit& visit) {
  if (problem.batch < problem.parts) return;
  const AxisRules rules(problem);
  for (const std::vector<AxisTuple>& ways : rules.ways()) {
    if (ways.empty()) return;
  }
  std::vector<size_t> chosen(problem.ops.size());
  while (true) {
    if (const std::optional<Cuts> cuts = rules.cuts(chosen); cuts && !visit(*cuts)) return;
    size_t i = chosen.size();
    while (i > 0 && ++chosen[i - 1] == rules.ways()[i - 1].size()) chosen[--i] = 0;
    if (i == 0) return;
  }
}

inline std::optional<Cuts> first_solution(const AxisProblem& problem) {
  std::optional<Cuts> first;
  for_each_solution(problem, [&first](const Cuts& cuts) {
    first = cuts;
    return false;
  });
  return first;
}

/// The cuts as AxisSolution::axis says them.
inline std::vector<int> axis_of(const Cuts& cuts) {
  std::vector<int> axis;
  for (const std::optional<int>& cut : cuts) axis.push_back(cut.value_or(kWhole));
  return axis;
}

struct RandomProgram {
  Graph graph;
  std::vector<OpId> ops;
  int64_t batch = 4;
  int64_t parts = 2;
  AxisProblem problem() const { return {graph, ops, batch, parts}; }
};

/// One way to cut an op: most of its tensors along `theme`.
inline AxisTuple random_way(Rng& rng, int theme, const std::vector<TensorId>& inputs,
                            size_t num_outputs) {
  const auto axis = [&rng, theme] {
    const int64_t draw = rng.below(20);
    if (draw < 14) return theme;
    if (draw < 17) return kWhole;
    return draw == 17 ? static_cast<int>(rng.below(3)) : draw == 18 ? kRows : kRowEnds;
  };
  AxisTuple way;
  for (const TensorId t : inputs) way.inputs.push_back(t.valid() ? axis() : kWhole);
  for (size_t i = 0; i < num_outputs; ++i) way.outputs.push_back(axis());
  if (way.outputs[0] == kWhole) way.outputs[0] = theme;
  return way;
}

inline std::string random_shape(Rng& rng) {
  constexpr int kLengths[] = {4, 4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 3, 6};
  std::string shape;
  for (int i = 0; i < 3; ++i) shape += std::to_string(kLengths[rng.below(13)]) + " ";
  return shape;
}

/// `num_ops` ops in program order; shared tensors, several readers, absent inputs and gates.
inline RandomProgram random_program(uint64_t seed, int64_t num_ops) {
  Rng rng(seed);
  RandomProgram program{Graph(axis_ops()), {}, 4, 2 + rng.below(3)};
  Graph& graph = program.graph;
  std::vector<TensorId> values;
  for (const TensorKind kind : {TensorKind::kInput, TensorKind::kParam}) {
    values.push_back(graph.add_tensor({name_of(kind), {4, 8, 8}, DType::kF32, kind}));
  }
  const int64_t common = rng.below(3);
  for (int64_t i = 0; i < num_ops; ++i) {
    std::vector<TensorId> inputs;
    for (int64_t n = 1 + rng.below(3); n > 0; --n) {
      const auto recent = std::min<int64_t>(static_cast<int64_t>(values.size()), 5);
      const TensorId t = values[values.size() - 1 - static_cast<size_t>(rng.below(recent))];
      inputs.push_back(rng.below(8) == 0 ? TensorId() : t);
    }
    const auto num_outputs = static_cast<size_t>(1 + rng.below(2));
    std::string shapes = random_shape(rng);
    if (num_outputs == 2) shapes += "| " + random_shape(rng);
    std::vector<AxisTuple> ways;
    for (int64_t n = 2 + rng.below(3); n > 0; --n) {
      const auto theme = static_cast<int>(rng.below(2) == 0 ? common : rng.below(3));
      ways.push_back(random_way(rng, theme, inputs, num_outputs));
    }
    const OpId id = graph.add_op(rng.below(4) == 0 ? "gate" : "cut", fmt::format("op{}", i), inputs,
                                 {{"ways", text_of(ways)}, {"shapes", shapes}});
    program.ops.push_back(id);
    for (const TensorId t : graph.op(id).outputs) values.push_back(t);
  }
  return program;
}

}  // namespace moe::test
