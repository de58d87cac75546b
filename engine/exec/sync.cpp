#include "engine/exec/sync.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace moe {

void wake_promptly() {
  // Lets sleeps of this thread end on time; with the default slack they end up to 50 us later.
  prctl(PR_SET_TIMERSLACK, 1);
  // The short form of the kernel's struct sched_attr, which glibc does not declare. Since Linux
  // 6.12, `runtime` of a normal thread is the length of its time slice: a thread with a shorter
  // slice than the computing thread gets the core when it wakes. Older kernels ignore the field.
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } attr = {};
  attr.size = sizeof(attr);
  // A real-time thread is before all others. A normal one that ends a transfer wakes the compute
  // that waits for it on the same core, which then may keep the core until the kernel's next tick,
  // 4 ms at 250 Hz, so that the lane's next transfer begins late.
  attr.policy = SCHED_FIFO;
  attr.priority = 1;
  if (syscall(SYS_sched_setattr, 0, &attr, 0) == 0) return;
  attr.policy = SCHED_OTHER;
  attr.priority = 0;
  constexpr uint64_t kShortestSlice = 100'000;
  attr.runtime = kShortestSlice;
  // A thread that has lately used more than its share of a core does not get the core when it
  // wakes, and a lane with many short transfers uses more than an equal share. Where the process
  // may, the thread gets the largest share; elsewhere such lanes can wake up to 3 ms late.
  constexpr int32_t kLargestShare = -20;
  // The priority of this thread, although the call names a process.
  const int32_t own = getpriority(PRIO_PROCESS, 0);
  for (const int32_t nice : {kLargestShare, own}) {
    attr.nice = nice;
    if (syscall(SYS_sched_setattr, 0, &attr, 0) == 0) return;
  }
}

void Progress::finish(OpId op, uint32_t epoch, Nanoseconds now, bool awaited) {
  if (!awaited) return;
  State& state = ops_[op.index()];
  state.end = now;
  {
    // Under the mutex, so that a waiter between its check and its sleep cannot miss the
    // notification.
    const std::lock_guard lock(mutex_);
    state.epoch.store(epoch, std::memory_order_release);
  }
  changed_.notify_all();
}

Nanoseconds Progress::wait(OpId op, uint32_t epoch) {
  State& state = ops_[op.index()];
  if (!over(op, epoch)) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return aborted_ || over(op, epoch); });
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
