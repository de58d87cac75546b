// Parts inside the whole's storage: right values where they are not (an interpreter without a
// memory plan), and nothing moved where they are.
#include <catch2/catch.hpp>
#include <stdexcept>

#include "engine/base/errors.h"
#include "engine/graph/autodiff.h"
#include "engine/graph/verify.h"
#include "engine/model/model.h"
#include "tests/ops/small_graphs.h"

namespace moe::test {
namespace {

Graph halves(int view) {
  return parse_graph(fmt::format(R"(
graph halves ranks=1
%1 input i32 [4,3] targets
%2 param f64 [4,3,5] x
%3 param f64 [5] b
%4, %5 = split(%2) {{axis=0, sizes="1,3", view={0}}} cut forward mlp
%6 = gelu(%4, %3) a forward mlp
%7 = gelu(%5) b.gelu forward mlp
%8 = concat(%6, %7) {{axis=0, view={0}}} whole forward mlp
%9, %10 = split(%8) {{axis=0, sizes="2,2", view={0}}} cut2 forward mlp
%11 = add(%9, %10) sum forward mlp
%12 = concat(%11, %9) {{axis=0}} twice forward mlp
%13, %14 = cross_entropy(%12, %1) {{scale=0.1}} loss forward head
)",
                                 view),
                     op_table());
}

std::map<std::string, std::vector<double>> values_of_step(Graph graph) {
  const auto gradients = autodiff(graph, loss_of(graph));
  verify(graph, "test");
  Interpreter<double> run(graph);
  fill_inputs(graph, run, 4);
  run.run();
  std::map<std::string, std::vector<double>> values;
  values["loss"] = {run.scalar(loss_of(graph))};
  for (const auto& [param, gradient] : gradients) {
    values[graph.tensor(param).name] = run.values(gradient);
  }
  return values;
}

struct MovedError : std::runtime_error {
  MovedError() : std::runtime_error("moved") {}
};

/// The reference table, but nothing may be copied.
const kernels::KernelTable<double>& still_table() {
  static const kernels::KernelTable<double> table = [] {
    kernels::KernelTable<double> t = kernels::reference_table();
    t.copy_2d = [](void*, int64_t, const void*, int64_t, int64_t, int64_t, kernels::Stream) {
      throw MovedError();
    };
    return t;
  }();
  return table;
}

void run_still(const Graph& graph, const std::string& name, std::vector<void*> inputs,
               std::vector<void*> outputs) {
  const Op& op = graph.op(graph.find_op(name));
  const RankContext rank;
  graph.def(op).run.f64({.graph = graph,
                         .op = op,
                         .inputs = inputs,
                         .outputs = outputs,
                         .scratch = nullptr,
                         .k = still_table(),
                         .rank = rank});
}

/// Blocks of `rows` rows in `parts` parts with random ends.
struct Rows {
  Shape blocks;
  int64_t rows;
  Shape width;  // of a row
  int64_t parts;
  bool index;

  Shape shape() const {
    Shape s = blocks;
    s.push_back(rows);
    s.insert(s.end(), width.begin(), width.end());
    return s;
  }
  Graph graph() const {
    Graph g(op_table());
    std::vector<TensorId> inputs;
    for (int64_t p = 0; p < parts; ++p) {
      inputs.push_back(
          g.add_tensor({fmt::format("end{}", p), blocks, DType::kI32, TensorKind::kInput}));
    }
    for (int64_t p = 0; p < parts; ++p) {
      inputs.push_back(g.add_tensor({fmt::format("part{}", p), shape(),
                                     index ? DType::kI32 : DType::kF32, TensorKind::kInput}));
    }
    g.add_op("join_rows", "j", inputs, {{"parts", parts}});
    return g;
  }
};

const std::vector<Rows> kRowCases = {{{4}, 5, {3}, 2, false},
                                     {{3}, 6, {}, 3, true},
                                     {{2, 3}, 4, {5}, 4, false},
                                     {{7}, 1, {2, 2}, 1, false},
                                     {{2}, 9, {2}, 5, true}};

/// Ascending row ends of one block; some parts are empty, some blocks full.
std::vector<int32_t> random_ends(const Rows& c, Rng& rng) {
  std::vector<int32_t> ends;
  for (int64_t p = 0; p < c.parts; ++p) ends.push_back(static_cast<int32_t>(rng.below(c.rows + 1)));
  std::sort(ends.begin(), ends.end());
  return ends;
}

/// What stands at row r of a block whose parts end at `ends`: the number of its part, -1 for none.
int64_t part_of(const std::vector<int32_t>& ends, int64_t r) {
  const auto found = std::upper_bound(ends.begin(), ends.end(), static_cast<int32_t>(r));
  return found == ends.end() ? -1 : found - ends.begin();
}

template <class T>
void check_join(const Rows& c, uint64_t seed) {
  Rng rng(seed);
  const Graph graph = c.graph();
  Interpreter<T> run(graph);
  const int64_t blocks = num_elements(c.blocks), width = num_elements(c.width);
  std::vector<std::vector<int32_t>> ends;
  for (int64_t b = 0; b < blocks; ++b) {
    ends.push_back(random_ends(c, rng));
    for (int64_t p = 0; p < c.parts; ++p) {
      run.index(fmt::format("end{}", p))[b] = ends.back()[static_cast<size_t>(p)];
    }
  }
  for (int64_t p = 0; p < c.parts; ++p) {  // the rows that a part does not hold stay as they are
    const std::string part = fmt::format("part{}", p);
    for (int64_t i = 0; i < num_elements(c.shape()); ++i) {
      const int64_t b = i / (c.rows * width), r = i / width % c.rows;
      if (part_of(ends[static_cast<size_t>(b)], r) != p) continue;
      if (c.index) {
        run.index(part)[i] = static_cast<int32_t>(1000 * p + i);
      } else {
        run.real(part)[i] = static_cast<T>(1000 * p + i);
      }
    }
  }
  run.run();
  for (int64_t i = 0; i < num_elements(c.shape()); ++i) {
    const int64_t b = i / (c.rows * width), r = i / width % c.rows;
    const int64_t p = part_of(ends[static_cast<size_t>(b)], r);
    if (c.index) {
      CHECK(run.index("j")[i] == (p < 0 ? -1 : 1000 * p + i));
    } else {
      CHECK(run.real("j")[i] == static_cast<T>(p < 0 ? 0 : 1000 * p + i));
    }
  }
}

TEST_CASE("views give the values and gradients of the copies that they stand for") {
  CHECK(values_of_step(halves(1)) == values_of_step(halves(0)));
}

TEST_CASE("a view whose parts lie in their places moves nothing, and one of another place moves") {
  const Graph graph = halves(1);
  std::vector<double> x(60), elsewhere(60);
  run_still(graph, "cut", {x.data()}, {x.data(), x.data() + 15});
  run_still(graph, "whole", {x.data(), x.data() + 15}, {x.data()});
  CHECK_THROWS_AS(run_still(graph, "cut", {x.data()}, {x.data(), elsewhere.data()}), MovedError);
  CHECK_THROWS_AS(run_still(graph, "whole", {elsewhere.data(), x.data() + 15}, {x.data()}),
                  MovedError);
}

TEST_CASE("join_rows takes each row from its part and clears the rows of none") {
  for (const Rows& c : kRowCases) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      check_join<double>(c, seed);
      check_join<float>(c, seed + 100);
    }
  }
}

TEST_CASE("join_rows in one storage touches the unused rows alone") {
  for (const Rows& c : kRowCases) {
    Rng rng(3);
    const Graph graph = c.graph();
    const int64_t blocks = num_elements(c.blocks), width = num_elements(c.width);
    const int64_t n = num_elements(c.shape());
    std::vector<std::vector<int32_t>> row_ends(static_cast<size_t>(c.parts));
    for (int64_t b = 0; b < blocks; ++b) {
      const std::vector<int32_t> ends = random_ends(c, rng);
      for (size_t p = 0; p < row_ends.size(); ++p) row_ends[p].push_back(ends[p]);
    }
    std::vector<double> reals(static_cast<size_t>(n), 7);
    std::vector<int32_t> indices(static_cast<size_t>(n), 7);
    void* const whole = c.index ? static_cast<void*>(indices.data()) : reals.data();
    std::vector<void*> inputs;
    for (auto& ends : row_ends) inputs.push_back(ends.data());
    inputs.resize(inputs.size() * 2, whole);
    run_still(graph, "j", inputs, {whole});
    for (int64_t i = 0; i < n; ++i) {
      const bool used =
          i / width % c.rows < row_ends.back()[static_cast<size_t>(i / (c.rows * width))];
      const auto at = static_cast<size_t>(i);
      CHECK((c.index ? indices[at] == (used ? 7 : -1) : reals[at] == (used ? 7 : 0)));
    }
  }
}

TEST_CASE("row ends that fall or leave the block are an error that names op and part") {
  const Graph graph = Rows{{1}, 4, {2}, 2, false}.graph();
  for (const auto& [first, second] : {std::pair(3, 2), std::pair(0, 5), std::pair(-1, 2)}) {
    Interpreter<double> run(graph);
    run.index("end0")[0] = first;
    run.index("end1")[0] = second;
    CHECK_THROWS_WITH(run.run(), Catch::Contains("op 'j' (join_rows): part"));
  }
}

TEST_CASE("a view costs nothing, a join the rows that it clears") {
  const auto bytes = [](const Graph& graph, const std::string& name) {
    const Op& op = graph.op(graph.find_op(name));
    return graph.def(op).work(graph, op, {.slot_occupancy = 0.75}).bytes;
  };
  CHECK(bytes(halves(1), "cut") == 0);
  CHECK(bytes(halves(1), "whole") == 0);
  CHECK(bytes(halves(0), "cut") == 2 * 8 * 60);
  CHECK(bytes(Rows{{4}, 5, {3}, 2, false}.graph(), "j") == 0.25 * 4 * 60);
  const Graph graph = halves(1);
  CHECK(is_view(graph, graph.op(graph.find_op("cut"))));
  CHECK(!is_view(graph, graph.op(graph.find_op("twice"))));
  const Graph rows = kRowCases[0].graph();
  CHECK(!is_view(rows, rows.op(rows.find_op("j"))));
}

}  // namespace
}  // namespace moe::test
