// The rules of real ops: a range that runs in parts, its inputs sliced by plain loops, gives slices
// of what it gives as a whole. Ways with rows or row ends need a cut that is not a slice: not here.
#include <catch2/catch.hpp>

#include "engine/model/model.h"
#include "engine/ops/ops.h"
#include "engine/routing/gate.h"
#include "tests/model/gpt2.h"
#include "tests/ops/small_graphs.h"
#include "tests/passes/axis_problems.h"

namespace moe {
namespace {

using test::AxisProblem;
using test::Interpreter;

/// A part of a tensor: entries [from, to) along an axis, or all of it where the axis is kWhole.
struct Slice {
  int axis = kWhole;
  int64_t from = 0, to = 0;

  Shape shape(Shape whole) const {
    if (axis >= 0) whole[static_cast<size_t>(axis)] = to - from;
    return whole;
  }
  template <class T>
  std::vector<T> of(const T* whole, const Shape& lengths) const {
    std::vector<T> part;
    int64_t inner = 1;
    const auto at = static_cast<size_t>(std::max(axis, 0));
    for (size_t i = at + 1; i < lengths.size(); ++i) inner *= lengths[i];
    for (int64_t i = 0; i < num_elements(lengths); ++i) {
      const int64_t entry = i / inner % lengths[at];
      if (axis < 0 || (entry >= from && entry < to)) part.push_back(whole[i]);
    }
    return part;
  }
};

/// A graph that ran as a whole, to be compared with its parts.
class Whole {
 public:
  Whole(Graph graph, int64_t batch, const char* gate = "switch")
      : graph_(std::move(graph)), batch_(batch), gate_(gate), run_(graph_) {
    run_.rank.gate = &builtin_gate(gate_);
    test::fill_inputs(graph_, run_, 4);
    run_.run();
  }

  const Graph& graph() const { return graph_; }
  int64_t batch() const { return batch_; }

  /// The largest difference between part p of what the ops make and its slice of the whole.
  double difference(const AxisProblem& problem, const std::vector<int>& axis, size_t p) {
    Graph part(op_table());
    std::vector<TensorId> mine(graph_.tensors().size());
    const auto slice = [&](TensorId t) { return slice_of(t, axis[t.index()], problem.parts, p); };
    std::vector<TensorId> borders, made;
    for (const OpId id : problem.ops) {
      const Op& op = graph_.op(id);
      std::vector<TensorId> inputs;
      for (const TensorId t : op.inputs) {
        if (t.valid() && !mine[t.index()].valid()) {
          const Tensor& whole = graph_.tensor(t);
          mine[t.index()] = part.add_tensor(
              {whole.name, slice(t).shape(whole.shape), whole.dtype, TensorKind::kInput});
          borders.push_back(t);
        }
        inputs.push_back(t.valid() ? mine[t.index()] : TensorId());
      }
      const OpId copy = part.add_op(graph_.def(op).name, op.name, inputs, all_attrs(op));
      for (size_t i = 0; i < op.outputs.size(); ++i) {
        mine[op.outputs[i].index()] = part.out(copy, i);
        made.push_back(op.outputs[i]);
      }
    }
    Interpreter<double> run(part);
    run.rank.gate = &builtin_gate(gate_);
    for (const TensorId t : borders) fill(run, mine[t.index()], t, slice(t));
    run.run();
    double most = 0;
    for (const TensorId t : made) {
      const TensorId m = mine[t.index()];
      REQUIRE(part.tensor(m).shape == slice(t).shape(graph_.tensor(t).shape));
      most = std::max(most, distance(run, m, t, slice(t)));
    }
    return most;
  }

 private:
  Slice slice_of(TensorId t, int axis, int64_t parts, size_t p) const {
    if (axis < 0) return {};
    const int64_t length = graph_.tensor(t).shape[static_cast<size_t>(axis)];
    Slice slice{axis, 0, 0};
    const std::vector<int64_t> sizes = part_sizes(length, batch_, parts);
    for (size_t i = 0; i < p; ++i) slice.from += sizes[i];
    slice.to = slice.from + sizes[p];
    return slice;
  }

  void fill(Interpreter<double>& part, TensorId mine, TensorId t, const Slice& slice) {
    const Tensor& tensor = graph_.tensor(t);
    if (tensor.dtype == DType::kI32) {
      const std::vector<int32_t> values = slice.of(run_.index(t), tensor.shape);
      std::copy(values.begin(), values.end(), part.index(mine));
    } else {
      const std::vector<double> values = slice.of(run_.real(t), tensor.shape);
      std::copy(values.begin(), values.end(), part.real(mine));
    }
  }

  double distance(Interpreter<double>& part, TensorId mine, TensorId t, const Slice& slice) {
    const Tensor& tensor = graph_.tensor(t);
    const auto most = [](const auto& whole, const auto* values) {
      double far = 0;
      for (size_t i = 0; i < whole.size(); ++i) {
        const double apart = std::abs(static_cast<double>(whole[i]) - values[i]);
        far = apart <= far ? far : apart;  // NaN stays
      }
      return far;
    };
    if (tensor.dtype == DType::kI32) {
      return most(slice.of(run_.index(t), tensor.shape), part.index(mine));
    }
    return most(slice.of(run_.real(t), tensor.shape), part.real(mine));
  }

  Graph graph_;
  int64_t batch_;
  const char* gate_;
  Interpreter<double> run_;
};

bool sliced(const std::vector<int>& axis) {
  return std::none_of(axis.begin(), axis.end(), [](int a) { return a == kRows || a == kRowEnds; });
}

/// "linear 0", "linear 2": kinds, and along what their first output was cut.
using Seen = std::set<std::string>;

void check_parts(Whole& whole, const AxisProblem& problem, const std::vector<int>& axis,
                 Seen& seen) {
  for (size_t p = 0; p < static_cast<size_t>(problem.parts); ++p) {
    INFO("part " << p << " of " << problem.parts << ", ops from "
                 << problem.graph.op(problem.ops[0]).name << " to "
                 << problem.graph.op(problem.ops.back()).name);
    CHECK(whole.difference(problem, axis, p) <= 1e-12);
  }
  for (const OpId id : problem.ops) {
    seen.insert(
        fmt::format("{} {}", whole.graph().def(id).name, axis[whole.graph().out(id).index()]));
  }
}

std::vector<Whole> real_graphs() {
  test::Gpt2 model;
  model.vocab = 11;
  model.layers = 2;
  model.seq = 4;
  model.batch_per_device = 4;
  model.experts = 2;
  std::vector<Whole> graphs;
  for (const bool fused : {true, false}) {
    model.fused_attention = fused;
    for (const int64_t heads : {2, 4}) {  // 4: every length is a multiple of the batch
      model.heads = heads;
      model.hidden = heads == 2 ? 6 : 8;
      graphs.emplace_back(test::build_forward(model, gate_spec(model), 1), model.batch_per_device);
    }
  }
  for (const test::SmallGraph& small :
       {test::reuse_graph(), test::rms_graph(), test::gated_graph(), test::elementwise_graph(),
        test::heads_graph(), test::rope_graph(), test::attend_graph()}) {
    graphs.emplace_back(parse_graph(small.text, op_table()), 2);
  }
  return graphs;
}

TEST_CASE("every solution of a short range of real ops gives slices of the whole") {
  Seen seen;
  for (Whole& whole : real_graphs()) {
    const std::vector<OpId> ops = test::all_ops(whole.graph());
    for (size_t begin = 0; begin < ops.size(); ++begin) {
      for (size_t end = begin + 1; end <= std::min(begin + 3, ops.size()); ++end) {
        for (int64_t parts = 2; parts <= whole.batch(); ++parts) {
          const AxisProblem problem{
              whole.graph(), {&ops[begin], end - begin}, whole.batch(), parts};
          test::for_each_solution(problem, [&](const test::Cuts& cuts) {
            const std::vector<int> axis = test::axis_of(cuts);
            if (sliced(axis)) check_parts(whole, problem, axis, seen);
            return true;
          });
        }
      }
    }
  }
  for (const char* way :
       {"embedding 0",  "embedding 1",    "layernorm 0",    "rmsnorm 0",      "silu_mul 0",
        "silu_mul 1",   "linear 0",       "linear 1",       "linear 2",       "attend 0",
        "attn_score 0", "attn_softmax 0", "attn_softmax 1", "attn_context 0", "mul 0",
        "mul 2",        "row_dot 1",      "scale 2",        "sigmoid 0",      "relu 1",
        "rope 0",       "rope 1",         "split_heads 0",  "join_heads 1",   "add 0",
        "add 1",        "add 2",          "gate_logits 0"}) {
    INFO(way);
    CHECK(seen.contains(way));
  }
}

}  // namespace
}  // namespace moe
