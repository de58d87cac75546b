// Flows in progress on the links of a fabric, and when the next one ends, as a fluid model. Between
// two events (flows begin, or a flow ends) all rates are constant; at an event, only the rates in
// the affected part of the links are computed again (moving_streams.h).
//
// Invariants: a flow ends when exactly its bytes have moved; no link carries more than its rate.
// The steps of a collective are not here but in collective_steps.h.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/network/fabric.h"
#include "engine/network/moving_streams.h"

namespace moe {

class LinkClock {
 public:
  /// `efficiency`: the fraction of a link's rate that remains while flows of two or more owners use
  /// it; flows of a lower priority do not reduce the rate for a higher one. `keep_use`: record what
  /// links carry, for take_use(). The fabric must outlive the clock.
  LinkClock(const Fabric& fabric, Share share, double efficiency, bool keep_use);

  /// The flows of `streams` begin to move now. The caller must keep the flows alive until they end.
  void add(uint32_t owner, int64_t priority, std::span<const Stream> streams);
  /// Returns when the next flow ends; infinity without flows.
  double next_end_ns();
  /// Advances to `ns`, which must be from now_ns() to next_end_ns(). Appends the flows that end.
  void advance(double ns, std::vector<FinishedFlow>& ended);
  double now_ns() const { return now_ns_; }

  /// What links carried since the last call, per link ascending by begin, without idle times.
  std::vector<LinkUse> take_use() { return std::exchange(use_, {}); }

 private:
  /// The streams of one priority; with shares other than kStrictPriority, all streams.
  struct Tier {
    int64_t priority;
    MovingStreams streams;
  };
  /// What moves on one LinkPart of the fabric.
  struct Part {
    LinkPart links;
    std::vector<Tier> tiers = {};  // by descending priority: later ones get what these leave
    double since_ns = 0;
    double next_end_ns = 0;
    bool changed = false;  // the rates must be computed again
  };

  MovingStreams& streams_of(Part& part, int64_t priority);
  void progress(Part& part);
  void settle(Part& part);
  void settle_tiers(Part& part);
  void look_ahead(Part& part);
  void record(const Part& part);

  const Fabric& fabric_;
  Share share_;
  double efficiency_;
  bool keep_use_;
  double now_ns_ = 0;
  double next_end_ns_ = 0;  // the least of all parts, if they have not changed
  bool changed_ = true;     // a part has changed, or its next end is another
  std::vector<Part> parts_;
  std::vector<uint32_t> part_of_;  // indexed by link
  std::vector<double> load_;       // scratch, indexed by link in a part
  std::vector<int64_t> owners_;    // scratch, indexed by link in a part
  std::vector<LinkUse> open_;      // indexed by link: its current use
  std::vector<LinkUse> use_;
};

}  // namespace moe
