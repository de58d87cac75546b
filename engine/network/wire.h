// The links of a cluster as time advances: collectives begin one by one, and end when the model of
// contention.h says. The model does not know collectives that begin later. The simulator, the
// emulated link and run_collectives() all share links through this class.
//
// A collective with which no other overlaps takes exactly its closed form in nanoseconds, if it has
// one. If another overlaps, both share links by the Share rule from the begin of the first, as if
// the second had been known. Ends do not depend on the steps in which time is advanced. Memory is
// needed only for collectives in progress and for recorded use. Which rank waits for which is not
// decided here but in replay/ and comm/.
#pragma once

#include <limits>
#include <memory>
#include <vector>

#include "engine/network/contention.h"

namespace moe {

/// Stands for the time of an event that never happens.
constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

/// A collective that has ended.
struct Done {
  size_t op = 0;  // the number that begin() returned
  NetworkTimes times;
  /// times.end_ns before rounding, so that a chain of ops does not accumulate rounding errors.
  double end_exact_ns = 0;
};

class Wire {
 public:
  /// `nodes_alike`: every op will have the same transfers for every node (is_alike()). `rank_ends`:
  /// whether the end of each rank is needed. If false, NetworkTimes::rank_end_ns may be the end of
  /// the op for all ranks; then no events are computed for an op that has a closed form and that no
  /// other op overlaps (unless keep_use). Throws UserError for a cluster that check() refuses or an
  /// efficiency outside (0, 1].
  Wire(const Cluster& cluster, const NetworkOptions& options, bool nodes_alike,
       bool rank_ends = true);
  ~Wire();

  /// Begins an op at `at_ns`, which must not be before now(). Ignores `after` and `start_ns` of the
  /// op: the caller follows them by its choice of `at_ns`. `scale` (above 0) stretches bytes,
  /// start-up and latencies, for a cost model that knows better how long the op takes without
  /// others; a value other than 1 needs ranks that begin together. With nothing else on the links,
  /// the op ends at at_ns + round(scale * its closed form). Requires: an op that run_collectives()
  /// accepts. Returns the number of the op, counted from 0.
  size_t begin(NetworkOp op, double at_ns, double scale = 1);

  /// The time of the next event (kNever without ops in progress); no collective ends earlier.
  Nanoseconds next_ns();
  /// Advances to `to`, which must not be before now(). Appends the collectives that ended.
  void advance(Nanoseconds to, std::vector<Done>& ended);
  /// Advances to the next event; returns false when there is none. Use it instead of advance() when
  /// all begins up to the next event are known and now() is not needed.
  bool step(std::vector<Done>& ended);
  Nanoseconds now() const;
  /// Whether the next event may be the end of `op`: it is in its last step, or no op overlaps it.
  bool may_end_next(size_t op);

  /// Returns what the links carried since the last call (needs keep_use), for each link in
  /// ascending order of begin. The rate at which a link is used now is reported when it changes.
  std::vector<LinkUse> take_use();
  /// Name of a link, by LinkUse::link. With nodes_alike, all links are of node 0.
  LinkName name(uint32_t link) const;
  double bytes_per_s(uint32_t link) const;
  uint32_t num_links() const;
  /// Number of events so far, a measure of the cost of the computation.
  int64_t num_events() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moe
