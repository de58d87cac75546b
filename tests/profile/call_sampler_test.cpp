// Which calls become samples, on a clock that the test advances.
#include "engine/profile/call_sampler.h"

#include <algorithm>
#include <catch2/catch.hpp>

namespace moe {
namespace {

constexpr Nanoseconds kMinTime = 20'000'000, kCall = 1'000'000;
constexpr int64_t kMinSamples = 7;

/// A measurement in which calls of kCall follow each other without a pause.
struct Measurement {
  Nanoseconds now = 1'000'000'000;
  CallSampler sampler = {now, kMinTime, kMinSamples};
  Nanoseconds warm = now + CallSampler::kWarmUp - kCall;  // the end of the warm-up's last call

  /// Makes a call; a disturbed one takes twice as long.
  void call(bool disturbed) {
    const Nanoseconds ns = disturbed ? 2 * kCall : kCall;
    now += ns;
    sampler.add({ns, disturbed}, now);
  }
  void warm_up() {
    while (now < warm) call(false);
  }
  /// Makes calls until the sampler has enough; call i is disturbed if disturbs(i).
  template <class F>
  Samples run(const F& disturbs) {
    warm_up();
    for (int64_t i = 0; !sampler.done(now); ++i) call(disturbs(i));
    return sampler.take();
  }
};

TEST_CASE("a call is disturbed if its thread lost more than 2 us and a fiftieth of its time") {
  CHECK_FALSE(lost_core(1'000, 0));
  CHECK_FALSE(lost_core(100'000, 96'000));
  CHECK(lost_core(100'000, 95'999));
  CHECK_FALSE(lost_core(100'000'000, 98'000'000 - 2'000));
  CHECK(lost_core(100'000'000, 98'000'000 - 2'001));
}

TEST_CASE("without a disturbed call, samples are the calls after the warm-up") {
  const Samples samples = Measurement().run([](int64_t) { return false; });
  CHECK(samples == Samples{std::vector<Nanoseconds>(kMinTime / kCall, kCall)});
}

TEST_CASE("disturbed calls are made again while patience lasts") {
  Measurement m;
  // Three of four calls are disturbed: the least time is over before there are enough others.
  const Samples samples = m.run([](int64_t i) { return i % 4 != 3; });
  CHECK(samples.ns == std::vector<Nanoseconds>(kMinSamples, kCall));
  CHECK(samples.lost == 0.75);
  CHECK_FALSE(samples.disturbed);
  CHECK(m.now - m.warm > kMinTime);
  CHECK(m.now - m.warm < CallSampler::kPatience * kMinTime);
}

TEST_CASE("disturbed calls are kept when patience ends, and the samples say so") {
  Measurement m;
  const Samples samples = m.run([](int64_t i) { return i > 2; });
  CHECK(samples.ns.size() == kMinSamples);
  CHECK(std::count(samples.ns.begin(), samples.ns.end(), kCall) == 3);
  CHECK(samples.disturbed);
  CHECK(samples.lost > 0.9);
  CHECK(samples.lost < 1);
  // The calls that had to be kept ended after the patience, and no further call was made.
  const Nanoseconds kept = (kMinSamples - 3) * 2 * kCall;
  CHECK(m.now - m.warm >= CallSampler::kPatience * kMinTime);
  CHECK(m.now - m.warm <= CallSampler::kPatience * kMinTime + kept);
}

TEST_CASE("a disturbed warm-up does not count") {
  Measurement m;
  while (m.now < m.warm) m.call(true);
  const Samples samples = m.run([](int64_t) { return false; });
  CHECK_FALSE(samples.disturbed);
  CHECK(samples.lost == 0);
}

TEST_CASE("of very many short calls some are kept, from the whole measurement") {
  Nanoseconds now = 0;
  CallSampler sampler(now, kMinTime, kMinSamples);
  for (Nanoseconds ns = 100; !sampler.done(now); ++ns) {
    now += 100;
    sampler.add({ns}, now);  // each call says when it was made
  }
  const Samples samples = sampler.take();
  CHECK(samples.ns.size() >= CallSampler::kMostSamples);
  CHECK(samples.ns.size() <= 2 * CallSampler::kMostSamples);
  CHECK(samples.ns.back() - samples.ns.front() > (now - CallSampler::kWarmUp) / 100 * 99 / 100);
}

}  // namespace
}  // namespace moe
