// Weighted max-min shares of links (Bertsekas and Gallager, Data Networks, section 6.5.2). Each
// link has a level. The rate / weight of a flow is the lower level of its two links; that link
// holds the flow back. A link that holds flows back is full; a link that is not full holds none,
// and its level is infinite. Invariant after settle(): no flow can get more without taking from a
// flow whose rate / weight is smaller or equal. Time is not here but in link_clock.h.
//
// Cost: a change of a flow alters the levels of its links and of links with higher levels that
// share flows with them. settle() computes these levels again, in ascending order, from sums that
// each link keeps; it costs as many steps as there are flows whose rates change, plus the number of
// links. Only where more than a quarter of the flows are new are all levels computed by filling
// links from nothing, which costs flows + links x different levels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace moe {

/// A level, rate or time that nothing bounds.
constexpr double kInfinity = std::numeric_limits<double>::infinity();

class FairShare {
 public:
  explicit FairShare(size_t num_links);

  void set_capacity(uint32_t link, double bytes_per_s);
  /// Adds flows that cross the different links `out` and `in`. `share`: number of flows x weight of
  /// each, above 0. Returns their number; numbers of removed flows are used again.
  uint32_t add(uint32_t out, uint32_t in, double share);
  void set_share(uint32_t flows, double share);
  void remove(uint32_t flows);

  /// Computes the shares after changes. Writes to `moved` the flows that were added or may be held
  /// by another link than before (in any order, some repeatedly, some removed since).
  void settle(std::vector<uint32_t>& moved);

  // The following are those of the last settle().

  /// The link that holds `flows` back.
  uint32_t holder(uint32_t flows) const { return flows_[flows].holder; }
  /// Flows that a link holds back.
  struct Held {
    uint32_t flows;
    uint32_t other;  // the other link that they cross
    double share;
  };
  const std::vector<Held>& held(uint32_t link) const { return held_[link]; }
  /// Bytes per second / weight of the flows that `link` holds back; 0 if it holds none.
  double level(uint32_t link) const { return held_[link].empty() ? 0 : level_[link]; }
  /// Writes level() of each link.
  void write_levels(std::vector<double>& levels) const;
  /// Bytes per second that all flows on `link` take; also right after set_share() and remove().
  double used(uint32_t link) const { return taken_[link] + weight_[link] * level(link); }

 private:
  struct Flows {
    uint32_t out, in;
    uint32_t holder;
    uint32_t place;  // index in held_ of the holder
    double share;    // 0: removed
  };
  /// The state of a link in fill().
  struct Filling {
    double used = 0, weight = 0;  // of flows without and with growing rates
    uint32_t growing = 0;         // number of flows whose rates grow
    uint32_t first = 0;           // where its flows begin in on_link_
  };
  static constexpr uint32_t kNone = ~uint32_t{0};

  void hold(uint32_t flows, uint32_t link);
  void release(uint32_t flows);
  void mark(uint32_t link);
  double level_of(uint32_t link) const;
  void set_level(uint32_t link, double level);
  bool take_over(uint32_t link, uint32_t from);
  size_t move_forward(size_t position, size_t& budget);
  bool relax();
  void fill();
  void start_filling();
  void freeze(uint32_t flows, uint32_t link);
  void end_filling();

  // Indexed by link.
  std::vector<double> capacity_, level_;
  std::vector<double> taken_;   // bytes per second of flows that other links hold back
  std::vector<double> weight_;  // sum of the shares of held_
  std::vector<double> seen_;  // taken_ when the level was computed; NaN: it must be computed again
  std::vector<uint32_t> count_, position_;  // number of flows on the link; index in order_
  std::vector<std::vector<Held>> held_;

  std::vector<Flows> flows_;
  std::vector<uint32_t> free_;   // numbers of removed flows
  std::vector<uint32_t> moved_;  // since the last settle()
  /// Links by ascending level, apart from rounding. The one of its two links that comes first in
  /// this order holds a flow back.
  std::vector<uint32_t> order_;
  size_t first_changed_ = 0;       // no link before this position has changed
  size_t added_ = 0;               // since the last settle()
  std::vector<Filling> filling_;   // indexed by link
  std::vector<uint32_t> on_link_;  // flows, ordered by link
  std::vector<uint32_t> full_;     // links in the order in which they were filled
};

}  // namespace moe
