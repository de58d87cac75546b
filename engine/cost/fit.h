// Straight lines fitted to measured times: a start-up time plus a time per unit of work, as PipeMoE
// fits its GEMMs and all-to-alls (t = alpha + beta x, INFOCOM 2023, section IV). Also the errors of
// predicted times. Measuring is in profile/.
#pragma once

#include <span>
#include <string>

namespace moe {

/// A measured point: the amount of work x (flops or bytes) and its time in ns.
struct TimedWork {
  double x = 0;
  double ns = 0;
};

/// Errors of predicted times. median and worst (largest) are of |predicted - measured| / measured.
struct FitError {
  double median = 0;
  double worst = 0;
  size_t worst_row = 0;  // counted from 0
  double r2 = 0;         // 1 - sum of squared residuals / sum of squared (time - mean time)
};
/// Returns the errors of predicted_ns[i] for points[i]. Where all measured times are equal, r2 is 1
/// if the predictions are exact and 0 otherwise. Requires: one prediction per point, at least one
/// point, every ns > 0.
FitError fit_error(std::span<const TimedWork> points, std::span<const double> predicted_ns);

struct LineFit {
  double alpha_ns = 0;  // >= 0
  double beta_ns = 0;   // per unit of x, >= 0
  FitError error;
  double at(double x) const { return alpha_ns + beta_ns * x; }
};

/// Fits a line by least squares of relative errors: minimizes the sum of
/// ((alpha + beta x - t) / t)^2 with alpha >= 0. Throws RunError naming `what` when a time is not
/// above 0. Where times do not grow with x, or there are fewer than two different x, beta is 0 and
/// alpha the mean of times if `may_be_flat` (as of small transfers, which take about their
/// start-up); else it throws RunError.
LineFit fit_line(const std::string& what, std::span<const TimedWork> points,
                 bool may_be_flat = false);

/// Estimates the error of linear interpolation between the rows of a table: compares each row
/// except the first and the last with the line between its two neighbours. r2 is that of these
/// rows. Requires: at least three points, x strictly ascending, every ns > 0.
FitError interpolation_error(std::span<const TimedWork> points);

}  // namespace moe
