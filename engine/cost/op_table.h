// Times of ops that were measured on one GPU, and their interpolation. A file, which
// scripts/import_op_times.py writes, holds for each measured op a grid: the values of each axis,
// and one time per cell as a 16-bit logarithm. Which op of a graph takes which of these times is
// not here but in cost_model.h (RooflineCost).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moe {

class ExpertTable;

/// Returns the bytes of an element of a table's type: "fp8", "fp8_block" (with a scale per 128
/// numbers), "bf16", "f32" or "tf32" (numbers of f32 that are multiplied as TF32); 0 for another.
double element_bytes_of(std::string_view dtype);

/// Sizes, rates and weights of tables are below this, so that no product of them overflows.
constexpr double kMostOfSize = 1e18;

/// The data-sheet rates of a GPU. A table interpolates the ratio of the measured time to the time
/// by these rates, which changes less from cell to cell than the time does.
struct PeakRates {
  double flops_per_s = 0;  // for the element type of the table
  double memory_bytes_per_s = 0;
  double element_bytes = 2;
  double link_bytes_per_s = 0;  // between GPUs of a node, one way
  double node_ranks = 8;        // GPUs of a node
  /// The shortest time of a kernel. It is added to times by these rates, so that the ratio of a
  /// small op, which takes about this long whatever its size, is near 1 too.
  double shortest_s = 4e-6;
};

/// An interpolated time in ns, with the band that holds 9 of 10 measured times.
struct OpTime {
  double ns = 0;
  double lo_ns = 0, hi_ns = 0;
  bool extrapolated = false;  // no measured cells lie on both sides of the point on some axis
};

/// Names of the ops that tables may hold.
namespace measured {
constexpr const char *kGemm = "gemm", *kGemmDx = "gemm_dx", *kGemmDw = "gemm_dw",
                     *kGrouped = "grouped_gemm", *kGroupedDx = "grouped_gemm_dx",
                     *kGroupedDw = "grouped_gemm_dw", *kAttention = "attention",
                     *kAttentionDx = "attention_dx", *kLatentAttention = "latent_attention",
                     *kLatentAttentionDx = "latent_attention_dx", *kAllToAll = "all_to_all",
                     *kAllReduce = "all_reduce", *kAllGather = "all_gather",
                     *kReduceScatter = "reduce_scatter", *kDispatch = "dispatch",
                     *kCombine = "combine";
/// Fused expert kernels, whose table is an ExpertTable.
constexpr const char* kExperts = "experts";
}  // namespace measured

/// An op that tables may hold. `axes` names what a point states, in the order of its numbers.
struct MeasuredOp {
  const char* name;
  const char* doc;
  std::vector<const char*> axes;
  /// Returns the time in seconds by the peak rates.
  double (*peak_s)(std::span<const double> point, const PeakRates& peak);
};
/// Returns the ops that tables may hold.
std::span<const MeasuredOp> measured_ops();

/// One axis of a grid. values: ascending, at least one, from 1; interpolation is linear in their
/// logarithm. weight: how much a missing cell follows its neighbours on this axis, above 0.
struct GridAxis {
  std::string name;
  std::vector<double> values;
  double weight = 1;
};

/// Where the times of a grid come from, and how far measurements of the same point differ.
struct GridSource {
  std::string kernel, framework, version;
  /// 90th percentile of |ratio - 1| of other times of equal sizes (other frameworks', repeated
  /// ones), or of rows that were left out of a table of scattered sizes; 0: unknown.
  double spread = 0;
  bool in_step = false;  // measured inside a training step, not alone
};

/// The measured times of one op. Thread-safe.
///
/// Missing cells are filled in rounds. In each, a missing cell between known cells on some axis
/// gets the mean, by the axes' weights, of the straight lines between them. When no such cell
/// is left, cells take the nearest known cell on each axis, and count as extrapolated.
class OpGrid {
 public:
  /// A cell without a measured time.
  static constexpr uint16_t kMissing = 0xffff;
  /// A cell is round(kSteps ln(time / 1 ns)), so its rounding error is at most 1/4096.
  static constexpr double kSteps = 2048;
  /// Returns the cell of a time. Requires: 1 <= ns < 7e13.
  static uint16_t cell_of(double ns);

  /// cells: row-major, the last axis fastest; they must outlive the grid. Throws UserError
  /// beginning with `name` unless the axes are those of the op, in its order, and there is one cell
  /// per combination of their values and at least one measured cell.
  OpGrid(const std::string& name, const MeasuredOp& op, std::string dtype, PeakRates peak,
         std::vector<GridAxis> axes, std::span<const uint16_t> cells, GridSource source);

  const MeasuredOp& op() const { return *op_; }
  const std::string& dtype() const { return dtype_; }
  const GridSource& source() const { return source_; }
  const std::vector<GridAxis>& axes() const { return axes_; }
  const PeakRates& peak() const { return peak_; }
  int64_t num_measured() const { return num_measured_; }
  std::span<const uint16_t> cells() const { return cells_; }

  /// Returns the time at a point, one number above 0 per axis: multilinear in the logarithms of the
  /// axes between the cells around it, of the ratio to the time by peak rates. Outside the axes the
  /// ratio of the border holds.
  OpTime at(std::span<const double> point) const;

 private:
  static constexpr size_t kMostAxes = 6;
  /// Logarithms of the ratio of time to time by peak rates, per cell; missing cells are filled.
  struct Ratios {
    std::vector<float> log;
    std::vector<bool> beyond;  // filled, and not from measured cells on both sides
    std::vector<float> error;  // by value of the first axis: 90th percentile of the relative error
  };
  double log_peak(std::span<const double> point) const;
  const Ratios& ratios() const;
  void fill(Ratios& ratios) const;
  void find_errors(Ratios& ratios) const;

  const MeasuredOp* op_;
  std::string dtype_;
  PeakRates peak_;
  std::vector<GridAxis> axes_;
  std::vector<std::vector<double>> logs_;  // logarithms of the axes' values
  std::vector<size_t> strides_;
  std::span<const uint16_t> cells_;
  GridSource source_;
  int64_t num_measured_ = 0;
  mutable std::once_flag once_;
  mutable Ratios ratios_;  // computed by the first look-up
};

/// The file of one GPU, or a user's own measurements as CSV: a first line with
/// the names of columns, "op", "us" and those of the axes, and "dtype" for other than bf16; then a
/// row per measurement, with the columns of other ops empty, and lines that begin with '#'. Of rows
/// with equal sizes the median is taken, and their differences make the band. The peak rates are
/// the best that the rows of an op reach.
class OpTables {
 public:
  /// Throws UserError naming the file, for CSV with its line, if it cannot be read or is of neither
  /// format.
  explicit OpTables(const std::string& path);
  ~OpTables();
  OpTables(const OpTables&) = delete;
  OpTables& operator=(const OpTables&) = delete;

  /// Returns the tables of a file; each file is opened once per process.
  static std::shared_ptr<const OpTables> open(const std::string& path);

  const std::string& gpu() const { return gpu_; }
  const std::vector<std::unique_ptr<OpGrid>>& grids() const { return grids_; }
  /// Returns the grid of an op and element type; null: there is none.
  const OpGrid* find(std::string_view op, std::string_view dtype) const;
  /// Returns the fused expert kernels of an element type; null: there are none.
  const ExpertTable* experts(std::string_view dtype) const;

 private:
  using Header = nlohmann::json;
  void read(std::string_view text, const std::string& path);
  void read_csv(std::string_view text, const std::string& path);
  size_t read_experts(const Header& table, const PeakRates& peak, const std::string& dtype,
                      const GridSource& source, std::span<const uint16_t> cells,
                      const std::string& path);

  const std::string file_;  // the content, to whose cells the grids of a GPU's file refer
  std::string gpu_;
  std::vector<std::vector<uint16_t>> csv_cells_;  // the cells of grids from CSV
  std::vector<std::unique_ptr<OpGrid>> grids_;
  std::vector<std::unique_ptr<ExpertTable>> experts_;
};

}  // namespace moe
