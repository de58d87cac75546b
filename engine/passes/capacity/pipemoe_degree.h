// PipeMoE (Shi et al., INFOCOM 2023): into how many chunks should an MoE layer be cut? Pure
// functions of two straight lines, one for transfers and one for experts; no graph, no op.
//
// A layer in r chunks is r transfers D_1..D_r, the experts E_1..E_r, r transfers back C_1..C_r:
//   a = alpha_a + beta_a n_d / r    a transfer of a chunk (Eq. 16 to 18)
//   e = alpha_e + beta_e n_e / r    the experts of a chunk (Eq. 13 to 15)
// One network and one compute unit, each doing one thing at a time; the network in the order
// D_1..D_r, C_1..C_r, which no other order beats, since both of these are lower bounds of any:
//   g(r) = 2 r alpha_a + 2 beta_a n_d    the network never rests (Eq. 25, 40)
//   h(r) = 2 alpha_a + 2 beta_a n_d / r + r alpha_e + beta_e n_e    nor the experts (Eq. 33)
//   T(r) = max(g(r), h(r)), for r = 1 too
// T is convex, so the best r is beside a minimum of h or a crossing of g and h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moe {

/// One way through a layer, in seconds; every field is at least 0.
struct LayerTimes {
  double alpha_a = 0;  // start-up of a transfer
  double wire = 0;     // beta_a n_d: a whole transfer beyond its start-up
  double alpha_e = 0;  // start-up of a chunk's experts, both GEMMs
  double work = 0;     // beta_e n_e: the whole experts beyond their start-up
};

/// T(degree). Requires: degree >= 1, also below.
double layer_time(const LayerTimes& times, int64_t degree);
/// The same, chunk by chunk: Eq. 9 to 12, in which C_1 also waits for D_r (Eq. 11 as printed lets
/// the two share the network, against the text, figure 5a and Eq. 25).
double layer_time_by_recurrence(const LayerTimes& times, int64_t degree);

/// What is known of a layer. Units: seconds; n_d in bytes of a rank's all-to-all, n_e in
/// multiply-adds of one of the two GEMMs of its experts, rows * M * H.
struct LayerModel {
  double alpha_a = 0, beta_a = 0, n_d = 0;
  double alpha_e = 0, beta_e = 0, n_e = 0;
  /// The experts' backward; as printed nowhere: by default twice the forward, since the gradient of
  /// each GEMM is two of its size. The transfers are those of the forward.
  std::optional<double> alpha_b = {}, beta_b = {};
  /// Spent once where a layer is cut, whatever the degree: copies that take it apart and put it
  /// together. Not in the paper, whose model takes them to be free.
  double cut_s = 0;
};
/// Throws UserError naming "<who>.<field>" and its value where that is negative or not finite.
void check(const LayerModel& layer, std::string_view who);

/// forward: T of the forward. step: T of forward and backward, cut alike.
enum class DegreeObjective : uint8_t { kForward, kStep };

/// Requires: check() passed.
std::vector<LayerTimes> times_of(const LayerModel& layer, DegreeObjective objective);

struct DegreeProblem {
  std::vector<LayerTimes>
      ways;          // one after the other, cut at one degree; 1 or 2, the forward first
  double cut_s = 0;  // where the degree is above 1
  int64_t max_degree = 64;
  std::optional<std::vector<int64_t>> allowed = {};  // ascending; none: 1 to max_degree
};
/// Throws UserError naming "<who>.max_degree" or "<who>.allowed": a degree below 1 or above
/// max_degree, an empty set, degrees that do not ascend.
void check(const DegreeProblem& problem, std::string_view who);

/// The objective at a degree: the sum of the ways, and what cutting takes.
double time_of(const DegreeProblem& problem, int64_t degree);

struct DegreeChoice {
  int64_t degree = 1;
  double time_s = 0;  // time_of it
};
/// The best degree; of equal ones the smallest. O(1) beside a search in `allowed`. Requires:
/// checked, as do the next two.
DegreeChoice exact_degree(const DegreeProblem& problem);
/// The same by trying every degree.
DegreeChoice brute_degree(const DegreeProblem& problem);

/// Algorithm 1 of the paper, lines 4 to 17, f_3 and f_4 minimised by SLSQP from r = 2. It knows the
/// forward alone, whatever the objective. What the paper leaves open: a real-valued r is rounded to
/// the nearest, then to the nearest degree allowed (the smaller of two).
/// kPrinted leaves the errata in: line 5 has t_1 with transfers and experts swapped (it should be
/// Eq. 19); line 6 takes Q1 for a lower bound of r also where alpha_a < alpha_e (its denominator is
/// read as Eq. 28's, alpha_a - alpha_e; as printed, alpha_e - alpha_e, it is 0). kFixed mends both:
/// where alpha_a <= alpha_e, Q1 bounds r from above and the least r is 2, or there is none.
enum class PaperVersion : uint8_t { kPrinted, kFixed };
DegreeChoice paper_degree(const DegreeProblem& problem, PaperVersion version);
/// The real-valued r that Algorithm 1 returns, before any rounding.
double paper_real_degree(const LayerTimes& forward, PaperVersion version);

/// "exact", "brute", "paper", "paper_fixed".
std::vector<std::string> degree_methods();
/// Checks the problem and chooses by a method's name. Throws UserError naming `who`, with the
/// nearest method where it is unknown.
DegreeChoice choose_degree(const DegreeProblem& problem, std::string_view method,
                           std::string_view who);

}  // namespace moe
