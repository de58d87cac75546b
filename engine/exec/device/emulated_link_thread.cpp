#include "engine/exec/device/emulated_link_thread.h"

#include <pthread.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "engine/base/rethrow.h"
#include "engine/base/threads.h"
#include "engine/comm/communicator.h"
#include "engine/exec/sync.h"

namespace moe {
namespace {

constexpr int kPauses = 20;  // about a microsecond

std::span<kernels::LinkFlags> flags_in(const DeviceStorage& memory) {
  std::memset(memory.data(), 0, static_cast<size_t>(memory.size()));
  return {reinterpret_cast<kernels::LinkFlags*>(memory.data()),
          static_cast<size_t>(memory.size()) / sizeof(kernels::LinkFlags)};
}

}  // namespace

EmulatedLinkThread::EmulatedLinkThread(const kernels::DeviceTable& device, const Cluster& link,
                                       size_t num_channels)
    : device_(device),
      memory_(device, DeviceStorage::Where::kHost,
              static_cast<Bytes>((num_channels + 1) * sizeof(kernels::LinkFlags))),
      driver_(link, flags_in(memory_)),
      thread_(start_thread("the emulated link", [this] { run(); })) {}

EmulatedLinkThread::~EmulatedLinkThread() {
  abort();
  thread_.join();
}

void EmulatedLinkThread::expect_step() {
  check();
  Lock lock(mutex_);
  start_ = driver_.start_step(clock_ns());
  posted_ = expected_ = true;
  wake_.notify_one();
  looked_.wait(lock, [&] { return !expected_ || stopped_ || error_; });
}

void EmulatedLinkThread::begin_step(kernels::Stream stream) {
  device_.sleep(0, start_, stream);
}

PacedTransfer EmulatedLinkThread::post(size_t channel, NetworkOp transfer) {
  const Lock lock(mutex_);
  PacedTransfer paced = driver_.post(channel, std::move(transfer));
  posted_ = true;
  wake_.notify_one();
  return paced;
}

void EmulatedLinkThread::check() {
  const Lock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void EmulatedLinkThread::abort() noexcept {
  const Lock lock(mutex_);
  stopped_ = true;
  driver_.let_all_end();
  wake_.notify_one();
}

std::vector<LinkSpan> EmulatedLinkThread::take_links() {
  check();
  const Lock lock(mutex_);
  return driver_.take_links();
}

void EmulatedLinkThread::run() {
  pthread_setname_np(pthread_self(), "link");
  wake_promptly();
  Lock lock(mutex_);
  try {
    look_repeatedly(lock);
  } catch (const std::exception&) {
    error_ = with_prefix("the emulated link: ", std::current_exception());
    driver_.let_all_end();
    looked_.notify_one();
  }
}

void EmulatedLinkThread::look_repeatedly(Lock& lock) {
  const auto called = [&] { return stopped_ || posted_; };
  while (!stopped_) {
    const Nanoseconds next = driver_.look(clock_ns());
    posted_ = false;
    if (std::exchange(expected_, false)) looked_.notify_one();
    if (next == kNever) {
      wake_.wait(lock, called);
    } else if (next > clock_ns()) {
      const std::chrono::steady_clock::time_point at{std::chrono::nanoseconds(next)};
      wake_.wait_until(lock, at, called);
    } else {
      lock.unlock();
      for (int i = 0; i < kPauses; ++i) __builtin_ia32_pause();
      lock.lock();
    }
  }
}

}  // namespace moe
