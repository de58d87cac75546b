// The emulated link: wraps the Communicators of an InProcessWorld. Bytes are really copied in
// memory, but a transfer lasts at least as long as the link model computes, counted from the time
// when its last member posted it and not from when a thread wakes. Transfers that overlap on
// different lanes share the links, by the model of network/wire.h (one Wire for all). Threads wait
// by sleeping and then spinning briefly, so that the core is free for compute. The emulated link of
// devices is in exec/device.
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

/// The transfers of all ranks and lanes on one wire (link_transfers.h), on the run's clock. Safe
/// for many threads.
class EmulatedWire {
 public:
  using Channel = LinkTransfers::Channel;

  /// `keep_use`: record the use of links, for take_use(). `spins`: whether a waiting thread spins
  /// before the end of its transfer, so that it is on time; if not, it wakes up later.
  explicit EmulatedWire(const Cluster& link, bool keep_use = false, bool spins = true)
      : transfers_(link, keep_use), spins_(spins) {}

  /// Returns the channel of these members of a lane, which lives as long as the wire.
  Channel& channel(int64_t lane, const Members& members);
  /// carry() waits until transfer `turn` (counted from 1) of the channel is over, and returns when
  /// it began and ended. Each member of the transfer calls it with the same op; `post` is when the
  /// last member posted. The first member's call puts the transfer on the wire. Throws Stopped
  /// after abort().
  struct Stopped {
    std::string reason;
  };
  struct Times {
    Nanoseconds begin, end;
  };
  Times carry(Channel& channel, uint64_t turn, const NetworkOp& op, Nanoseconds post);
  /// Makes all calls of carry(), current and later ones, throw Stopped with `reason`.
  void abort(const std::string& reason);

  const Cluster& link() const { return transfers_.link(); }
  /// Names and rates of links.
  const Wire& wire() const { return transfers_.wire(); }
  /// Returns what the links carried since the last call (Wire::take_use()), with times relative to
  /// `since` on the run's clock.
  std::vector<LinkUse> take_use(Nanoseconds since);

 private:
  using Lock = std::unique_lock<std::mutex>;
  void wait(Lock& lock, Nanoseconds until, bool spin);
  /// Returns the time of the wire, which counts from 0 at origin_.
  Nanoseconds clock() const { return clock_ns() - origin_; }

  const Nanoseconds origin_ = clock_ns();
  std::mutex mutex_;
  std::condition_variable stop_;
  LinkTransfers transfers_;
  const bool spins_;
  bool stopped_ = false;
  std::string reason_;
  /// Key: lane, and size, stride and first rank of the members.
  std::map<std::array<int64_t, 4>, Channel> channels_;
};

/// Returns a communicator that calls `inner` and adds the times of the emulated link. `lane` must
/// be the same on all ranks of the lane. Keeps references to `inner` and `wire`. Requires:
/// wire.link().num_devices() == inner.size().
/// An all-to-all takes the time of the matrix of the bytes of all pairs, so the members also
/// exchange their sizes within the call. A group's collective shares links with the other
/// transfers, those of other groups too, as a collective of its own. A barrier takes no time. After
/// wire.abort(), calls throw RunError with its reason.
std::unique_ptr<Communicator> emulate_link(Communicator& inner, EmulatedWire& wire, int64_t lane);

/// A sleep with a timer slack of 1 ns wakes 20 to 45 us late. A thread that must be on time sleeps
/// until this long before, then spins. A longer spin would take time from compute on busy cores.
constexpr Nanoseconds kWakesLate = 40'000;
/// Waits until clock_ns() >= `until`: sleeps, then spins for the last part. Never returns early.
void wait_until_ns(Nanoseconds until);
/// Sleeps until clock_ns() >= `until`; wakes up later by kWakesLate or more, and never early.
void sleep_until_ns(Nanoseconds until);

}  // namespace moe
