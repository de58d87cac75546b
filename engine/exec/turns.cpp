#include "engine/exec/turns.h"

namespace moe {

void Turns::begin(size_t run) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return current_ == run; });
}

void Turns::step(size_t run) {
  std::unique_lock lock(mutex_);
  if (runs_[run].done++ % steps_ != 0) return;
  pass_on(run);
  changed_.wait(lock, [&] { return current_ == run; });
}

void Turns::end(size_t run) {
  const std::lock_guard lock(mutex_);
  runs_[run].ended = true;
  pass_on(run);
}

/// Gives the turn to the next run that has not ended, if there is one.
void Turns::pass_on(size_t run) {
  for (size_t i = 1; i <= runs_.size(); ++i) {
    current_ = (run + i) % runs_.size();
    if (!runs_[current_].ended) break;
  }
  changed_.notify_all();
}

}  // namespace moe
