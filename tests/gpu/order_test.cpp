// What orders work: streams, events, recordings; and how long a sleep is. A sleep stands for work
// that takes long, so that an order that is not kept shows.
#include "tests/gpu/gpu.h"
#include "tests/kernels/compare.h"

using namespace moe;
using namespace moe::test;

namespace {

constexpr int64_t kLong_ns = 100'000'000;

/// Pinned, so that a copy from it is no stop.
struct HostFloats {
  explicit HostFloats(const std::vector<float>& values)
      : n(static_cast<int64_t>(values.size())),
        data(static_cast<float*>(gpu().allocate_host(bytes()))) {
    REQUIRE(data);
    std::copy(values.begin(), values.end(), data);
  }
  HostFloats(const HostFloats&) = delete;
  ~HostFloats() { gpu().release_host(data); }
  int64_t bytes() const { return n * static_cast<int64_t>(sizeof(float)); }
  std::vector<float> values() const { return {data, data + n}; }

  int64_t n;
  float* data;
};

/// What a second stream reads that does or does not wait for a late copy of the first.
std::vector<float> read_beside_a_late_copy(bool wait) {
  const std::vector<float> before(1000, 1), after(1000, 2);
  const HostFloats source(after), seen(std::vector<float>(1000, 3));
  const DeviceArray<float> x(gpu(), before);
  const OwnStream first, second;
  const OwnEvent copied;
  gpu().sleep(kLong_ns, {}, first);
  gpu().copy(x.data(), source.data, source.bytes(), first);
  gpu().record(copied, first);
  CHECK_FALSE(gpu().over(copied));
  if (wait) gpu().wait(second, copied);
  gpu().copy(seen.data, x.data(), seen.bytes(), second);
  second.finish();
  if (wait) CHECK(gpu().over(copied));
  first.finish();
  CHECK((x.read() == after));
  return seen.values();
}

/// A step of several kernels on two streams: the second joins by an event and is waited for.
struct Step {
  static constexpr int64_t kN = 96;
  DeviceArray<float> a{gpu(), random_values<float>(kN* kN, 1)};
  DeviceArray<float> b{gpu(), random_values<float>(kN* kN, 2)};
  DeviceArray<float> sum{gpu(), kN*kN}, product{gpu(), kN*kN}, y{gpu(), kN*kN};
  OwnStream main, side;
  OwnEvent fork, join;

  void give() const {
    const auto& k = *gpu().kernels;
    gpu().record(fork, main);
    gpu().wait(side, fork);
    gpu().sleep(1'000'000, {}, side);
    k.add(sum.data(), a.data(), b.data(), kN * kN, side);
    gpu().record(join, side);
    k.gemm(false, true, kN, kN, kN, 1, a.data(), kN, b.data(), kN, 0, product.data(), kN, main);
    gpu().wait(main, join);
    k.gelu(y.data(), product.data(), sum.data(), kN, kN, main);
    gpu().copy(a.data(), y.data(), y.bytes(), main);  // the next step begins from it
  }
  void start() const {
    a.write(random_values<float>(kN * kN, 1));
    y.write(std::vector<float>(kN * kN, 7));
  }
};

}  // namespace

TEST_CASE("a stream that waits for an event begins after it", "[time]") {
  CHECK((read_beside_a_late_copy(true) == std::vector<float>(1000, 2)));
}

TEST_CASE("a stream that does not wait is not held up by another", "[time]") {
  CHECK((read_beside_a_late_copy(false) == std::vector<float>(1000, 1)));
}

TEST_CASE("a stream waits for an event as it was last recorded before the wait", "[time]") {
  const OwnStream first, second;
  const OwnEvent event;
  gpu().record(event, first);
  gpu().wait(second, event);
  gpu().sleep(kLong_ns, {}, first);
  gpu().record(event, first);
  const OwnEvent passed;
  gpu().record(passed, second);
  second.finish();
  CHECK(gpu().over(passed));
  CHECK_FALSE(gpu().over(event));
  first.finish();
  CHECK(gpu().over(event));
}

TEST_CASE("a sleep lasts as long as it is told, within 2%", "[time]") {
  const OwnStream stream;
  device_ns(stream, [&] { gpu().sleep(1000, {}, stream); });
  for (const int64_t ns : {2'000'000, 20'000'000}) {
    const double took = device_ns(stream, [&] { gpu().sleep(ns, {}, stream); });
    CHECK(took >= 0.999 * static_cast<double>(ns));  // two clocks of the device
    CHECK(took <= 1.02 * static_cast<double>(ns));
  }
}

TEST_CASE("sleeps on two streams run side by side", "[time]") {
  const OwnStream first(true), second;
  const OwnEvent fork, joined;
  const double took = device_ns(first, [&] {
    gpu().record(fork, first);
    gpu().wait(second, fork);
    gpu().sleep(20'000'000, {}, first);
    gpu().sleep(20'000'000, {}, second);
    gpu().record(joined, second);
    gpu().wait(first, joined);
  });
  CHECK(took < 30e6);
}

TEST_CASE("a recording does nothing until it is replayed, then what was given to the streams",
          "[gemm]") {
  const Step step;
  step.start();
  step.give();
  step.main.finish();
  const auto once = step.y.read();
  step.give();
  step.main.finish();
  const auto twice = step.y.read();
  REQUIRE((once != twice));

  step.start();
  gpu().begin_recording(step.main);
  step.give();
  const kernels::Recording recording = gpu().end_recording(step.main);
  INFO(gpu().take_error());
  REQUIRE(recording);
  step.main.finish();
  CHECK((step.y.read() == std::vector<float>(Step::kN * Step::kN, 7)));

  gpu().replay(recording, step.main);
  step.main.finish();
  CHECK((step.y.read() == once));
  gpu().replay(recording, step.main);
  step.main.finish();
  CHECK((step.y.read() == twice));
  step.start();
  gpu().replay(recording, step.side);  // on another stream, twice without a stop
  gpu().replay(recording, step.side);
  step.side.finish();
  CHECK((step.y.read() == twice));
  gpu().release_recording(recording);
}

TEST_CASE("timed events of a recording say how long the replay took", "[time]") {
  const OwnStream stream;
  const OwnEvent from(true), to(true);
  gpu().begin_recording(stream);
  gpu().record(from, stream);
  gpu().sleep(5'000'000, {}, stream);
  gpu().record(to, stream);
  const kernels::Recording recording = gpu().end_recording(stream);
  INFO(gpu().take_error());
  REQUIRE(recording);
  for (int i = 0; i < 2; ++i) {
    gpu().replay(recording, stream);
    stream.finish();
    const double took = gpu().elapsed_ns(from, to);
    CHECK((took >= 0.999 * 5e6 && took <= 1.02 * 5e6));
  }
  gpu().release_recording(recording);
}

TEST_CASE("results have the same bits whatever is delayed", "[gemm]") {
  const Step step;
  std::vector<float> want;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    step.start();
    Rng rng(seed);
    gpu().sleep(static_cast<int64_t>(rng.below(3'000'000)), {}, step.side);
    gpu().sleep(static_cast<int64_t>(rng.below(3'000'000)), {}, step.main);
    for (int i = 0; i < 3; ++i) step.give();
    step.main.finish();
    if (seed == 0) want = step.y.read();
    CHECK((step.y.read() == want));
  }
}
