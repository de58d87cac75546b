// Emulates the link for ranks on a device where transfers of several lanes may share it. A
// transfer's kernels write to host memory when they begin (kernels/device.h, LinkSignal). The link
// model of CPU ranks (comm/local/link_transfers.h) computes when the transfer ends. At that time
// the CPU writes to the same memory, and the kernels then end. Device and CPU share only this
// memory and no device call is made, so a call that blocks in the driver cannot delay the end of a
// transfer.
// Not here: the thread that calls look() (emulated_link_thread.h), and the copying itself, which
// the kernels spread over at least the time that the transfer takes alone.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "engine/comm/local/link_transfers.h"
#include "engine/timeline/timeline.h"
#include "kernels/device.h"

namespace moe {

/// What the kernels of a transfer need in order to follow the emulated link.
struct PacedTransfer {
  kernels::LinkSignal signal;
  Nanoseconds alone = 0;  // duration of the transfer with nothing else on the wire
};

/// Advances the link each time that look() is called. Times passed in are those of the CPU's
/// clock; transfers_ uses the device's clock, so a transfer's begin does not count as late when the
/// CPU notices it late. Not thread-safe.
class EmulatedLinkDriver {
 public:
  /// `flags` has one entry for the starts of steps, then one per channel; all are zeros. A channel
  /// is a sequence of transfers that run one after another: those of one lane and group of ranks.
  EmulatedLinkDriver(const Cluster& link, std::span<kernels::LinkFlags> flags);

  /// Returns the signal that a kernel must write when the step begins on the device. Called between
  /// steps.
  kernels::LinkSignal start_step(Nanoseconds now);
  /// Adds a transfer to a channel, behind the transfers posted to it before.
  PacedTransfer post(size_t channel, NetworkOp transfer);
  /// Notices transfers that have begun, and ends those that are over at `now`. Returns the time at
  /// which to call again: kNever when nothing is posted, and a time that is not after `now` to call
  /// again at once. Throws as Wire does.
  Nanoseconds look(Nanoseconds now);
  /// Lets all transfers end, those that are posted and those that will be.
  void let_all_end();

  /// Returns what the links carried since the last call; times are relative to the last start of a
  /// step.
  std::vector<LinkSpan> take_links();

 private:
  struct Post {
    int64_t number;
    NetworkOp transfer;
    Nanoseconds alone;
  };
  struct Channel {
    std::deque<Post> posts;  // those that have not ended
    int64_t num_posted = 0;  // since construction
    bool begun = false;      // whether the first of `posts` has begun
    LinkTransfers::Channel wire = {};
  };

  bool has_started(Nanoseconds now);
  void see_begins(Nanoseconds now);
  void end(Nanoseconds now);
  Nanoseconds next_look(const Channel& channel, Nanoseconds now);
  /// Converts a time of the CPU's clock to the wire's clock.
  Nanoseconds on_wire(Nanoseconds now) const { return now - ahead_ - origin_; }
  void see_clock(Nanoseconds device, Nanoseconds now);

  const std::span<kernels::LinkFlags> flags_;
  LinkTransfers transfers_;
  std::vector<Channel> channels_;
  int64_t passes_ = 0;
  Nanoseconds asked_ = 0;  // when start_step() was last called
  bool awaits_start_ = false, has_origin_ = false;
  Nanoseconds origin_ = 0;  // start of the wire's clock, on the device's clock
  Nanoseconds start_ = 0;   // start of the last step, on the device's clock
  /// How far the host's clock is ahead of the device's, estimated from the begin that the host
  /// noticed with the shortest delay.
  Nanoseconds ahead_ = 0;
};

}  // namespace moe
