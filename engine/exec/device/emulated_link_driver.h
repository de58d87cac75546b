// Keeps the emulated link of ranks on a device where transfers of several lanes may meet on it. A
// transfer's kernels say in host memory when they begin (kernels/device.h, LinkSignal); the wire,
// whose model is that of CPU ranks (comm/link_transfers.h), says when the transfer is over, and the
// kernels end when the host has written so. All that device and host share is that memory: no call
// of the device is made, so nothing that waits in a driver keeps a transfer from ending.
// Not here: the thread that looks (emulated_link_thread.h), and what is copied, for as long at
// least as the transfer takes alone.
#pragma once

#include <deque>
#include <span>
#include <variant>
#include <vector>

#include "engine/comm/local/link_transfers.h"
#include "engine/timeline/timeline.h"
#include "kernels/device.h"

namespace moe {

/// A NetworkOp, or a length that nothing else on the wire changes.
using LinkTransfer = std::variant<NetworkOp, Nanoseconds>;

/// What the kernels of a transfer are to keep.
struct PacedTransfer {
  kernels::LinkSignal signal;
  Nanoseconds alone = 0;  // how long it takes with nothing else on the wire
};

/// Drives the link whenever it looks at the memory; times are the host's, as the caller gives them.
/// The wire's are the device's: a begin that is seen late is not a late begin. For one thread.
class EmulatedLinkDriver {
 public:
  /// flags: one for the starts of steps, and one a channel; zeros.
  EmulatedLinkDriver(const Cluster& link, std::span<kernels::LinkFlags> flags);

  /// The device is to say where a step begins, by a kernel with this signal. Between steps.
  kernels::LinkSignal start_step(Nanoseconds now);
  /// A transfer that the channel carries after those that it was given before.
  PacedTransfer post(size_t channel, LinkTransfer transfer);
  /// Sees what has begun, and lets end what is over at `now`. Returns when to look again: kNever
  /// where nothing is posted, at once where that time has come. Throws as Wire does.
  Nanoseconds look(Nanoseconds now);
  /// Whatever is posted may end, and whatever will be.
  void let_all_end();

  /// What the links carried since the last call; times from the last start of a step.
  std::vector<LinkSpan> take_links();

 private:
  struct Post {
    int64_t number;
    LinkTransfer transfer;
    Nanoseconds alone;
  };
  struct Channel {
    std::deque<Post> posts;  // those that are not over
    int64_t num_posted = 0;  // so far
    bool begun = false;      // the first of them
    LinkTransfers::Channel wire = {};
  };

  bool has_started(Nanoseconds now);
  void see_begins(Nanoseconds now);
  void end(Nanoseconds now);
  Nanoseconds next_look(const Channel& channel, Nanoseconds now);
  /// On the wire's clock.
  Nanoseconds on_wire(Nanoseconds now) const { return now - ahead_ - origin_; }
  void see_clock(Nanoseconds device, Nanoseconds now);

  const std::span<kernels::LinkFlags> flags_;
  LinkTransfers transfers_;
  std::vector<Channel> channels_;
  int64_t passes_ = 0;
  Nanoseconds asked_ = 0;  // for the start of the last one
  bool awaits_start_ = false, has_origin_ = false;
  Nanoseconds origin_ = 0;  // of the wire's clock, on the device's
  Nanoseconds start_ = 0;   // of the last step, on the device's
  Nanoseconds ahead_ = 0;   // the host's clock of the device's, by the begin that was seen soonest
};

}  // namespace moe
