// The request to stop this process: a signal handler sets one flag for the whole process, and any
// code that may take longer than a second checks the flag. Which signals set it is in
// bindings/host/host.h; how the other processes of a job stop is in comm/job/processes.h.
#pragma once

#include "engine/base/errors.h"

namespace moe {

/// Thrown when a long computation was abandoned because a stop was requested. The result of that
/// computation is lost; results that were complete before are not.
class Interrupted : public RunError {
 public:
  Interrupted() : RunError("interrupted") {}
};

/// Sets the flag. Async-signal-safe, like the two functions below.
void request_stop() noexcept;
/// Clears the flag, for a process that continues after a request to stop (tests).
void withdraw_stop() noexcept;
bool stop_requested() noexcept;

/// Throws Interrupted when a stop was requested. Call it in loops whose iterations take less than a
/// second, on threads that no other rank waits for in a collective.
void check_stop();

}  // namespace moe
