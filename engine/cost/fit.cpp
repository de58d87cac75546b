#include "engine/cost/fit.h"

#include <algorithm>
#include <cmath>

#include "engine/base/errors.h"

namespace moe {

FitError fit_error(std::span<const TimedWork> points, std::span<const double> predicted_ns) {
  MOE_CHECK(!points.empty() && points.size() == predicted_ns.size(),
            "fit_error: there are {} measured points and {} predictions; there must be at least 1 "
            "point, and as many predictions",
            points.size(), predicted_ns.size());
  double mean = 0;
  for (const TimedWork& p : points) mean += p.ns / static_cast<double>(points.size());
  FitError error;
  double residuals = 0, distances = 0;
  std::vector<double> relative;
  for (size_t i = 0; i < points.size(); ++i) {
    const double miss = predicted_ns[i] - points[i].ns;
    residuals += miss * miss;
    distances += (points[i].ns - mean) * (points[i].ns - mean);
    relative.push_back(std::abs(miss) / points[i].ns);
    if (relative[i] > relative[error.worst_row]) error.worst_row = i;
  }
  error.worst = relative[error.worst_row];
  error.r2 = distances > 0 ? 1 - residuals / distances : (residuals > 0 ? 0 : 1);
  const auto middle = relative.begin() + static_cast<std::ptrdiff_t>((relative.size() - 1) / 2);
  std::nth_element(relative.begin(), middle, relative.end());
  error.median = *middle;
  return error;
}

LineFit fit_line(const std::string& what, std::span<const TimedWork> points, bool may_be_flat) {
  // Sums for the normal equations; each squared residual has weight 1/t^2.
  double w = 0, wx = 0, wxx = 0, wt = 0, wxt = 0;
  for (const TimedWork& p : points) {
    if (!(p.ns > 0))
      throw run_error("{}: a time is {} ns at size {:g}, but must be above 0", what, p.ns, p.x);
    const double weight = 1 / (p.ns * p.ns);
    w += weight;
    wx += weight * p.x;
    wxx += weight * p.x * p.x;
    wt += weight * p.ns;
    wxt += weight * p.x * p.ns;
  }
  const double determinant = w * wxx - wx * wx;
  const bool one_size = !(determinant > 1e-12 * w * wxx);
  if (one_size && (!may_be_flat || points.empty())) {
    throw run_error(
        "{}: fitting a line needs points of two different sizes, but all {} points have one size",
        what, points.size());
  }
  LineFit fit;
  if (!one_size) {
    fit.alpha_ns = (wt * wxx - wxt * wx) / determinant;
    fit.beta_ns = (w * wxt - wx * wt) / determinant;
    if (fit.alpha_ns < 0) fit = {.alpha_ns = 0, .beta_ns = wxt / wxx};
  }
  if (!(fit.beta_ns > 0) && may_be_flat) {
    fit = {.alpha_ns = wt / w, .beta_ns = 0};
  } else if (!(fit.beta_ns > 0)) {
    throw run_error("{}: the measured times must grow with size, but do not; is the machine busy?",
                    what);
  }
  std::vector<double> predicted;
  for (const TimedWork& p : points) predicted.push_back(fit.at(p.x));
  fit.error = fit_error(points, predicted);
  return fit;
}

FitError interpolation_error(std::span<const TimedWork> points) {
  MOE_CHECK(points.size() >= 3,
            "interpolation_error: there must be at least 3 measured points, but there are {}",
            points.size());
  std::vector<double> between;
  for (size_t i = 1; i + 1 < points.size(); ++i) {
    const TimedWork &low = points[i - 1], &high = points[i + 1];
    between.push_back(low.ns + (high.ns - low.ns) * (points[i].x - low.x) / (high.x - low.x));
  }
  FitError error = fit_error(points.subspan(1, between.size()), between);
  ++error.worst_row;
  return error;
}

}  // namespace moe
