// The emulated link of ranks on a device with the thread that keeps it (link_keeper.h). It sleeps
// while nothing can begin and end, and spins only before an end and where a pass begins. What ends
// it lets all transfers end first, so that the device never waits for nobody.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/exec/device_buffers.h"
#include "engine/exec/link_keeper.h"

namespace moe {

class KeptLink {
 public:
  /// Keeps a reference to the device.
  KeptLink(const kernels::DeviceTable& device, const Cluster& link, size_t num_channels);
  ~KeptLink();
  KeptLink(const KeptLink&) = delete;

  /// The stream was just given what begins a pass.
  void start_pass(kernels::Stream stream);
  KeptTransfer post(size_t channel, LinkTransfer transfer);
  /// Throws what ended the keeper.
  void check();
  /// Lets all transfers end that are under way or come.
  void abort() noexcept;
  std::vector<LinkLoad> take_links();

 private:
  using Lock = std::unique_lock<std::mutex>;
  void keep();
  void keep_looking(Lock& lock);

  const kernels::DeviceTable& device_;
  DeviceStorage memory_;
  std::mutex mutex_;
  std::condition_variable wake_;
  LinkKeeper keeper_;
  bool posted_ = false;  // since the last look
  bool stopped_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace moe
