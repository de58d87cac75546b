#include "engine/exec/sync.h"

namespace moe {

void Progress::finish(OpId op, uint32_t epoch, Nanoseconds now, bool awaited) {
  if (!awaited) return;
  State& state = ops_[op.index()];
  state.end = now;
  {
    // Under the mutex, so that a waiter that has just looked cannot miss the notification.
    const std::lock_guard lock(mutex_);
    state.epoch.store(epoch, std::memory_order_release);
  }
  changed_.notify_all();
}

Nanoseconds Progress::wait(OpId op, uint32_t epoch) {
  State& state = ops_[op.index()];
  if (state.epoch.load(std::memory_order_acquire) != epoch) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock,
                  [&] { return aborted_ || state.epoch.load(std::memory_order_acquire) == epoch; });
    if (aborted_) throw Aborted();
  }
  return state.end;
}

void Progress::abort() {
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  changed_.notify_all();
}

void Rendezvous::arrive() {
  std::unique_lock lock(mutex_);
  if (aborted_) throw Aborted();
  const uint64_t turn = turn_;
  if (++arrived_ == num_threads_) {
    if (on_last_) on_last_();
    arrived_ = 0;
    ++turn_;
    lock.unlock();
    changed_.notify_all();
    return;
  }
  changed_.wait(lock, [&] { return aborted_ || turn_ != turn; });
  if (turn_ == turn) throw Aborted();
}

void Rendezvous::abort() {
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  changed_.notify_all();
}

}  // namespace moe
