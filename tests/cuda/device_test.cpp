// The device table as the plugin assembles it, on the emulated runtime: what it asks the runtime
// for, and what it says of failures. Nothing here runs on a GPU.
#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "kernels/device.h"

using namespace moe::kernels;
using Catch::Matchers::Contains;

extern "C" const DeviceTable* moe_cuda_device();

namespace {

const DeviceTable& device() {
  return *moe_cuda_device();
}
std::string error() {
  return device().take_error();
}

/// Two streams, two device numbers, and all that is made given back.
struct Fixture {
  Fixture()
      : alive(emulation::things_alive()),
        main(device().make_stream(false)),
        side(device().make_stream(true)),
        a(static_cast<float*>(device().allocate(4))),
        b(static_cast<float*>(device().allocate(4))) {}
  ~Fixture() {
    device().release(a);
    device().release(b);
    device().end_stream(main);
    device().end_stream(side);
    CHECK(error() == "");
    CHECK(emulation::things_alive() == alive);
  }
  void set(float* to, float value) { device().copy(to, &value, sizeof value, nullptr); }

  size_t alive;
  Stream main, side;
  float *a, *b;
};

}  // namespace

TEST_CASE("the table names the device and the versions of its libraries") {
  CHECK(device().num_devices() == 2);
  device().use_device(1);
  const DeviceInfo info = device().info();
  CHECK(std::string(info.name) == "the host's emulation");
  const std::string versions = info.versions;
  const std::string libraries =
      "driver 13.0, runtime 13.2, cuBLAS 1.2.3, NCCL 2.28.9, no cuDNN, build ";
  CHECK(versions.substr(0, libraries.size()) == libraries);
  CHECK(versions.size() == libraries.size() + 8);  // of the kernels' text
  CHECK((info.major == 9 && info.multiprocessors == 132));
  CHECK((info.free_bytes <= info.memory_bytes && info.memory_bytes > 0));
  device().use_device(2);
  CHECK(error() == "cuda: use_device: invalid device ordinal");
  device().use_device(0);
}

TEST_CASE("memory that is not there is refused with its size, nothing is not") {
  CHECK(device().allocate(int64_t{1} << 40) == nullptr);
  CHECK(error() == "cuda: allocate 1099511627776 bytes: out of memory");
  CHECK(device().allocate(-1) == nullptr);
  CHECK(error() == "cuda: allocate -1 bytes: out of memory");
  for (void* const none : {device().allocate(0), device().allocate_host(0)}) {
    CHECK(none != nullptr);
    device().release(none);
  }
  CHECK(error() == "");
}

TEST_CASE("an error that was read does not come back with the next launch") {
  Fixture f;
  device().use_device(7);
  CHECK(error() == "cuda: use_device: invalid device ordinal");
  f.set(f.a, 2);
  device().kernels->add(f.b, f.a, f.a, 1, f.main);
  CHECK(error() == "");
  CHECK(*f.b == 4);
}

TEST_CASE("an event that is not over is no error, and does not fail the next launch") {
  Fixture f;
  const Event event = device().make_event(false);
  device().record(event, f.main);
  emulation::be_busy_once();
  CHECK_FALSE(device().over(event));
  f.set(f.a, 2);
  device().kernels->add(f.b, f.a, f.a, 1, f.main);
  CHECK(error() == "");
  CHECK(device().over(event));
  device().end_event(event);
}

TEST_CASE("timed events have a time, also those of a recording each time it is replayed") {
  Fixture f;
  const Event from = device().make_event(true), to = device().make_event(true);
  device().record(from, f.main);
  device().sleep(5000, {}, f.main);
  device().record(to, f.main);
  CHECK(device().elapsed_ns(from, to) == Approx(5300).margin(300));

  device().begin_recording(f.main);
  device().record(from, f.main);
  device().sleep(90000, {}, f.main);
  device().record(to, f.main);
  device().fill(f.a, 0, 4, f.main);
  const Recording recording = device().end_recording(f.main);
  REQUIRE(recording);
  CHECK(device().launches(recording) == 1);                          // the fill is no kernel
  CHECK(device().elapsed_ns(from, to) == Approx(5300).margin(300));  // nothing has run
  for (int round = 0; round < 2; ++round) {
    device().record(to, f.main);
    device().replay(recording, f.side);
    CHECK(device().over(to));
    CHECK(device().elapsed_ns(from, to) == Approx(90300).margin(300));
  }
  device().release_recording(recording);
  device().end_event(from);
  device().end_event(to);
}

TEST_CASE("an event without a time has none") {
  Fixture f;
  const Event from = device().make_event(false), to = device().make_event(true);
  device().record(from, f.main);
  device().record(to, f.main);
  CHECK(device().elapsed_ns(from, to) == 0);
  CHECK_THAT(error(), Contains("cuda: elapsed_ns: "));
  device().end_event(from);
  device().end_event(to);
}

TEST_CASE("a recording whose streams do not come together is refused and leaves nothing") {
  Fixture f;
  const Event forked = device().make_event(false);
  device().begin_recording(f.main);
  device().record(forked, f.main);
  device().wait(f.side, forked);
  device().fill(f.a, 0, 4, f.side);
  CHECK(device().end_recording(f.main) == nullptr);
  CHECK_THAT(error(), Contains("cuda: end_recording: capture was not joined"));
  f.set(f.a, 3);
  device().fill(f.a, 0, 4, f.side);  // runs again
  CHECK(*f.a == 0);
  device().end_event(forked);
}

TEST_CASE("each thread has its own first error") {
  device().use_device(9);
  std::thread([] {
    CHECK(error() == "");
    device().use_device(8);
    CHECK_FALSE(error().empty());
  }).join();
  CHECK(error() == "cuda: use_device: invalid device ordinal");
}

TEST_CASE("ranks that are threads may launch at the same time") {
  Fixture f;
  const auto rank = [](float* value, Stream stream) {
    for (int step = 0; step < 50; ++step) device().kernels->add(value, value, value, 1, stream);
  };
  f.set(f.a, 1);
  f.set(f.b, 3);
  std::thread other([&] { rank(f.b, f.side); });
  rank(f.a, f.main);
  other.join();
  CHECK(*f.a == 0x1p50f);
  CHECK(*f.b == 3 * 0x1p50f);
}
