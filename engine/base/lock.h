// Locks of files and folders that other processes may hold (flock(2)), and the wait for one.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/files.h"

namespace moe {

/// A wait for what another process has locked: at most kSeconds long, said on stderr unless it is
/// short, and ended by a request to stop.
class LockWait {
 public:
  static constexpr double kSeconds = 20;
  /// what: the locked thing with its name, as messages have it.
  explicit LockWait(std::string what, double seconds = kSeconds);
  /// Sleeps for a moment. Returns false when the wait has ended in vain.
  bool again();

 private:
  std::string what_;
  double seconds_;
  int64_t begin_ns_;
  bool said_ = false;
};

/// Takes the lock of an open file or folder unless another process has it; returns whether it
/// could. Where the file system has no locks it returns true. The lock ends with the descriptor.
bool try_lock(const Descriptor& file);
/// Takes the lock as try_lock() does, and waits for it. Throws RunError that names `what`, the
/// process that holds the lock where the system tells it, and `remedy` when the wait was in vain,
/// Interrupted when a stop was requested.
void lock(const Descriptor& file, const std::string& what, const std::string& remedy,
          double seconds = LockWait::kSeconds);

}  // namespace moe
