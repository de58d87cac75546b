// How fast this machine is at the moment, and how much of it others use. The speed of a virtual
// machine changes by a quarter within minutes, depending on its neighbours on the host, and nothing
// in its operating system shows it; a fixed piece of work does.
#pragma once

#include "engine/base/units.h"

namespace moe {

/// Returns the time of one call of the reference kernel on the calling thread: two products of
/// 192 x 192 matrices in f32 and a copy of 1 MiB, about half a millisecond. From the thread's
/// second call on, the operands are in the caches.
Nanoseconds reference_call_ns();
/// The speed to which times of single ops are converted: that of a machine on which a call of the
/// reference kernel takes so long. A common value; any other would do.
constexpr Nanoseconds kReferenceNs = 400'000;
/// Returns how much slower this machine is now: reference_ns() / kReferenceNs. Throws RunError if
/// there is no address space for the kernel's buffers. Requires: no other thread computes products.
double slower_than_reference();
/// Returns the median of three calls with the operands in the caches. On a shared host calls within
/// one second differ by up to a factor of 2; only the median over a run of many steps says how fast
/// the machine was.
Nanoseconds reference_ns();

/// Counts what others use of this machine's cores, from the construction on.
class OthersWatch {
 public:
  OthersWatch();
  /// Returns the share, 0 to 1, of all cores' time that other processes used or that the hypervisor
  /// took; 0 where /proc/stat is missing. The kernel counts in steps of 10 ms per core, so the
  /// share of less than half a second is rough.
  double share() const;
  /// Returns the part of share() that the hypervisor took; 0 where it does not tell its guests.
  double stolen() const;

 private:
  double share_of_cores(Nanoseconds ns) const;

  Nanoseconds begin_, others_, stolen_;
};

/// The largest OthersWatch::share() at which times still count. It is about the error of
/// predictions in a quiet run, 2 to 9%: what others take adds at least as much to a time.
constexpr double kMostOthers = 0.05;
/// Watches for half a second, in which the calling thread sleeps; returns whether others used at
/// most kMostOthers.
bool machine_is_quiet();

}  // namespace moe
