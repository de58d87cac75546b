// Streams that share links, and when the next flow of one ends. All have the same priority; links
// are numbered from 0. Which priorities and which parts of a fabric there are is in link_clock.h.
//
// A stream is not touched when its rate changes. Each link has a clock that advances by its level
// (FairShare) per second. A stream that this link holds back moves weight x advance bytes, and its
// next flow ends at a reading of the clock that stays the same while weight and holder do.
//
// Cost of an event: a few steps per link, and a few per stream that begins, ends, gets another
// weight or another holder; besides what FairShare::settle() takes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/network/fair_share.h"

namespace moe {

/// `count` equal flows of `bytes` bytes each.
struct Flow {
  double bytes = 0;
  double count = 1;
  int32_t source = 0;  // devices; only the callers of LinkClock read them
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

class MovingStreams {
 public:
  /// `per_collective`: Share::kPerCollective determines the weights, not Stream::weight.
  MovingStreams(size_t num_links, bool per_collective);

  /// The stream begins to move now, on links `out` and `in`.
  void add(uint32_t owner, uint32_t out, uint32_t in, const Stream& stream);
  void set_capacity(uint32_t link, double bytes_per_s) { sharing_.set_capacity(link, bytes_per_s); }
  /// Moves all streams for this time, at the rates of the last settle().
  void progress(double seconds);
  /// Computes rates and next_end_ns() after streams have begun or ended. `now_ns` is the present.
  void settle(double now_ns);
  double next_end_ns() const { return next_end_ns_; }
  /// Removes the flows that end until `limit_ns` and appends them to `ended`. Then settle() is
  /// needed, except where streams share by bytes.
  void take_ended(double now_ns, double limit_ns, std::vector<FinishedFlow>& ended);

  bool by_bytes() const { return by_bytes_; }
  /// Bytes per second that the streams take of a link.
  double used(uint32_t link) const { return sharing_.used(link); }
  /// Number of owners with streams on a link.
  int64_t owners_on(uint32_t link) const;

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  struct Moving {
    const Flow* next = nullptr;
    const Flow* last = nullptr;
    uint32_t out = 0, in = 0;
    uint32_t owner = 0;                    // index in owners_
    uint32_t place_out = 0, place_in = 0;  // in OwnerLink::streams
    uint32_t holder = kNone;               // whose clock is read below
    double weight = 1, count = 0;          // of each unfinished flow, and their number
    double crowd = 0;                      // per_collective_: 1 / weight
    double moved = 0;  // bytes of each unfinished flow when the clock read `since`
    double since = 0;
  };
  struct OnLink {
    uint32_t stream;
    uint32_t other;  // the other link that it crosses
  };
  /// The streams of one owner on one link.
  struct OwnerLink {
    double flows = 0;    // number of unfinished flows
    double weighed = 0;  // the number by which the streams were weighed
    bool changed = false;
    std::vector<OnLink> streams = {};
  };
  struct Owner {
    uint32_t number = 0;
    size_t streams = 0;
    std::vector<OwnerLink> links = {};
  };
  struct Changed {
    uint32_t owner, link;
  };

  uint32_t owner_of(uint32_t number);
  void count_flows(const Moving& stream, double more);
  void remove(uint32_t id);
  void catch_up(Moving& stream);
  void set_end(uint32_t id);
  void set_holder(uint32_t id);
  void weigh();
  void weigh(uint32_t id, double crowd);
  void find_end(uint32_t link);
  void look_ahead(double now_ns);
  bool end_flows(uint32_t id, std::vector<FinishedFlow>& ended);

  bool per_collective_;
  bool by_bytes_ = false;
  FairShare sharing_;
  // Indexed by link.
  std::vector<double> level_;  // FairShare::level(), by which the clock advances per second
  std::vector<double> clock_;
  std::vector<double> end_;     // the least ends_ of the streams that the link holds back
  std::vector<double> end_ns_;  // when the clock reads end_
  std::vector<char> search_;    // end_ is not known
  // Indexed by number in sharing_.
  std::vector<Moving> streams_;
  std::vector<double> ends_;  // what the holder's clock reads when the stream's next flow ends
  std::vector<Owner> owners_;
  std::vector<Changed> changed_;  // where numbers of flows have changed
  std::vector<uint32_t> moved_;   // scratch
  size_t num_streams_ = 0;
  double next_end_ns_ = 0;
};

}  // namespace moe
