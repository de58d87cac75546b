// The emulated link of ranks on a device with the thread that drives it (emulated_link_driver.h).
// It sleeps while nothing can begin or end, and spins only before an end and where a step begins.
// Where it fails or is told to stop it lets all transfers end, so that no stream is left waiting.
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

  /// Returns when the thread looks for the step that is about to begin: what of the device's clock
  /// is seen late makes all ends late.
  void expect_step();
  /// The stream was just given what begins it.
  void begin_step(kernels::Stream stream);
  PacedTransfer post(size_t channel, LinkTransfer transfer);
  /// Throws what ended the driver.
  void check();
  /// Lets all transfers end that are under way or come.
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
  bool posted_ = false;    // since the last look
  bool expected_ = false;  // a step is, and nobody looks for it yet
  kernels::LinkSignal start_;
  bool stopped_ = false;
  std::exception_ptr error_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace moe
