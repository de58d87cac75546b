// When the turns of a pipeline begin and end, from a time per stage and kind of work, without unit.
//
// A rank runs its row in order, one entry (a turn or a pair) at a time, from 0 on. An F waits for
// the activation of the stage before, a B or I for the gradient of the stage behind, which exists
// at the end of that stage's I or B. A pair begins when both halves can, and gives both results at
// its end. Transfers inside a rank take no time.
#pragma once

#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/pipeline/table.h"

namespace moe::pipeline {

/// A transfer between ranks begins at the end of what it sends. kAsync: all at once. kLink: those
/// of an ordered pair of ranks one after the other, in the sender's order, of a pair the activation
/// first. kBlocking: they occupy the sender, one after the other, until they have arrived.
enum class SendMode : uint8_t { kAsync, kLink, kBlocking };
constexpr std::array<const char*, 3> names_of(SendMode) {
  return {"async", "link", "blocking"};
}

/// The longest ways through an entry, in place of its length: when the lanes of its rank (0:
/// compute; others: transfers among its ranks) are free behind it, and when its results exist.
struct Paths {
  static constexpr double kNone = -std::numeric_limits<double>::infinity();  // no way
  size_t lanes = 1;
  /// From each lane, the activation (F) and the gradient (B) that the entry waits for, to each of
  /// `ends`: [end][lanes + 2]. ends: the lanes, the activation and the gradient that it gives
  /// (kNone: as the compute lane), and further ones (Timeline::ways).
  std::vector<std::vector<double>> delays;
  std::array<double, 2> wires{};  // how long the transfer of the activation and the gradient takes
  double busy = 0;                // how long it computes
};

struct Costs {
  /// [rank][entry]: in place of times, pair, send_f, send_b and links; empty: none.
  std::vector<std::vector<const Paths*>> paths;
  // [F, B, I, W][stage], or [Shape::index(stage, micro-batch)]; none: 0
  std::array<std::vector<double>, 4> times;
  std::optional<double> pair;  // how long a pair takes; none: both lengths in sequence, less
  double pair_saving = 0;      // this, at least the longer half
  SendMode mode = SendMode::kAsync;
  double send_f = 0, send_b = 0;                        // an activation, a gradient between ranks
  std::map<std::pair<int64_t, int64_t>, double> links;  // [from, to]: in place of send_f and send_b
  // What an activation counts in Timeline::peak, [stage] (none: 1), and its share from I to W.
  std::vector<double> act;
  double keep_w = 1;
};

struct Timeline {
  std::vector<std::vector<double>> begins, ends;  // [rank][entry]
  double step = 0;                                // the last end
  // [rank]. busy: sum of the entries' lengths; bubble = step - busy; inner = last end - first begin
  // - busy; sending: the time that blocking transfers occupy the rank, a part of the bubble.
  std::vector<double> busy, bubble, inner, sending;
  // [rank]: the most activations held at once, in stages x micro-batches. An F takes one at its
  // begin, B gives it back at its end, I all but keep_w of it and W the rest. In a pair the F takes
  // before the B gives.
  std::vector<double> peak;
  std::vector<std::vector<std::vector<double>>> ways;  // [rank][entry][end of its Paths]: when
  std::vector<Finding> stuck;  // "deadlock" for each rank that waits for ever, and at which entry
};

/// Returns the timeline of rows in which find_faults() finds nothing but deadlocks. transfers:
/// whether the rows have all transfers between ranks. A receive then waits for its send, while a
/// send does not wait for its receive, and only `stuck` has a meaning.
Timeline compose(const std::vector<Row>& rows, const Shape& shape, const Costs& costs,
                 bool transfers = false);

}  // namespace moe::pipeline
