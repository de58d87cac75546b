// Transfers on the one wire that all ranks and lanes of a world share, by the cluster's rule, one
// after another in each channel. Time goes on when somebody looks, and only as far as that one has
// to know, so that a transfer of which the wire is told late still begins when it was posted unless
// another has ended since. Times are those of network/wire.h, from 0. Not here: threads, clocks and
// who waits; emulated_link.h has them for ranks on the CPU, exec/device/emulated_link_driver.h for
// a device.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/network/wire.h"

namespace moe {

class LinkTransfers {
 public:
  /// The transfers of one lane in one group. Its owner only reads it.
  struct Channel {
    uint64_t turn = 0;  // the last that began, from 1
    size_t op = 0;      // the wire's number
    Nanoseconds begin = 0;
    Nanoseconds end = 0;  // until it is over: with nothing beside it
    bool over = true;     // `end` is known
  };

  /// keep_use: for take_use().
  explicit LinkTransfers(const Cluster& link, bool keep_use = false);

  /// The channel's transfer `turn` begins: at `earliest`, or when the channel's last one ended, or
  /// when any other did of which the wire knows. Requires: the last one is over. The channel stays
  /// where it is until then.
  void begin(Channel& channel, uint64_t turn, const NetworkOp& op, Nanoseconds earliest);
  /// The same for a transfer that shares with nobody and lasts so long.
  void begin(Channel& channel, uint64_t turn, Nanoseconds length, Nanoseconds earliest);
  /// Whether the channel's transfer is over at `now`; time goes on as far as that needs.
  bool is_over(Channel& channel, Nanoseconds now);
  /// When to ask again, of a transfer that is not over: it does not end before.
  Nanoseconds next_ns(const Channel& channel);
  /// Whether it may end then, or something else happens that it needs.
  bool may_end_next(const Channel& channel);

  const Cluster& link() const { return link_; }
  /// Names and rates of links.
  const Wire& wire() const { return wire_; }
  /// Wire::take_use().
  std::vector<LinkUse> take_use() { return wire_.take_use(); }

 private:
  const Cluster link_;
  Wire wire_;
  std::map<size_t, Channel*> on_wire_;  // by the wire's number
  std::vector<Done> ended_;             // scratch
};

}  // namespace moe
