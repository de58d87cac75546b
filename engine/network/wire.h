// The wire of a cluster while time goes on: collectives come one by one, and end when the model of
// contention.h says, which knows nothing of what will come. The simulator, the emulated link and
// run_collectives() all share links by it.
//
// A collective that nothing joins takes its closed form, to the nanosecond; one that another joins
// shares by the rule from its begin on, as if the other had been known. Ends do not depend on the
// steps in which time goes on. Memory is that of the collectives on their way, and of the use that
// is kept. Not here: who waits for whom.
#pragma once

#include <limits>
#include <memory>
#include <vector>

#include "engine/network/contention.h"

namespace moe {

constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

/// A collective that ended.
struct Done {
  size_t op = 0;  // its number
  NetworkTimes times;
  /// times.end_ns before it was rounded: a chain of ops that goes on from here gathers no rounding.
  double end_exact_ns = 0;
};

class Wire {
 public:
  /// nodes_alike: every op that will come is the same seen from every node (is_alike), so that one
  /// node stands for all. Throws UserError for a cluster that check() refuses or an efficiency
  /// outside (0, 1]. rank_ends: false where nobody asks when single ranks were through;
  /// NetworkTimes::rank_end_ns may be the op's end then; what nothing joins goes by closed form.
  Wire(const Cluster& cluster, const NetworkOptions& options, bool nodes_alike,
       bool rank_ends = true);
  ~Wire();

  /// The op (not its `after` and start_ns, which say when to call this) begins at at_ns, not before
  /// now(). Its bytes, start-up and latencies are stretched by `scale`, above 0: for a cost model
  /// that knows better how long it takes alone; other than 1 only for ranks that start together.
  /// With nothing else on the links it ends at at_ns + round(scale * its closed form). Requires: an
  /// op that run_collectives() accepts. Returns its number, counted from 0.
  size_t begin(NetworkOp op, double at_ns, double scale = 1);

  /// When something next happens, not before now(); kNever when nothing is on its way. No
  /// collective ends before.
  Nanoseconds next_ns();
  /// Time goes on to `to`, not before now(). Appends what ended.
  void advance(Nanoseconds to, std::vector<Done>& ended);
  /// Instead, where all begins so far are known and no time is watched: on to the next thing that
  /// happens, if anything does.
  bool step(std::vector<Done>& ended);
  Nanoseconds now() const;
  /// Whether the op, which has not ended, takes no more steps: what happens next may be its end.
  bool may_end_next(size_t op);

  /// What the links carried since the last call (with keep_use), ascending by begin for each link;
  /// the rate that a link has now is told when it changes.
  std::vector<LinkUse> take_use();
  /// By LinkUse::link. Of node 0 alone where nodes are alike.
  LinkName name(uint32_t link) const;
  double bytes_per_s(uint32_t link) const;
  uint32_t num_links() const;
  /// What has happened so far; the cost of it all.
  int64_t num_events() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moe
