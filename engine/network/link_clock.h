// Flows in progress on links, and when the next one ends: a fluid model. Between two events (flows
// begin, a flow ends) all rates are constant; at an event only the part of the links that it
// touches is shared anew. Flows that cross the same links with the same weight are one stream, so
// an event costs streams and links, not pairs of ranks.
//
// Invariants: a flow ends when exactly its bytes have moved; no link carries more than its rate.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/network/fabric.h"
#include "engine/network/fair_share.h"

namespace moe {

/// `count` flows of as many bytes each, which nothing distinguishes.
struct Flow {
  double bytes = 0;
  double count = 1;
  int32_t source = 0;  // devices, for the caller
  int32_t destination = 0;
};

/// Flows that cross the same links with the same weight, in ascending order of bytes.
struct Stream {
  uint32_t out = 0;
  uint32_t in = 0;
  double weight = 1;
  std::span<const Flow> flows;
  /// Links are shared by bytes: a flow counts as so many flows of one byte. Such streams all begin
  /// at once and have their links for themselves until the last one ends. All that would end
  /// together then ends together, and what is left keeps its rate.
  bool by_bytes = false;
};

struct FinishedFlow {
  uint32_t owner;
  const Flow* flow;
};

class LinkClock {
 public:
  /// keep_use: for take_use(). The fabric outlives the clock.
  LinkClock(const Fabric& fabric, Share share, double efficiency, bool keep_use);

  /// The flows of the streams begin to move now; they outlive their end.
  void add(uint32_t owner, int64_t priority, std::span<const Stream> streams);
  /// When the next flow ends; infinity without flows.
  double next_end_ns();
  /// Moves to `ns`, not before now_ns() and not beyond next_end_ns(). Appends what ends.
  void advance(double ns, std::vector<FinishedFlow>& ended);
  double now_ns() const { return now_ns_; }

  /// What was recorded since the last call: ascending by begin for each link; idle times are left
  /// out.
  std::vector<LinkUse> take_use() { return std::exchange(use_, {}); }

 private:
  struct MovingStream {
    const Flow* next;
    const Flow* last;
    double moved = 0;  // bytes of each unfinished flow
    double next_end_ns = 0;
  };
  struct Part {
    LinkPart links;
    std::vector<MovingStream> moving;
    std::vector<FlowGroup> groups;  // of the same index
    FairShare sharing;
    double since_ns = 0;
    double next_end_ns = 0;
    bool by_bytes = false;
    bool changed = false;  // has to be shared anew
    bool regroup = false;  // groups came or went
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
  std::vector<uint32_t> part_of_;  // link
  std::vector<double> crowd_;      // scratch, by link of a part
  std::vector<double> load_;       // scratch, by link of a part
  std::vector<LinkUse> open_;      // by link
  std::vector<LinkUse> use_;
};

}  // namespace moe
