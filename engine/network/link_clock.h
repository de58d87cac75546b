// Flows in progress on links, and when the next one ends, as a fluid model. Between two events
// (flows begin, or a flow ends) all rates are constant; at an event, only the rates in the affected
// part of the links are computed again. Flows that cross the same links with the same weight form
// one stream, so the cost of an event depends on the number of streams and links, not of pairs of
// ranks.
//
// Invariants: a flow ends when exactly its bytes have moved; no link carries more than its rate.
// The steps of a collective are not here but in collective_steps.h.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/network/fabric.h"
#include "engine/network/fair_share.h"

namespace moe {

/// `count` equal flows of `bytes` bytes each.
struct Flow {
  double bytes = 0;
  double count = 1;
  int32_t source = 0;  // devices; LinkClock does not read them, only its caller does
  int32_t destination = 0;
};

/// Flows that cross the same links (`out`, `in`) with the same weight, in ascending order of bytes.
struct Stream {
  uint32_t out = 0;
  uint32_t in = 0;
  double weight = 1;
  std::span<const Flow> flows;
  /// True: links are shared in proportion to bytes (a flow of b bytes counts as b flows of one
  /// byte). Such streams must begin at once and have their links for themselves. All flows on the
  /// fullest link then end together, and rates stay constant when a flow ends.
  bool by_bytes = false;
};

/// A flow that has ended.
struct FinishedFlow {
  uint32_t owner;
  const Flow* flow;
};

class LinkClock {
 public:
  /// `keep_use`: record what links carry, for take_use(). The fabric must outlive the clock.
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
  struct MovingStream {
    const Flow* next;
    const Flow* last;
    double moved = 0;  // bytes moved so far, of each unfinished flow
    double next_end_ns = 0;
  };
  /// What moves on one LinkPart of the fabric.
  struct Part {
    LinkPart links;
    std::vector<MovingStream> moving;
    std::vector<FlowGroup> groups;  // groups[i] belongs to moving[i]
    FairShare sharing;
    double since_ns = 0;
    double next_end_ns = 0;
    bool by_bytes = false;
    bool changed = false;  // the rates must be computed again
    bool regroup = false;  // groups were added or removed
  };

  void settle(Part& part);
  void look_ahead(Part& part);
  void weigh_per_collective(Part& part);
  void progress(Part& part);
  void take_ended(Part& part, double limit_ns, std::vector<FinishedFlow>& ended);
  void record(const Part& part);

  const Fabric& fabric_;
  Share share_;
  bool keep_use_;
  double now_ns_ = 0;
  std::vector<Part> parts_;
  std::vector<uint32_t> part_of_;  // indexed by link
  std::vector<double> crowd_;      // scratch, indexed by link in a part
  std::vector<double> load_;       // scratch, indexed by link in a part
  std::vector<LinkUse> open_;      // indexed by link: its current use
  std::vector<LinkUse> use_;
};

}  // namespace moe
