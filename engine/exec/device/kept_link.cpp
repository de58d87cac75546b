#include "engine/exec/device/kept_link.h"

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

std::span<kernels::LinkWords> words_in(const DeviceStorage& memory) {
  std::memset(memory.data(), 0, static_cast<size_t>(memory.size()));
  return {reinterpret_cast<kernels::LinkWords*>(memory.data()),
          static_cast<size_t>(memory.size()) / sizeof(kernels::LinkWords)};
}

}  // namespace

KeptLink::KeptLink(const kernels::DeviceTable& device, const Cluster& link, size_t num_channels)
    : device_(device),
      memory_(device, DeviceStorage::Where::kHost,
              static_cast<Bytes>((num_channels + 1) * sizeof(kernels::LinkWords))),
      keeper_(link, words_in(memory_)),
      thread_(start_thread("the emulated link", [this] { keep(); })) {}

KeptLink::~KeptLink() {
  abort();
  thread_.join();
}

void KeptLink::expect_step() {
  check();
  Lock lock(mutex_);
  start_ = keeper_.start_step(clock_ns());
  posted_ = expected_ = true;
  wake_.notify_one();
  looked_.wait(lock, [&] { return !expected_ || stopped_ || error_; });
}

void KeptLink::begin_step(kernels::Stream stream) {
  device_.sleep(0, start_, stream);
}

KeptTransfer KeptLink::post(size_t channel, LinkTransfer transfer) {
  const Lock lock(mutex_);
  KeptTransfer kept = keeper_.post(channel, std::move(transfer));
  posted_ = true;
  wake_.notify_one();
  return kept;
}

void KeptLink::check() {
  const Lock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void KeptLink::abort() noexcept {
  const Lock lock(mutex_);
  stopped_ = true;
  keeper_.let_all_end();
  wake_.notify_one();
}

std::vector<LinkLoad> KeptLink::take_links() {
  check();
  const Lock lock(mutex_);
  return keeper_.take_links();
}

void KeptLink::keep() {
  pthread_setname_np(pthread_self(), "link");
  wake_promptly();
  Lock lock(mutex_);
  try {
    keep_looking(lock);
  } catch (const std::exception&) {
    error_ = with_prefix("the emulated link: ", std::current_exception());
    keeper_.let_all_end();
    looked_.notify_one();
  }
}

void KeptLink::keep_looking(Lock& lock) {
  const auto called = [&] { return stopped_ || posted_; };
  while (!stopped_) {
    const Nanoseconds next = keeper_.look(clock_ns());
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
