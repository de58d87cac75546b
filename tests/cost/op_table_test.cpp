#include "engine/cost/op_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/fnv.h"
#include "engine/cost/expert_table.h"

namespace moe {
namespace {

const MeasuredOp& op_named(std::string_view name) {
  const auto ops = measured_ops();
  return *std::find_if(ops.begin(), ops.end(), [&](const auto& op) { return name == op.name; });
}

const PeakRates kPeak{1e15, 3e12, 2};

OpGrid gemm_grid(const std::vector<uint16_t>& cells, std::vector<double> m = {256, 1024}) {
  return {"t",
          op_named("gemm"),
          "bf16",
          kPeak,
          {{"m", std::move(m), 1}, {"n", {1024, 4096}, 1}, {"k", {512, 2048}, 1}},
          cells,
          {}};
}

std::string gpu_file(const std::string& gpu) {
  return MOE_SOURCE_DIR "/scripts/moe/gpus/" + gpu + ".times";
}

struct Errors {
  double median = 0, p95 = 0;
  size_t num = 0;
};

Errors errors_of(std::vector<double> errors) {
  std::sort(errors.begin(), errors.end());
  REQUIRE(errors.size() >= 50);
  return {errors[errors.size() / 2], errors[errors.size() * 95 / 100], errors.size()};
}

/// Calls `held(point)` to decide which measured cells a grid must do without, and compares what
/// the others give for them with their times. Cells with a first axis below `least` are not
/// compared.
template <class F>
Errors held_out(const OpGrid& grid, double least, const F& held) {
  std::vector<uint16_t> cells(grid.cells().begin(), grid.cells().end());
  std::vector<std::pair<std::vector<double>, double>> removed;
  for (size_t index = 0; index < cells.size(); ++index) {
    std::vector<double> point(grid.axes().size());
    size_t rest = index;
    for (size_t a = point.size(); a-- > 0;) {
      const std::vector<double>& values = grid.axes()[a].values;
      point[a] = values[rest % values.size()];
      rest /= values.size();
    }
    if (cells[index] == OpGrid::kMissing || !held(point)) continue;
    if (point[0] >= least) removed.emplace_back(point, std::exp(cells[index] / OpGrid::kSteps));
    cells[index] = OpGrid::kMissing;
  }
  const OpGrid others("t", grid.op(), grid.dtype(), grid.peak(), grid.axes(), cells, {});
  std::vector<double> errors;
  for (const auto& [point, ns] : removed) errors.push_back(std::abs(others.at(point).ns / ns - 1));
  return errors_of(std::move(errors));
}

/// Whether a tenth of all texts, chosen by their hash, holds this one.
bool in_tenth(std::span<const double> point) {
  std::string text;
  for (const double x : point) text += fmt::format("{} ", x);
  return fnv1a(kFnvStart, text.data(), text.size()) % 10 == 0;
}

TEST_CASE("a measured cell is its time, and between cells the ratio to the peak is interpolated") {
  std::vector<uint16_t> cells;
  for (int i = 0; i < 8; ++i) cells.push_back(OpGrid::cell_of(1e5 * (i + 1)));
  const OpGrid grid = gemm_grid(cells);
  const std::vector<double> corner{1024, 4096, 512};
  CHECK(grid.at(corner).ns == Approx(7e5).epsilon(3e-4));
  CHECK(!grid.at(corner).extrapolated);
  // All cells at twice the time by peak rates: so is every point between them.
  cells.clear();
  const auto twice = [](double m, double n, double k) {
    const std::vector<double> p{m, n, k};
    return 2e9 * op_named("gemm").peak_s(p, kPeak);
  };
  for (const double m : {256, 1024}) {
    for (const double n : {1024, 4096}) {
      for (const double k : {512, 2048}) cells.push_back(OpGrid::cell_of(twice(m, n, k)));
    }
  }
  const OpGrid even = gemm_grid(cells);
  for (const std::vector<double>& p :
       {std::vector<double>{300, 2000, 700}, {1000, 4000, 2048}, {256, 1025, 513}}) {
    const OpTime t = even.at(p);
    CHECK(t.ns == Approx(twice(p[0], p[1], p[2])).epsilon(5e-4));
    CHECK(!t.extrapolated);
    CHECK((t.lo_ns <= t.ns && t.ns <= t.hi_ns));
  }
  // Outside the axes too, but that is said, and the band is wider.
  const OpTime outside = even.at(std::vector<double>{4096, 4096, 2048});
  CHECK(outside.ns == Approx(twice(4096, 4096, 2048)).epsilon(5e-4));
  CHECK(outside.extrapolated);
  CHECK(outside.hi_ns >= 1.25 * outside.ns * 0.999);
}

TEST_CASE("a missing cell follows the lines between its neighbours, by the axes' weights") {
  const auto twice = [](double m, double n, double k) {
    const std::vector<double> p{m, n, k};
    return OpGrid::cell_of(2e9 * op_named("gemm").peak_s(p, kPeak));
  };
  std::vector<uint16_t> cells;
  for (const double m : {256, 512, 1024}) {
    for (const double n : {1024, 4096}) {
      for (const double k : {512, 2048}) cells.push_back(twice(m, n, k));
    }
  }
  const uint16_t kept = cells[4];
  cells[4] = OpGrid::kMissing;  // m = 512, n = 1024, k = 512: only m has neighbours on both sides
  const OpGrid grid = gemm_grid(cells, {256, 512, 1024});
  CHECK(grid.num_measured() == 11);
  const OpTime t = grid.at(std::vector<double>{512, 1024, 512});
  CHECK(t.ns == Approx(std::exp(kept / OpGrid::kSteps)).epsilon(1e-3));
  CHECK(!t.extrapolated);
  cells[0] = OpGrid::kMissing;  // at the border: the nearest cell's ratio
  CHECK(gemm_grid(cells, {256, 512, 1024}).at(std::vector<double>{256, 1024, 512}).extrapolated);
}

TEST_CASE("a table of other axes, or without cells, is refused with its file's name") {
  const std::vector<uint16_t> cells(8, OpGrid::kMissing);
  CHECK_THROWS_WITH(gemm_grid(cells), "t: table of 'gemm': it has no measured cell");
  CHECK_THROWS_WITH(gemm_grid({}), Catch::Contains("it has 0 cells; its axes have 8"));
  CHECK_THROWS_WITH(gemm_grid(cells, {1024, 256}), Catch::Contains("axis 'm' must be at least 1"));
  CHECK_THROWS_WITH(OpTables("/nonexistent"), Catch::Contains("/nonexistent"));
  CHECK_THROWS_AS(OpTables(MOE_SOURCE_DIR "/README.md"), UserError);
}

TEST_CASE("a table of expert kernels that would leave a look-up without a time is refused") {
  const auto make = [](double hidden, const std::vector<std::string>& loads, uint16_t last) {
    std::vector<uint16_t> cells(2 * loads.size(), OpGrid::cell_of(1e5));
    cells.back() = last;
    ExpertTable("t", "bf16", kPeak, {{{hidden, 512, 8, 2, 2, 2}}}, loads, {1, 2}, cells, false, {});
  };
  const uint16_t known = OpGrid::cell_of(1e5);
  make(1024, {"balanced"}, known);
  CHECK_THROWS_WITH(make(1024, {"skewed"}, known),
                    "t: table of 'experts': none of its loads is 'balanced'");
  CHECK_THROWS_WITH(make(1024, {"balanced", "skewed"}, OpGrid::kMissing),
                    Catch::Contains("of load 'skewed' no layer"));
  CHECK_THROWS_WITH(make(1e300, {"balanced"}, known),
                    Catch::Contains("a size of a layer is 1e+300"));
}

/// Writes the text to a file of this name and returns its path.
std::string csv_file(const std::string& name, const std::string& text) {
  const std::string path = (std::filesystem::temp_directory_path() / name).string();
  std::ofstream(path) << text;
  return path;
}

TEST_CASE("measurements of the user are read from CSV, the median of equal sizes") {
  const OpTables tables(csv_file("moebench_op_times.csv",
                                 "# measured on Monday\n"
                                 "op,us, m,n,k,ranks,bytes\r\n"
                                 "gemm,100,1024,512,512,,\n"
                                 "gemm,300,1024,512,512,,\n"
                                 "gemm,110,1024,512,512,,\n"
                                 "gemm,200,2048,512,512,,\n"
                                 "all_reduce,50,,,,8,1e6\n"));
  const OpGrid* const gemm = tables.find("gemm", "bf16");
  REQUIRE(gemm != nullptr);
  CHECK(gemm->at(std::vector<double>{1024, 512, 512}).ns == Approx(110e3).epsilon(1e-3));
  const OpTime between = gemm->at(std::vector<double>{1500, 512, 512});
  CHECK((between.ns > 120e3 && between.ns < 190e3 && !between.extrapolated));
  CHECK(tables.find("all_reduce", "bf16")->at(std::vector<double>{8, 1e6}).ns ==
        Approx(50e3).epsilon(1e-3));
  CHECK(tables.find("attention", "bf16") == nullptr);
}

TEST_CASE("rates, spreads and weights of a file that give no times are refused by their names") {
  const auto refused = [](const std::string& rate, const std::string& spread,
                          const std::string& weight) {
    const std::string axis = R"(","values":[8],"weight":)" + weight + "}";
    std::string text =
        "moebench op times 1\n"
        R"({"gpu":"g","peak_memory_bytes_per_s":1e12,)"
        R"("peak_link_bytes_per_s":1e12,"tables":[{"op":"gemm","element_bytes":2,)"
        R"("kernel":"","framework":"","version":"","dtype":"bf16",)"
        R"("peak_flops_per_s":)" +
        rate + R"(,"spread":)" + spread + R"(,"axes":[{"name":"m)" + axis + R"(,{"name":"n)" +
        axis + R"(,{"name":"k)" + axis + "]}]}";
    text += std::string(text.size() % 2 == 0 ? 2 : 1, '\0') + "aa";
    try {
      const OpTables tables(csv_file("moebench_bad.times", text));
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string("(no error)");
  };
  CHECK(refused("1e15", "0", "1") == "(no error)");
  for (const char* const rate : {"0", "1e-320", "-1e15", "1e300"}) {
    CHECK_THAT(refused(rate, "0", "1"), Catch::Contains("moebench_bad.times: 'peak_flops_per_s'"));
  }
  CHECK_THAT(refused("1e15", "-1", "1"), Catch::Contains("'spread' of the header is -1"));
  CHECK_THAT(refused("1e15", "0", "1e300"), Catch::Contains("'weight' of the header is 1e+300"));
}

TEST_CASE("a fault in CSV is refused with its line") {
  const auto refused = [](const std::string& text) {
    try {
      OpTables tables(csv_file("moebench_bad_times.csv", text));
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string("(no error)");
  };
  const std::string head = "op,us,m,n,k\n";
  CHECK_THAT(refused("m,n,k\n1,2,3\n"),
             Catch::Contains("csv:1: the column 'op' is missing") && Catch::Contains("op, us"));
  CHECK_THAT(refused(head), Catch::Contains("there are no measurements"));
  CHECK_THAT(refused(head + "gemm,1,2,3\n"),
             Catch::Contains("csv:2: 4 fields; the first line has 5"));
  CHECK_THAT(refused(head + "gemv,1,2,3,4\n"), Catch::Contains("csv:2: op 'gemv' is not allowed"));
  CHECK_THAT(refused(head + "gemm,1,2,3,4\ngemm,1,0,3,4\n"), Catch::Contains("csv:3: m = '0'"));
  CHECK_THAT(
      refused(head + "gemm,0.0615,1024,4096,4096\n"),
      Catch::Contains("csv:2: us = 0.0615") && Catch::Contains("is the time in microseconds?"));
  CHECK_THAT(refused(head + "gemm,nan,2,3,4\n"), Catch::Contains("csv:2: us = 'nan'"));
  CHECK_THAT(refused("op,us,ranks,bytes\nall_reduce,1,0.5,8\n"),
             Catch::Contains("csv:2: ranks = '0.5': give a number of at least 1"));
  CHECK_THAT(refused(head + "all_reduce,1,2,3,4\n"),
             Catch::Contains("csv:2: op 'all_reduce' needs the column 'ranks'"));
}

constexpr std::array kGpus = {"a100", "h100", "h200", "b200", "b300", "gb200"};

TEST_CASE("held-out rows of GEMMs are near what the rows around them give") {
  for (const std::string gpu : kGpus) {
    const OpGrid* grid = OpTables::open(gpu_file(gpu))->find("gemm", "bf16");
    REQUIRE(grid != nullptr);
    const Errors rows = held_out(*grid, 256, in_tenth);
    const Errors pairs = held_out(
        *grid, 256, [](const std::vector<double>& p) { return in_tenth(std::span(p).subspan(1)); });
    UNSCOPED_INFO(fmt::format("{} gemm: {} rows {:.3f} {:.3f}, pairs (n, k) {:.3f} {:.3f}", gpu,
                              rows.num, rows.median, rows.p95, pairs.median, pairs.p95));
    CHECK(rows.median <= 0.05);
    CHECK(rows.p95 <= 0.20);
    CHECK(pairs.median <= 0.07);
  }
}

TEST_CASE("held-out rows of attention are near what the rows around them give") {
  for (const std::string gpu : kGpus) {
    for (const char* const op : {"attention", "latent_attention"}) {
      const OpGrid* grid = OpTables::open(gpu_file(gpu))->find(op, "bf16");
      REQUIRE(grid != nullptr);
      const Errors rows = held_out(*grid, 0, in_tenth);
      UNSCOPED_INFO(
          fmt::format("{} {}: {} rows {:.3f} {:.3f}", gpu, op, rows.num, rows.median, rows.p95));
      CHECK(rows.median <= 0.07);
    }
  }
}

TEST_CASE("a held-out row of a collective is near what the sizes around it give") {
  for (const std::string gpu : kGpus) {
    std::vector<double> errors;
    for (const char* const op : {"all_to_all", "all_reduce", "all_gather", "reduce_scatter"}) {
      const OpGrid* grid = OpTables::open(gpu_file(gpu))->find(op, "bf16");
      REQUIRE(grid != nullptr);
      const std::vector<double>&ranks = grid->axes()[0].values, &bytes = grid->axes()[1].values;
      std::vector<uint16_t> cells(grid->cells().begin(), grid->cells().end());
      for (size_t i = 0; i < cells.size(); ++i) {
        const size_t size = i % bytes.size();
        if (cells[i] == OpGrid::kMissing || size == 0 || size + 1 == bytes.size()) continue;
        const uint16_t cell = std::exchange(cells[i], OpGrid::kMissing);
        const OpGrid others("t", grid->op(), "bf16", grid->peak(), grid->axes(), cells, {});
        const double ns = others.at(std::array{ranks[i / bytes.size()], bytes[size]}).ns;
        errors.push_back(std::abs(ns / std::exp(cell / OpGrid::kSteps) - 1));
        cells[i] = cell;
      }
    }
    const Errors all = errors_of(errors);
    UNSCOPED_INFO(fmt::format("{}: {} rows {:.3f} {:.3f}", gpu, all.num, all.median, all.p95));
    CHECK(all.median <= 0.05);
  }
}

const OpGrid* rows_grid(const std::string& gpu, const std::string& op) {
  return OpTables::open(gpu_file(gpu))->find(op, op == "dispatch" ? "fp8" : "bf16");
}

TEST_CASE("held-out rows of dispatch and combine are near what the rows around them give") {
  CHECK(OpTables::open(gpu_file("a100"))->find("dispatch", "fp8") == nullptr);
  for (const std::string gpu : std::span(kGpus).subspan(1)) {
    for (const char* const op : {"dispatch", "combine"}) {
      const OpGrid* const grid = rows_grid(gpu, op);
      REQUIRE(grid != nullptr);
      const Errors rows = held_out(*grid, 0, in_tenth);
      UNSCOPED_INFO(
          fmt::format("{} {}: {} rows {:.3f} {:.3f}", gpu, op, rows.num, rows.median, rows.p95));
      CHECK(rows.median <= 0.05);
      CHECK(rows.p95 <= 0.10);
    }
  }
}

TEST_CASE("a dispatch and a combine take at least the time of their bytes, and more for more") {
  for (const std::string gpu : std::span(kGpus).subspan(1)) {
    for (const char* const op : {"dispatch", "combine"}) {
      const OpGrid* const grid = rows_grid(gpu, op);
      REQUIRE(grid != nullptr);
      for (const double nodes : grid->axes()[0].values) {
        for (const double sms : grid->axes()[1].values) {
          double before = 0;
          for (const double tokens : grid->axes()[2].values) {
            const std::array point{nodes, sms, tokens, 7168., 8.};
            const double s = 1e-9 * grid->at(point).ns;
            CHECK(s > grid->op().peak_s(point, grid->peak()) - 25e-6);
            CHECK(s > before / 1.2);
            before = s;
          }
        }
      }
    }
  }
}

/// Compares the measured cells for which `held(layer, load, tokens)` holds with what a table
/// without them gives.
template <class F>
std::vector<double> held_out_experts(const ExpertTable& table, const F& held) {
  std::vector<uint16_t> cells(table.cells().begin(), table.cells().end());
  const size_t num_loads = table.loads().size(), length = table.tokens().size();
  std::vector<size_t> removed;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (cells[i] == OpGrid::kMissing) continue;
    if (!held(i / length / num_loads, i / length % num_loads, i % length)) continue;
    cells[i] = OpGrid::kMissing;
    removed.push_back(i);
  }
  const ExpertTable others("t", table.dtype(), table.peak(), table.layers(), table.loads(),
                           table.tokens(), cells, table.moves_all(), {});
  std::vector<double> errors;
  for (const size_t i : removed) {
    const double ns = std::exp(table.cells()[i] / OpGrid::kSteps);
    const ExpertLayer& layer = table.layers()[i / length / num_loads].layer;
    errors.push_back(
        std::abs(others.at(layer, table.tokens()[i % length], i / length % num_loads).ns / ns - 1));
  }
  return errors;
}

TEST_CASE("held-out rows and layers of expert kernels are near what the others give") {
  for (const std::string gpu : kGpus) {
    const ExpertTable* const table = OpTables::open(gpu_file(gpu))->experts("bf16");
    REQUIRE(table != nullptr);
    const Errors rows = errors_of(held_out_experts(*table, [](size_t i, size_t j, size_t t) {
      return in_tenth(std::array{double(i), double(j), double(t)});
    }));
    // Each shape (hidden, whole width, k, experts), with all its divisions over ranks, in turn.
    using Shape = std::array<double, 3>;
    const auto shape_of = [&](size_t i) {
      const ExpertLayer& l = table->layers()[i].layer;
      return Shape{l.hidden, l.k, l.experts};
    };
    std::set<Shape> shapes;
    for (size_t i = 0; i < table->layers().size(); ++i) shapes.insert(shape_of(i));
    std::vector<double> errors;
    for (const Shape& shape : shapes) {
      const auto some =
          held_out_experts(*table, [&](size_t i, size_t, size_t) { return shape_of(i) == shape; });
      errors.insert(errors.end(), some.begin(), some.end());
    }
    const Errors layers = errors_of(errors);
    UNSCOPED_INFO(
        fmt::format("{} experts: {} rows {:.3f} {:.3f}, {} of {} layer shapes {:.3f} "
                    "{:.3f}",
                    gpu, rows.num, rows.median, rows.p95, layers.num, shapes.size(), layers.median,
                    layers.p95));
    CHECK(rows.median <= 0.10);
    CHECK(layers.median <= 0.15);
  }
}

}  // namespace
}  // namespace moe
