// Why communication was exposed. explain() assigns each nanosecond of exposed_comm_ns
// (timeline/metrics.h) of each rank to one collective and one cause, in simulated and in executed
// timelines by the same rule. What could be changed is in findings.h.
//
// The method. Say the compute lane is idle until op X begins. X waited for the last of its
// predecessors to end, call it P; P waited for the last of its own predecessors, and so on back to
// the time when compute stopped. Each piece of the idle time belongs to the collective that is
// waited for in it. If P is a collective, its time is counted from when the data that P needs is
// complete until P ends. This time consists of the transfer time that P takes alone on the wire,
// and of delays (an order edge, a lane, late members, a hold, a hand-over, chunks, contention). If
// compute ran during a part of it, that part is subtracted from the transfer time first, then from
// the delays in the order in which they occurred. The rest of the transfer time is inherent
// (kData). An exception is a compute op that could have run during P, but ran while no transfer was
// in flight: then the cause is what kept this op from running during P, an order edge or the order
// of the lane. A compute op explains at most as much time as it takes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/replay/replay.h"
#include "engine/timeline/timeline.h"

namespace moe {

/// Why time of a collective was exposed. `from`, `to` and `late_rank` are members of Exposure.
enum class Cause : uint8_t {
  kData,          // `to` needs data of `from`, the collective (invalid `to`: the step's end)
  kOrderEdge,     // `to` waits for `from` only because of an order edge
  kLaneOrder,     // `from` precedes `to` on a lane, but `to` does not need `from`
  kLaneBusy,      // `to`, the collective, waits while its lane or arbiter transfers `from`
  kMembers,       // `late_rank` posted later than this rank, as it waited for `from`
  kHold,          // a hold delayed the collective from the begin of `from` until `to` was posted
  kCoordination,  // a wait for a hand-over between lanes, or for the choice of the next op
  kStartUp,       // the chunks together take longer than the collective in one piece
  kContention,    // slower than alone, while `from` used the network too
  kSlower,        // slower than in the cost model, although alone on the network
};
constexpr std::array<const char*, 10> names_of(Cause) {
  return {"data edge", "order edge",   "lane order", "lane busy",  "members",
          "hold",      "coordination", "start-up",   "contention", "slower"};
}

/// A part of the exposed time that has one collective and one cause.
struct Exposure {
  OpId op;  // the collective
  Cause cause = Cause::kData;
  OpId from, to;
  int32_t late_rank = -1;
  std::string stage = {};  // the stage that set the edge, hold, lane, priority or chunk; or ""
  Nanoseconds ns = 0;      // summed over ranks
};

/// One collective, summed over ranks except for alone_ns.
struct CollectiveShare {
  OpId op;
  Bytes bytes = 0;
  Nanoseconds alone_ns = 0;     // time in the cost model, alone and not cut into chunks
  Nanoseconds waited_ns = 0;    // from post to begin, over all chunks
  Nanoseconds transfer_ns = 0;  // from begin to end, over all chunks
  Nanoseconds hidden_ns = 0;    // the part of transfer_ns during which compute ran
  Nanoseconds exposed_ns = 0;   // exposed time that has this collective as its cause
  std::vector<std::pair<OpId, Nanoseconds>> hidden_by;  // compute ops, the longest time first
  std::vector<Exposure> delays;  // all delays since its data was ready, hidden or exposed
};

struct Explanation {
  std::vector<CollectiveShare> collectives;  // in the order of their begins on rank 0
  std::vector<Exposure> exposures;           // the longest first
  std::vector<Nanoseconds> exposed_ns;       // per rank; in sum over ranks that of exposures[i].ns
  Nanoseconds makespan_ns = 0;
  LowerBound bound;
};

/// Explains the exposed communication of one step. Requires: the timeline has a span of each op on
/// each rank, as timelines of replay and of executors have. The number of ranks is that of the
/// timeline. Needs O(ops^2 / 64) memory.
Explanation explain(const ReplayInput& input, const Timeline& timeline);

/// Returns the cause of an exposure in words, with its op, edge and stage.
std::string cause_text(const Graph& graph, const Schedule& schedule, const Exposure& exposure);
/// Returns " (stage 'x')"; "" where the stage is not known.
std::string by_stage(const std::string& stage);

}  // namespace moe
