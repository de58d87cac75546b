#include "engine/base/stop.h"

#include <atomic>

namespace moe {
namespace {

std::atomic<bool> requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "signal handlers set it");

}  // namespace

void request_stop() noexcept {
  requested = true;
}

void withdraw_stop() noexcept {
  requested = false;
}

bool stop_requested() noexcept {
  return requested;
}

void check_stop() {
  if (stop_requested()) throw Interrupted();
}

}  // namespace moe
