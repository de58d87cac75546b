// Calibration: measures compute and collectives on this machine and fits the rates of a Device and
// tables of collectives, which the simulator can use as a cluster. By default it measures CPU ranks
// that are threads of one process; calibrate_device.h has the options for GPUs. Times of the ops of
// a given plan are not measured here but in predict.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/cost/fit.h"
#include "engine/cost/overlap.h"
#include "engine/profile/profiler.h"

namespace moe {

/// The measurement of one op at one size: the median of its samples.
struct Calibrated {
  std::string what;  // "linear_dx hidden=256", "all_to_all"
  double x = 0;      // flops of a GEMM, bytes of memory traffic, or payload of a rank in bytes
  Nanoseconds ns = 0;
  double spread = 0;  // distance of the first and the third quartile, divided by the median
  int64_t num_samples = 0;
  MatrixWork matrix = {};  // sizes of a GEMM
};

/// Measurements of one kind of op and the fitted line t = alpha + beta x.
struct CalibratedLine {
  std::vector<Calibrated> rows;
  LineFit fit;
};
/// A table of a collective: rows in ascending order of x, with interpolation between them. From the
/// fitted line of the all-to-all follows Calibration::link.
struct CalibratedTable : CalibratedLine {
  FitError interpolation;
};

struct Calibration {
  std::string machine;  // from CalibrateOptions::machine: processor, kernels, build, ranks
  CalibratedLine gemm;
  CalibratedLine memory;
  CalibratedTable all_to_all, all_reduce;  // without rows if there is one rank
  /// The GEMM and memory rates are the inverse slopes of the two lines. launch_ns is the smaller
  /// alpha of the two lines, since no op takes less than that. vector_flops_per_s is the highest
  /// flops rate of an op that is not a GEMM.
  Device device;
  LinkSpec link;         // from the line of the all-to-all; zeros if there is one rank
  FitError roofline;     // error of RooflineCost on `device`, over all measured compute ops
  OverlapTable overlap;  // without rows if CalibrateOptions::overlap is empty
  double spread = 0;     // median of the spreads of all measurements
};
/// The largest Calibration::spread that is expected on a machine that runs nothing else.
constexpr double kQuietSpread = 0.15;

struct CalibrateOptions {
  int64_t num_ranks = 2;
  /// Time and number of samples per measurement. Its ranks_beside is replaced by num_ranks.
  ProfileOptions profile = {.min_time_s = 0.01};
  /// Type of the activations in the training steps whose ops are measured.
  DType dtype = DType::kF32;
  /// Hidden sizes of the GPT-2 steps whose ops are measured.
  std::vector<int64_t> hidden = {128, 256, 768};
  /// Largest payload of a collective, in bytes per rank.
  Bytes max_payload = 64 << 20;
  /// Measures an op alone and returns its samples.
  std::function<Samples(const Graph&, OpId, const ProfileOptions&)> time_op = profile_op;
  /// Returns the text for Calibration::machine: "<processor>; <kernels>".
  std::function<std::string(const ProfileOptions&)> machine = profile_key;
  /// Measures compute ops of the step with the largest hidden size while transfers run; if empty,
  /// this is not measured.
  std::function<OverlapTable(const Graph&, const ProfileOptions&)> overlap;
  /// Called before each measurement; may throw to end the calibration.
  std::function<void(const std::string& what)> progress = [](const std::string&) {};
};

/// Runs the calibration. Ops are measured alone, and collectives without the wait for other ranks
/// (profile_op).
/// - Compute: each distinct shape of a GEMM and each size of a memory-bound op in the training
///   steps of small GPT-2 models with MoE layers, on num_ranks ranks at the same time with one
///   thread each.
/// - Collectives: 1 KiB, 2 KiB, 4 KiB, ... max_payload per rank, as in the communication table of
///   the paper Lancet. Sizes are rounded down to whole elements per peer, and end earlier if the
///   ranks together would hold more than 2 GiB.
/// Throws UserError for less than one rank, RunError if times do not grow with sizes.
Calibration calibrate(const CalibrateOptions& options);

}  // namespace moe
