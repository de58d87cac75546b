// When the turns of a pipeline begin and end, from a time per stage and kind of work. Times have no
// unit. One rank stands for all ranks that run its program; what happens inside a turn is not here.
//
// A rank runs its row in order, one entry (a turn or a pair) at a time, from 0 on. An F waits for
// the activation of the stage before, a B or I for the gradient of the stage behind, which exists
// at the end of that stage's I or B. A pair begins when both halves can, and gives both results at
// its end. Transfers inside a rank take no time.
#pragma once

#include <vector>

#include "engine/pipeline/table.h"

namespace moe::pipeline {

/// How long a pair takes: both lengths in sequence; the longer half; `value`; or `value` less than
/// both in sequence, at least the longer half.
enum class PairRule : uint8_t { kSum, kMax, kFixed, kSaving };
constexpr std::array<const char*, 4> names_of(PairRule) {
  return {"sum", "max", "fixed", "saving"};
}

/// A transfer between ranks begins at the end of what it sends. kAsync: all at once. kLink: those
/// of an ordered pair of ranks one after the other, in the sender's order, of a pair the activation
/// first. kBlocking: they occupy the sender, one after the other, until they have arrived.
enum class SendMode : uint8_t { kAsync, kLink, kBlocking };
constexpr std::array<const char*, 3> names_of(SendMode) {
  return {"async", "link", "blocking"};
}

/// The time of transfers from one rank to another, in place of Costs::send_f and send_b.
struct LinkTime {
  int64_t from = 0, to = 0;
  double time = 0;
};

struct Costs {
  std::vector<double> f, b, i, w;  // [stages]; none: 0. Of b none: i + w
  PairRule pair = PairRule::kSum;
  double pair_value = 0;
  SendMode mode = SendMode::kAsync;
  double send_f = 0, send_b = 0;  // of an activation, of a gradient
  std::vector<LinkTime> links;
};

struct Entry {
  size_t at = 0;  // the first action of the entry in its row
  double begin = 0, end = 0;
};

struct Timeline {
  std::vector<std::vector<Entry>> entries;  // [rank]
  double step = 0;                          // the last end
  // [rank]. busy: sum of the entries' lengths; bubble = step - busy; inner = last end - first begin
  // - busy; sending: the time that blocking transfers occupy the rank, a part of the bubble.
  std::vector<double> busy, bubble, inner, sending;
};

/// Returns the timeline of rows in which find_faults() finds nothing; transfers that the rows spell
/// out are left out. The time of this grows linearly with the entries.
Timeline compose(const std::vector<Row>& rows, const Shape& shape, const Costs& costs);

/// Returns a finding "deadlock" for each rank that waits for ever, with the entry at which it
/// stands. Requires rows in which find_faults() finds nothing else.
std::vector<Finding> find_deadlock(const std::vector<Row>& rows, const Shape& shape, bool spelled);

/// Returns the most activations that each rank holds at once, in stages x micro-batches, counted
/// with the weight of the stage in `act` [stages] if that is given. An F takes an activation at its
/// begin, B gives it back at its end, I all but keep_w of it and W the rest. In a pair the F takes
/// before the B gives.
std::vector<double> peaks(const std::vector<Row>& rows, const std::vector<double>& act,
                          double keep_w);

}  // namespace moe::pipeline
