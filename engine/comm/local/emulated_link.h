// The emulated link: wraps the Communicators of a world. Bytes really move; a transfer also lasts
// at least as long as the link model says, counted from the time when its last member posted, not
// from when a thread wakes. Transfers that overlap on different lanes share the links by the model
// of network/, on one wire. Its times are waited for by sleeping, then briefly spinning, so that
// the core is left to compute.
#pragma once

#include <array>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/comm/communicator.h"
#include "engine/comm/local/link_transfers.h"

namespace moe {

/// The transfers of the world on their wire (link_transfers.h), by the run's clock. Safe for many
/// threads.
class EmulatedWire {
 public:
  using Channel = LinkTransfers::Channel;

  /// keep_use: for take_use().
  explicit EmulatedWire(const Cluster& link, bool keep_use = false) : transfers_(link, keep_use) {}

  /// The group by its first rank. Lives as long as the wire.
  Channel& channel(int64_t lane, const Group& group, int64_t first);
  /// Returns when transfer `turn` (from 1) of the channel is over. Called by each of its members
  /// with the same op; `post` is when the last of them posted. The first to call has it begin.
  /// Returns when it began and ended. Throws Stopped after abort().
  struct Stopped {
    std::string reason;
  };
  struct Times {
    Nanoseconds begin, end;
  };
  Times carry(Channel& channel, uint64_t turn, const NetworkOp& op, Nanoseconds post);
  /// The same for a transfer that shares with nobody and lasts so long.
  Times carry(Channel& channel, uint64_t turn, Nanoseconds length, Nanoseconds post);
  /// Wakes all who wait, and lets nobody wait any more.
  void abort(const std::string& reason);

  const Cluster& link() const { return transfers_.link(); }
  /// Names and rates of links.
  const Wire& wire() const { return transfers_.wire(); }
  /// Wire::take_use() with times from `since` on the run's clock.
  std::vector<LinkUse> take_use(Nanoseconds since);

 private:
  using Lock = std::unique_lock<std::mutex>;
  template <class T>
  Times carry_any(Channel& channel, uint64_t turn, const T& transfer, Nanoseconds post);
  void wait(Lock& lock, Nanoseconds until, bool spin);
  /// The wire's clock.
  Nanoseconds clock() const { return clock_ns() - origin_; }

  const Nanoseconds origin_ = clock_ns();
  std::mutex mutex_;
  std::condition_variable stop_;
  LinkTransfers transfers_;
  bool stopped_ = false;
  std::string reason_;
  /// By lane, size and stride of the group, and its first rank.
  std::map<std::array<int64_t, 4>, Channel> channels_;
};

/// Requires: wire.link().num_devices() == inner.size(). Keeps references to both. All ranks of a
/// lane give the same number.
/// An all-to-all whose sizes differ by rank takes the time of its byte matrix; the members exchange
/// their sizes as part of the call. A group's all-to-all shares links as a collective of its own;
/// its all-reduce takes what it does when all groups do the same at once, and shares with nobody. A
/// broadcast is charged as if no other lane had traffic, a barrier nothing. After wire.abort()
/// calls throw RunError with its reason.
std::unique_ptr<Communicator> emulate_link(Communicator& inner, EmulatedWire& wire, int64_t lane);

/// A sleep with a timer slack of 1 ns wakes 20 to 45 us late: who must be there in time sleeps
/// until so long before, and spins. To spin for longer takes from compute where cores are busy.
constexpr Nanoseconds kWakesLate = 40'000;
/// Sleeps until clock_ns() >= until; the last part is spun. Never returns early.
void wait_until_ns(Nanoseconds until);

}  // namespace moe
