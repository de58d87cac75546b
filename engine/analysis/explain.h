// Why communication was exposed: every nanosecond of exposed_comm_ns (timeline/metrics.h) of every
// rank belongs to one collective and one cause, for simulated and executed timelines alike.
//
// The account. Where compute stands still until an op X begins, X waits for the last of its
// predecessors to end, that one, P, for the last of its own, and so on back to where compute
// stopped. A stretch belongs to the collective that is waited for in it. P lasts from the end of
// the last op whose data it needs to its own end, and is made of its transfer, alone on the wire,
// and of delays (an order edge, a lane, late members, a hold, a hand-over, chunks, contention).
// Without the delays the transfer alone would have come first; what compute hid of P is therefore
// taken off the transfer, then off the delays in the order in which they came. What is left of the
// transfer is inherent (data), unless a compute op could have run meanwhile and did so at another
// time, in which it hid nothing: then the cause is what kept that op, an order edge or the lane's
// order. An op accounts for no more than the time that it takes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/replay/replay.h"
#include "engine/timeline/timeline.h"

namespace moe {

enum class Cause : uint8_t {
  kData,          // `to` needs what `from`, the collective, brings (no `to`: the step's end)
  kOrderEdge,     // `to` waits for `from` by an order edge alone
  kLaneOrder,     // `from` stands on a lane before `to`, which does not need it
  kLaneBusy,      // `to`, the collective, waits while its lane or arbiter carries `from`
  kMembers,       // posted, but not yet on `late_rank`, which `from` kept
  kHold,          // held back from `from` until `to` is posted
  kCoordination,  // handed over between lanes, or chosen
  kStartUp,       // its chunks take longer than the whole would
  kContention,    // slower than alone, with `from` on the wire
  kSlower,        // slower than the cost model says, alone on the wire
};
/// "data edge", "order edge", ...
const char* cause_name(Cause cause);

/// A share of the exposed time.
struct Exposure {
  OpId op;  // the collective
  Cause cause = Cause::kData;
  OpId from, to;
  int32_t late_rank = -1;
  std::string stage = {};  // that made the edge, the hold, the lane, priority or chunk; "" for none
  Nanoseconds ns = 0;      // summed over ranks
};

/// One collective, summed over ranks except for alone_ns.
struct CollectiveShare {
  OpId op;
  Bytes bytes = 0;
  Nanoseconds alone_ns = 0;     // what the cost model says for the whole of it
  Nanoseconds waited_ns = 0;    // from post to begin, of every chunk
  Nanoseconds transfer_ns = 0;  // from begin to end
  Nanoseconds hidden_ns = 0;    // the part of transfer_ns under compute
  Nanoseconds exposed_ns = 0;   // its share of the exposed time
  std::vector<std::pair<OpId, Nanoseconds>> hidden_by;  // the longest first
  std::vector<Exposure> delays;  // from when its data was there on, hidden or not
};

struct Explanation {
  std::vector<CollectiveShare> collectives;  // by first begin
  std::vector<Exposure> exposures;           // the longest first
  std::vector<Nanoseconds> exposed_ns;       // by rank: exactly the sum of its exposures
  Nanoseconds makespan_ns = 0;
  LowerBound bound;
};

/// Requires: the timeline has a span of every op on every rank, as replay and executors make it.
/// input.num_ranks is not read: the timeline knows. O(ops^2 / 64) memory.
Explanation explain(const ReplayInput& input, const Timeline& timeline);

}  // namespace moe
