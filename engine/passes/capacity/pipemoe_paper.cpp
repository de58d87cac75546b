// Algorithm 1 of PipeMoE, with the solver that the paper names: NLopt's SLSQP (Kraft 1994).
#include <nlopt.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "engine/base/errors.h"
#include "engine/passes/capacity/pipemoe_degree.h"

namespace moe {
namespace {

/// A real-valued r and its time T(r); the time is infinite when no r satisfies the constraints.
struct Candidate {
  double r = 2;
  double t = std::numeric_limits<double>::infinity();
};

/// One of the two minimization problems, f_3 or f_4 with its constraints. Times are divided by
/// `scale` seconds, so that tolerances are relative.
struct Problem {
  LayerTimes times;
  double scale;
  bool q2;  // true: f_3, where Q2 (Eq. 36) holds; false: f_4, where it does not
};

/// The function to minimize: Eq. 34 (f_3) or Eq. 41 (f_4).
double objective(unsigned, const double* x, double* gradient, void* data) {
  const Problem& p = *static_cast<const Problem*>(data);
  const LayerTimes& t = p.times;
  const double r = x[0];
  if (gradient != nullptr) {
    gradient[0] = (p.q2 ? t.alpha_e - 2 * t.wire / (r * r) : 2 * t.alpha_a) / p.scale;
  }
  const double f3 = 2 * t.alpha_a + t.work + 2 * t.wire / r + t.alpha_e * r;
  return (p.q2 ? f3 : 2 * t.alpha_a * r + 2 * t.wire) / p.scale;
}

/// The constraint "not Q1" (Eq. 35): at most 0 where a part's transfer is not longer than its
/// experts.
double not_q1(unsigned, const double* x, double* gradient, void* data) {
  const Problem& p = *static_cast<const Problem*>(data);
  const LayerTimes& t = p.times;
  const double r = x[0];
  if (gradient != nullptr) gradient[0] = (t.work - t.wire) / (r * r) / p.scale;
  return (t.alpha_a - t.alpha_e + (t.wire - t.work) / r) / p.scale;
}

/// The constraint Q2 (Eq. 36) for f_3; for f_4 its negation (Eq. 43 with the sign turned).
double q2(unsigned, const double* x, double* gradient, void* data) {
  const Problem& p = *static_cast<const Problem*>(data);
  const LayerTimes& t = p.times;
  const double r = x[0], sign = (p.q2 ? 1 : -1) / p.scale;
  if (gradient != nullptr) {
    gradient[0] = sign * (2 * t.alpha_a + 2 * t.wire / (r * r) - t.alpha_e);
  }
  return sign * (2 * (r - 1) * t.alpha_a + 2 * (r - 1) / r * t.wire - r * t.alpha_e - t.work);
}

Candidate solve(const LayerTimes& times, bool with_q2) {
  constexpr double kTolerance = 1e-9;  // of constraints, relative to the time of the uncut layer
  constexpr int kMostEvaluations = 200;
  Problem problem{times, layer_time(times, 1), with_q2};
  const std::unique_ptr<nlopt_opt_s, void (*)(nlopt_opt)> solver(nlopt_create(NLOPT_LD_SLSQP, 1),
                                                                 nlopt_destroy);
  MOE_CHECK(solver != nullptr,
            "nlopt_create returned null, but must return a solver; memory may be used up");
  nlopt_set_min_objective(solver.get(), objective, &problem);
  nlopt_set_lower_bounds1(solver.get(), 2);
  nlopt_add_inequality_constraint(solver.get(), not_q1, &problem, kTolerance);
  nlopt_add_inequality_constraint(solver.get(), q2, &problem, kTolerance);
  nlopt_set_xtol_rel(solver.get(), 1e-10);
  nlopt_set_maxeval(solver.get(), kMostEvaluations);
  double r = 2, value = 0;
  nlopt_optimize(solver.get(), &r, &value);  // its status is ignored: only r is judged
  const bool feasible = std::isfinite(r) && r >= 2 &&
                        not_q1(1, &r, nullptr, &problem) <= kTolerance &&
                        q2(1, &r, nullptr, &problem) <= kTolerance;
  if (!feasible) return {};
  return {r, objective(1, &r, nullptr, &problem) * problem.scale};
}

/// The case in which Q1 holds (transfers are longer than experts): r by Eq. 28, its time by f_2.
Candidate where_q1(const LayerTimes& t, PaperVersion version) {
  double r = 2;
  if (version == PaperVersion::kFixed && t.alpha_a <= t.alpha_e) {
    if (t.alpha_a + t.wire / 2 < t.alpha_e + t.work / 2) return {};
  } else {
    r = std::max(2.0, std::ceil((t.work - t.wire) / (t.alpha_a - t.alpha_e)));
  }
  if (!std::isfinite(r)) return {};
  return {r, 2 * r * t.alpha_a + 2 * t.wire};
}

}  // namespace

double paper_real_degree(const LayerTimes& t, PaperVersion version) {
  const double eq19 = 2 * (t.alpha_a + t.wire) + t.alpha_e + t.work;
  const double line5 = 2 * (t.alpha_e + t.work) + t.alpha_a + t.wire;
  const double t1 = version == PaperVersion::kFixed ? eq19 : line5;
  const Candidate all[] = {where_q1(t, version), solve(t, true), solve(t, false)};
  const Candidate* best = std::min_element(std::begin(all), std::end(all),
                                           [](const auto& a, const auto& b) { return a.t < b.t; });
  return best->t >= t1 ? 1 : best->r;
}

DegreeChoice paper_degree(const DegreeProblem& problem, PaperVersion version) {
  const double real = paper_real_degree(problem.ways.front(), version);
  const double r = std::round(std::min(real, static_cast<double>(problem.max_degree)));
  auto degree = static_cast<int64_t>(r);
  if (problem.allowed) {
    degree = *std::min_element(
        problem.allowed->begin(), problem.allowed->end(), [r](int64_t a, int64_t b) {
          return std::abs(static_cast<double>(a) - r) < std::abs(static_cast<double>(b) - r);
        });
  }
  return {degree, time_of(problem, degree)};
}

}  // namespace moe
