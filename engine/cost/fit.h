// Straight lines through measured times: a start-up time and a time for each unit of work, as
// PipeMoE fits its GEMMs and all-to-alls (t = alpha + beta x, INFOCOM 2023, section IV).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/base/units.h"

namespace moe {

/// x: the work (flops, bytes); ns: its time.
struct TimedWork {
  double x = 0;
  double ns = 0;
};

/// How far predictions are from times: |predicted - measured| / measured.
struct FitError {
  double median = 0;
  double worst = 0;
  size_t worst_row = 0;  // from 0
  double r2 = 0;         // of times: 1 - squared residuals / squared distances from the mean
};
/// Requires: as many predictions as points, at least one, every ns > 0. r2 is 1 when all times are
/// equal and met, 0 when they are equal and missed.
FitError fit_error(std::span<const TimedWork> points, std::span<const double> predicted_ns);

struct LineFit {
  double alpha_ns = 0;  // >= 0
  double beta_ns = 0;   // for one unit of x, > 0
  FitError error;
  double at(double x) const { return alpha_ns + beta_ns * x; }
};

/// Least squares with weights 1/t, so that relative errors count: the least sum of
/// ((alpha + beta x - t) / t)^2 with alpha >= 0. Throws RunError naming `what` when there are
/// fewer than two different x, a time is not above 0, or times do not grow with x.
LineFit fit_line(const std::string& what, std::span<const TimedWork> points);

/// How far each row but the first and the last is from the straight line between its neighbours:
/// what a table that is interpolated may be wrong by between its rows. r2 is that of these rows.
/// Requires: at least three points, x strictly ascending, every ns > 0.
FitError interpolation_error(std::span<const TimedWork> points);

}  // namespace moe
