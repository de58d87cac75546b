// What this machine takes for compute and for collectives between ranks, measured and fitted: rates
// of a Device, and tables of collectives. Of CPU ranks of one process with the profiler; of GPUs as
// calibrate_device.h says.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/cost/fit.h"
#include "engine/cost/overlap.h"
#include "engine/profile/profiler.h"

namespace moe {

/// One operation of one size: the median of its samples.
struct Calibrated {
  std::string what;  // "linear_dx hidden=256", "all_to_all"
  double x = 0;      // flops of a GEMM, bytes of memory traffic, or a rank's payload in bytes
  Nanoseconds ns = 0;
  double spread = 0;  // between the first and the third quartile, of the median
  int64_t num_samples = 0;
};

/// Operations of one kind and the line t = alpha + beta x through them.
struct CalibratedLine {
  std::vector<Calibrated> rows;
  LineFit fit;
};
/// Rows ascend in x and are interpolated between; the line is that of a link.
struct CalibratedTable : CalibratedLine {
  FitError interpolation;
};

struct Calibration {
  std::string machine;  // CalibrateOptions::machine: processor, kernels, build, ranks beside
  CalibratedLine gemm;
  CalibratedLine memory;
  CalibratedTable all_to_all, all_reduce;  // no rows for one rank
  /// GEMM and memory rates are the lines' slopes; launch is the smaller of the two lines' starts,
  /// which every op pays; vector_flops_per_s the highest flops rate of an op that is no GEMM.
  Device device;
  LinkSpec link;         // the all-to-all's line as a port between devices; zeros for one rank
  FitError roofline;     // RooflineCost on this device against every compute op measured
  OverlapTable overlap;  // no rows where nothing measures it
  double spread = 0;     // the median of all rows'
};
/// Calibration::spread on a quiet machine, at most.
constexpr double kQuietSpread = 0.15;

struct CalibrateOptions {
  int64_t num_ranks = 2;
  /// Time and samples for each operation. ranks_beside is num_ranks.
  ProfileOptions profile = {.min_time_s = 0.01};
  /// Of the steps' activations.
  DType dtype = DType::kF32;
  /// Hidden sizes of the GPT-2 steps whose ops are measured, and the largest payload.
  std::vector<int64_t> hidden = {128, 256, 768};
  Bytes max_payload = 64 << 20;
  /// Times an op alone, and what it is that does: "<processor>; <kernels>".
  std::function<std::vector<Nanoseconds>(const Graph&, OpId, const ProfileOptions&)> time_op =
      profile_op;
  std::function<std::string(const ProfileOptions&)> machine = profile_key;
  /// Times compute of the step with the largest hidden size beside transfers; empty: nothing does.
  std::function<OverlapTable(const Graph&, const ProfileOptions&)> overlap;
  /// Told before each operation; may throw to end the calibration.
  std::function<void(const std::string& what)> progress = [](const std::string&) {};
};

/// Times are alone and, of collectives, without the wait for other ranks (profile_op).
/// Compute: every distinct shape of a GEMM and every size of a memory-bound op in the training
/// steps of small GPT-2 models with MoE layers, one thread per rank, on num_ranks ranks at the same
/// time. Collectives: 1 KiB, 2 KiB, 4 KiB ... max_payload a rank (rounded down to whole
/// elements per peer; less where the ranks would hold more than 2 GiB), as Lancet's communication
/// table. Throws UserError for less than one rank, RunError where times do not grow with sizes.
Calibration calibrate(const CalibrateOptions& options);

}  // namespace moe
