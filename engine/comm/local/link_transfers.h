// Transfers on one Wire (network/wire.h), which all ranks and lanes share by the cluster's sharing
// rule. A channel is one lane within one group; its transfers run one after the other. The wire's
// time advances only when a function needs it to, and only as far as needed. So a transfer that is
// added late still begins at its post time, unless the wire's time is already later (because
// another transfer has ended since); then it begins at the wire's time. Times are those of
// network/wire.h, from 0. Not here: threads, clocks and waiting; emulated_link.h has them for CPU
// ranks, exec/device/emulated_link_driver.h for a device.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/network/wire.h"

namespace moe {

class LinkTransfers {
 public:
  /// State of the transfers of one lane within one group. Its owner only reads it.
  struct Channel {
    uint64_t turn = 0;  // number of the last transfer that began, from 1
    size_t op = 0;      // number of that transfer on the wire
    Nanoseconds begin = 0;
    /// End of that transfer; while it is not over, the end that it would have alone on the wire.
    Nanoseconds end = 0;
    bool over = true;  // whether `end` is final
  };

  /// `keep_use`: record the use of links, for take_use().
  explicit LinkTransfers(const Cluster& link, bool keep_use = false);

  /// Begins the channel's transfer `turn` at `earliest`, or at the end of the channel's previous
  /// transfer, or at the wire's current time, whichever is latest. Requires: the previous transfer
  /// is over. The channel must not move in memory until the transfer is over.
  void begin(Channel& channel, uint64_t turn, const NetworkOp& op, Nanoseconds earliest);
  /// Whether the channel's transfer is over at `now`; advances the wire's time as far as needed.
  bool is_over(Channel& channel, Nanoseconds now);
  /// For a transfer that is not over: returns a time before which it does not end; call is_over()
  /// again at that time.
  Nanoseconds next_ns(const Channel& channel);
  /// Whether the transfer may end at next_ns(); if not, only other transfers change at that time.
  bool may_end_next(const Channel& channel);

  const Cluster& link() const { return link_; }
  /// Names and rates of links.
  const Wire& wire() const { return wire_; }
  /// Returns Wire::take_use().
  std::vector<LinkUse> take_use() { return wire_.take_use(); }

 private:
  const Cluster link_;
  Wire wire_;
  std::map<size_t, Channel*> on_wire_;  // key: number on the wire
  std::vector<Done> ended_;             // scratch
};

}  // namespace moe
