// The emulated link: wraps a Communicator. Bytes really move; a transfer also lasts at least as
// long as the link's law says (network/closed_form.h), counted from the time when its last member
// posted, not from when a thread wakes. The law's time is waited for by sleeping, then briefly
// spinning, so that the core is left to compute.
#pragma once

#include <memory>

#include "engine/cluster/cluster.h"
#include "engine/comm/communicator.h"

namespace moe {

/// Requires: link.num_devices() == inner.size(). Keeps a reference to inner.
/// An all-to-all whose sizes differ by rank takes the time of its byte matrix; the members exchange
/// their sizes as part of the call. Transfers of one world that overlap on different lanes are each
/// charged alone; the contention law takes their place later. A group's transfer is charged as if
/// all groups did the same at once.
std::unique_ptr<Communicator> emulate_link(Communicator& inner, const Cluster& link);

/// Sleeps until clock_ns() >= until; the last part is spun. Never returns early.
void wait_until_ns(Nanoseconds until);

}  // namespace moe
