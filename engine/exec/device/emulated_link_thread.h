// The thread that drives the emulated link of ranks on a device (emulated_link_driver.h). It sleeps
// while nothing can begin or end, and spins only just before an end and while a step begins. When
// it fails or is stopped, it lets all transfers end, so that no stream waits forever.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/exec/device/buffers.h"
#include "engine/exec/device/emulated_link_driver.h"

namespace moe {

class EmulatedLinkThread {
 public:
  /// Keeps a reference to the device.
  EmulatedLinkThread(const kernels::DeviceTable& device, const Cluster& link, size_t num_channels);
  ~EmulatedLinkThread();
  EmulatedLinkThread(const EmulatedLinkThread&) = delete;

  /// Returns when the thread is polling for the step that is about to begin: if it noticed the
  /// step's start late, all ends would be late.
  void expect_step();
  /// Queues the signal of the step's start; the work that precedes the step has just been queued on
  /// the stream.
  void begin_step(kernels::Stream stream);
  PacedTransfer post(size_t channel, NetworkOp transfer);
  /// Rethrows, on the calling thread, the error that ended the link's thread. Does nothing if there
  /// was none.
  void check();
  /// Stops the thread and makes all transfers end at once, those in progress and later ones.
  void abort() noexcept;
  std::vector<LinkSpan> take_links();

 private:
  using Lock = std::unique_lock<std::mutex>;
  void run();
  void look_repeatedly(Lock& lock);

  const kernels::DeviceTable& device_;
  DeviceStorage memory_;
  std::mutex mutex_;
  std::condition_variable wake_, looked_;
  EmulatedLinkDriver driver_;
  bool posted_ = false;    // whether anything was posted since the last call of look()
  bool expected_ = false;  // a step is expected, and the thread does not poll for it yet
  kernels::LinkSignal start_;
  bool stopped_ = false;
  std::exception_ptr error_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace moe
