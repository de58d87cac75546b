// A device that is no device: what its streams are given is kept and runs later, on the host with
// the CPU's kernels, in any order that streams and events allow and that a seed chooses. It runs
// only while somebody asks whether an event is over. It has a clock of its own, on which each task
// takes a microsecond and paced copies their duration, beside what other streams do; what the host
// is to let end waits until it does, in whatever thread.
// Strict: its memory can be touched by its own tasks alone (the host's code ends with a fault), a
// kernel may be given no other memory, an event is waited for only if it was recorded, streams join
// a recording by events. Its functions are for one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/device.h"

namespace moe::test {

enum class LazyOrder : uint8_t {
  kAsGiven,     // as a device with one queue would
  kFirstFirst,  // the stream that was made first, as far as it can go
  kLastFirst,   // the one that was made last
  kRandom,
};

struct LazyStats {
  int64_t tasks = 0;       // that ran
  int64_t recordings = 0;  // that were made
  int64_t replays = 0;
  int64_t handles = 0;  // streams, events, recordings and allocations that are still there
};

/// Starts afresh; nothing of it may still be held.
void lazy_start(LazyOrder order, uint64_t seed = 1);
LazyStats lazy_stats();
/// From now on the device does nothing any more, as one that hangs.
void lazy_hang();

/// From now on work takes so much longer while paced copies are under way.
void lazy_slow_beside(double factor);

/// Something else for the stream to do.
void lazy_give(kernels::Stream stream, std::function<void()> work);

const kernels::DeviceTable& lazy_device();
/// The same, but its paced copies take their time alone: for who only times them.
kernels::DeviceTable lazy_without_copying();

}  // namespace moe::test
