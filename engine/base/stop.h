// The request to stop, one of the whole process: a signal makes it, and everything that may take
// longer than a second looks at it. Not here: which signals (bindings/host/host.h), and the other
// processes of a job (comm/processes.h).
#pragma once

#include "engine/base/errors.h"

namespace moe {

/// Something that takes long was left because of a request to stop; what it would have returned is
/// lost, what was complete before is not.
class Interrupted : public RunError {
 public:
  Interrupted() : RunError("interrupted") {}
};

/// Async-signal safe, as the two below.
void request_stop() noexcept;
/// For a process that goes on all the same (tests).
void withdraw_stop() noexcept;
bool stop_requested() noexcept;

/// Throws Interrupted where a stop was requested. Belongs into loops whose rounds are shorter than
/// a second, on threads that nobody waits for in a collective.
void check_stop();

}  // namespace moe
