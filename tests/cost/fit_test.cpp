#include "engine/cost/fit.h"

#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "engine/base/rng.h"

namespace moe {
namespace {

using Points = std::vector<TimedWork>;

double weighted_squares(const Points& points, double alpha, double beta) {
  double sum = 0;
  for (const TimedWork& p : points) {
    const double relative = (alpha + beta * p.x - p.ns) / p.ns;
    sum += relative * relative;
  }
  return sum;
}

Points noisy_line(double alpha, double beta, double noise, uint64_t seed) {
  Rng rng(seed);
  Points points;
  for (double x = 1e3; x < 1e9; x *= 3) {
    points.push_back({x, (alpha + beta * x) * (1 + noise * (2 * rng.uniform() - 1))});
  }
  return points;
}

TEST_CASE("a fit finds the line that times lie on") {
  const LineFit fit = fit_line("line", noisy_line(5000, 0.25, 0, 1));
  CHECK(fit.alpha_ns == Approx(5000));
  CHECK(fit.beta_ns == Approx(0.25));
  CHECK(fit.at(4000) == Approx(6000));
  CHECK(fit.error.worst < 1e-9);
  CHECK(fit.error.r2 == Approx(1));
}

TEST_CASE("no line near the fit has smaller squares of relative errors") {
  const Points points = noisy_line(2000, 0.01, 0.3, GENERATE(1, 2, 3, 4, 5));
  const LineFit fit = fit_line("noisy", points);
  const double least = weighted_squares(points, fit.alpha_ns, fit.beta_ns);
  for (const double step : {-1e-2, 1e-2}) {
    CHECK(weighted_squares(points, fit.alpha_ns * (1 + step), fit.beta_ns) > least);
    CHECK(weighted_squares(points, fit.alpha_ns, fit.beta_ns * (1 + step)) > least);
    CHECK(weighted_squares(points, fit.alpha_ns * (1 + step), fit.beta_ns * (1 - step)) > least);
  }
}

TEST_CASE("relative errors count: a short time weighs as much as a long one") {
  // The least sum of squares in ns would be off by many times 100 at x = 1.
  const LineFit fit = fit_line("bent", Points{{1, 100}, {2, 101}, {1e4, 9e3}, {1e5, 1.2e5}});
  CHECK(fit.error.worst < 0.2);
}

TEST_CASE("an operation never starts before its begin: alpha is not negative") {
  const Points points = {{100, 10}, {200, 150}, {400, 420}};
  const LineFit fit = fit_line("bent", points);
  CHECK(fit.alpha_ns == 0);
  const double least = weighted_squares(points, 0, fit.beta_ns);
  CHECK(weighted_squares(points, 0, fit.beta_ns * 1.01) > least);
  CHECK(weighted_squares(points, 0, fit.beta_ns * 0.99) > least);
  CHECK(weighted_squares(points, 1, fit.beta_ns) > least);
}

TEST_CASE("what is no line is refused by name") {
  CHECK_THROWS_WITH(fit_line("gemm", Points{{1, 1}}), Catch::Contains("gemm"));
  CHECK_THROWS_WITH(fit_line("gemm", Points{{7, 1}, {7, 2}}), Catch::Contains("two different"));
  CHECK_THROWS_WITH(fit_line("gemm", Points{{1, 0}, {2, 2}}), Catch::Contains("0 ns"));
  CHECK_THROWS_AS(fit_line("gemm", Points{{1, 100}, {2, 10}, {3, 1}}), RunError);
  CHECK_THROWS_WITH(fit_line("gemm", Points{}), Catch::Contains("0 points"));
}

TEST_CASE("where asked for, times that do not grow are constant, and others a line") {
  const Points shrinking = {{1, 100}, {2, 98}, {4, 99}};
  const LineFit flat = fit_line("small", shrinking, true);
  CHECK(flat.beta_ns == 0);
  CHECK((flat.alpha_ns > 98 && flat.alpha_ns < 100));
  CHECK(flat.error.worst < 0.02);
  const LineFit same = fit_line("equal", Points{{7, 100}, {7, 100}}, true);
  CHECK((same.alpha_ns == Approx(100) && same.beta_ns == 0));
  const Points growing = {{1, 3}, {2, 5}, {4, 9}};
  CHECK(fit_line("large", growing, true).beta_ns == fit_line("large", growing).beta_ns);
}

TEST_CASE("errors are relative to what was measured, and name the worst row") {
  const Points points = {{1, 100}, {2, 200}, {3, 400}};
  const std::vector<double> predicted = {110, 200, 200};
  const FitError error = fit_error(points, predicted);
  CHECK(error.worst == Approx(0.5));
  CHECK(error.worst_row == 2);
  CHECK(error.median == Approx(0.1));
  // Mean 233.3; squared distances 46666.7, squared residuals 40100.
  CHECK(error.r2 == Approx(1 - 40100 / 46666.67).epsilon(1e-4));
}

TEST_CASE("a table's error is how far its inner rows are from between their neighbours") {
  CHECK(interpolation_error(Points{{1, 10}, {2, 20}, {4, 40}, {8, 80}}).worst == Approx(0));
  const FitError error = interpolation_error(Points{{0, 0.5}, {2, 10}, {4, 30}, {8, 70}});
  CHECK(error.worst_row == 1);
  CHECK(error.worst == Approx(0.525));  // 15.25 instead of 10
  CHECK(error.median == Approx(0));     // 30 = between 10 and 70
}

}  // namespace
}  // namespace moe
