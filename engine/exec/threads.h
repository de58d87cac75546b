// Threads whose start may fail.
#pragma once

#include <string>
#include <system_error>
#include <thread>

#include "engine/base/errors.h"

namespace moe {

/// Starts a thread for `what`, as "lane comm of rank 3". Throws RunError naming it where the
/// machine gives none.
template <class Body>
std::jthread start_thread(const std::string& what, Body body) {
  try {
    return std::jthread(std::move(body));
  } catch (const std::system_error& e) {
    throw run_error(
        "cannot start the thread for {}: {} (its stack needs address space, see ulimit -v; the "
        "number of threads may be limited, see ulimit -u)",
        what, e.code().message());
  }
}

}  // namespace moe
