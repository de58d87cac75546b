// PipeMoE (Shi et al., INFOCOM 2023): into how many parts should an MoE layer be cut? Pure
// functions of two straight lines, one for the time of transfers and one for the time of experts.
// Graphs and ops are not known here; pipemoe_fit.h derives the lines from them.
//
// A layer in r parts consists of r transfers D_1..D_r, the experts E_1..E_r and r transfers back
// C_1..C_r. Times of one part:
//   a = alpha_a + beta_a n_d / r    a transfer (Eq. 16 to 18)
//   e = alpha_e + beta_e n_e / r    its experts (Eq. 13 to 15)
// There is one network and one compute unit, and each does one thing at a time. The network runs
// D_1..D_r, C_1..C_r; no other order is faster, because g and h are lower bounds for every order:
//   g(r) = 2 r alpha_a + 2 beta_a n_d    the network never idles (Eq. 25, 40)
//   h(r) = 2 alpha_a + 2 beta_a n_d / r + r alpha_e + beta_e n_e    the experts never idle (Eq. 33)
//   T(r) = max(g(r), h(r)), also for r = 1
// T is convex, so the best r is next to a minimum of h or next to a crossing of g and h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moe {

/// Times of one way (forward or backward) through a layer, in seconds; every field is at least 0.
struct LayerTimes {
  double alpha_a = 0;  // start-up time of a transfer
  double wire = 0;     // beta_a n_d: time of an uncut transfer without its start-up
  double alpha_e = 0;  // start-up time of the experts of a part, both GEMMs
  double work = 0;     // beta_e n_e: time of the uncut experts without their start-up
};

/// Returns T(degree) in seconds. Requires: degree >= 1 (so do the functions below).
double layer_time(const LayerTimes& times, int64_t degree);
/// Returns T(degree), computed part by part: Eq. 9 to 12, where C_1 also waits for D_r. (As
/// printed, Eq. 11 lets C_1 and D_r use the network at the same time, against the paper's text,
/// figure 5a and Eq. 25.)
double layer_time_by_recurrence(const LayerTimes& times, int64_t degree);

/// The two lines and the work of a layer. Units: seconds; n_d is the bytes of a rank's all-to-all,
/// n_e the multiply-adds of one of the two GEMMs of the rank's experts, rows * M * H.
struct LayerModel {
  double alpha_a = 0, beta_a = 0, n_d = 0;
  double alpha_e = 0, beta_e = 0, n_e = 0;
  /// The line of the experts' backward. The paper prints no values; the default is twice the
  /// forward, because the backward of each GEMM is two GEMMs of the same size. The backward's
  /// transfers take as long as those of the forward.
  std::optional<double> alpha_b = {}, beta_b = {};
  /// Time that is spent once where a layer is cut, whatever the degree: the memory copies that
  /// split and join the rows. Not in the paper, whose model takes these copies to be free.
  double cut_s = 0;
};
/// Throws UserError naming "<who>.<field>" and its value when the value is negative or not finite.
void check(const LayerModel& layer, std::string_view who);

/// What to minimize. kForward: T of the forward. kStep: T of the forward plus T of the backward,
/// with both cut at the same degree.
enum class DegreeObjective : uint8_t { kForward, kStep };

/// Returns the forward's times and, for kStep, the backward's. Requires: check() passed.
std::vector<LayerTimes> times_of(const LayerModel& layer, DegreeObjective objective);

struct DegreeProblem {
  std::vector<LayerTimes>
      ways;          // run one after the other at the same degree; 1 or 2, the forward first
  double cut_s = 0;  // added when the degree is above 1
  int64_t max_degree = 64;
  std::optional<std::vector<int64_t>> allowed = {};  // ascending; nullopt allows 1 to max_degree
};
/// Throws UserError naming "<who>.max_degree" or "<who>.allowed" for a degree below 1 or above
/// max_degree, an empty set, and degrees that do not ascend.
void check(const DegreeProblem& problem, std::string_view who);

/// Returns the objective at a degree in seconds: the sum of T over the ways, plus cut_s where the
/// layer is cut (degree > 1).
double time_of(const DegreeProblem& problem, int64_t degree);

struct DegreeChoice {
  int64_t degree = 1;
  double time_s = 0;  // time_of(problem, degree)
};
/// Returns the best degree; of several equal ones the smallest. Takes O(1) apart from a search in
/// `allowed`. Requires: check() passed (so do the next two functions).
DegreeChoice exact_degree(const DegreeProblem& problem);
/// Returns the same as exact_degree by trying every degree.
DegreeChoice brute_degree(const DegreeProblem& problem);

/// Algorithm 1 of the paper, lines 4 to 17, with f_3 and f_4 minimized by SLSQP from r = 2. It
/// considers only the forward, whatever the objective. Left open by the paper: a real-valued r is
/// rounded to the nearest integer, then to the nearest allowed degree (the smaller of two).
/// kPrinted keeps the paper's errata. Line 5 has t_1 with transfers and experts swapped (it should
/// be Eq. 19). Line 6 takes Q1 for a lower bound of r even where alpha_a < alpha_e (its denominator
/// is read as that of Eq. 28, alpha_a - alpha_e; with the printed one, alpha_e - alpha_e, it is 0).
/// kFixed corrects both: where alpha_a <= alpha_e, Q1 is an upper bound of r, and the r chosen
/// there is 2, or none if that bound is below 2.
enum class PaperVersion : uint8_t { kPrinted, kFixed };
DegreeChoice paper_degree(const DegreeProblem& problem, PaperVersion version);
/// Returns the real-valued r that Algorithm 1 returns, before any rounding.
double paper_real_degree(const LayerTimes& forward, PaperVersion version);

/// Returns the names of the methods: "exact", "brute", "paper", "paper_fixed".
std::vector<std::string> degree_methods();
/// Checks the problem and chooses a degree with the named method. Throws UserError naming `who`
/// when check() fails, and with the nearest method name when the method is unknown.
DegreeChoice choose_degree(const DegreeProblem& problem, std::string_view method,
                           std::string_view who);

}  // namespace moe
