// The driver of the emulated link by itself: a device that is played here begins transfers, and
// each may end when the model of network/ says so for those begins.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <limits>
#include <map>
#include <optional>

#include "engine/base/rng.h"
#include "engine/comm/communicator.h"
#include "engine/exec/device/emulated_link_thread.h"
#include "engine/network/closed_form.h"
#include "tests/exec/device/lazy_device.h"

namespace moe::test {
namespace {

constexpr Nanoseconds kStep = 20;  // of the host's clock while it spins
// The driver sleeps for so long between looks at what has not begun: what is shorter ends later.
constexpr Nanoseconds kNap = 20'000;

Cluster link_of(int64_t ranks, Share share) {
  Cluster link;
  link.nodes = ranks / 2;
  link.devices_per_node = 2;
  link.intra = {.bytes_per_s = 2e9, .latency_ns = 1'000};
  link.nic = {.bytes_per_s = 1e9, .latency_ns = 3'000};
  link.a2a_base_ns = 500;
  link.share = share;
  link.sharing_efficiency = 0.8;
  return link;
}

/// An all-to-all of ragged sizes among all or within groups of two, or an all-reduce.
NetworkOp random_op(int64_t ranks, Rng& rng) {
  if (rng.below(3) == 0) return {AllReduce{.bytes = static_cast<double>(rng.below(200'000))}};
  AllToAll exchange;
  const bool groups = rng.below(2) == 0;
  for (int64_t i = 0; i < ranks; ++i) {
    for (int64_t j = 0; j < ranks; ++j) {
      const bool sends = i != j && (!groups || i / 2 == j / 2);
      exchange.bytes.push_back(sends ? static_cast<double>(rng.below(60'000)) : 0);
    }
  }
  NetworkOp op{exchange};
  if (groups) op.group = {2, 1};
  return op;
}

/// What a channel's kernels do: transfers one after another, each ready at a time of its own.
struct PlayedChannel {
  struct Transfer {
    NetworkOp op;
    Nanoseconds alone = 0;
    Nanoseconds ready = 0;  // on the device, after the last one was let end
    Nanoseconds began = -1, let_end = -1;
  };
  std::vector<Transfer> transfers;
  size_t at = 0;  // the first that is not over

  std::optional<Nanoseconds> begins_at() const {
    if (at == transfers.size() || transfers[at].began >= 0) return std::nullopt;
    const Nanoseconds free = at == 0 ? 0 : transfers[at - 1].let_end;
    return free + transfers[at].ready;
  }
};

/// A device and a host whose clocks differ by `ahead`; the host wakes up to `late` too late where
/// it sleeps.
class Played {
 public:
  Played(const Cluster& link, size_t channels, Nanoseconds ahead, Nanoseconds late, uint64_t seed)
      : flags_(channels + 1), driver_(link, flags_), late_(late), ahead_(ahead), rng_(seed) {
    channels_.resize(channels);
  }

  void post(size_t channel, const NetworkOp& op, Nanoseconds ready) {
    PlayedChannel& c = channels_[channel];
    const PacedTransfer paced = driver_.post(channel, op);
    c.transfers.push_back({op, paced.alone, ready});
    REQUIRE(paced.signal.flags == &flags_[channel + 1]);
    REQUIRE(paced.signal.begins == static_cast<int64_t>(c.transfers.size()));
    REQUIRE(paced.signal.ends == paced.signal.begins);
  }

  /// The step begins on the device `wait` after the host has asked for it.
  void run(Nanoseconds wait) {
    Nanoseconds now = device_ + ahead_;
    const kernels::LinkSignal start = driver_.start_step(now);
    start_ = device_ + wait;
    for (Nanoseconds next = now; next != kNever;) {
      now = std::max(next, now + kStep) + (next > now ? rng_.below(late_ + 1) : 0);
      device_ = now - ahead_;
      if (device_ >= start_ && start.flags->begun < start.begins) {
        *start.flags = {.began_ns = start_, .begun = start.begins, .over = 0};
      }
      play();
      next = driver_.look(now);
      let_end();
    }
  }

  std::vector<PlayedChannel>& channels() { return channels_; }
  Nanoseconds start() const { return start_; }
  EmulatedLinkDriver& driver() { return driver_; }

 private:
  void play() {
    for (size_t c = 0; c < channels_.size() && device_ >= start_; ++c) {
      const auto begins = channels_[c].begins_at();
      if (!begins || std::max(*begins, start_) > device_) continue;
      PlayedChannel::Transfer& t = channels_[c].transfers[channels_[c].at];
      t.began = flags_[c + 1].began_ns = std::max(*begins, start_);
      flags_[c + 1].begun = static_cast<int64_t>(channels_[c].at) + 1;
    }
  }
  void let_end() {
    for (size_t c = 0; c < channels_.size(); ++c) {
      PlayedChannel& channel = channels_[c];
      if (flags_[c + 1].over <= static_cast<int64_t>(channel.at)) continue;
      REQUIRE(flags_[c + 1].over == static_cast<int64_t>(channel.at) + 1);
      REQUIRE(channel.transfers[channel.at].began >= 0);
      channel.transfers[channel.at++].let_end = device_;
    }
  }

  std::vector<kernels::LinkFlags> flags_;
  EmulatedLinkDriver driver_;
  std::vector<PlayedChannel> channels_;
  const Nanoseconds late_;
  Nanoseconds ahead_;
  Rng rng_;
  Nanoseconds device_ = 1'000'000, start_ = 0;
};

/// When each transfer ends by the link model for the begins that the device had, in the order of
/// channels.
std::vector<Nanoseconds> ends_by_model(const Cluster& link, const std::vector<PlayedChannel>& all) {
  std::vector<NetworkOp> ops;
  Nanoseconds first = std::numeric_limits<Nanoseconds>::max();
  for (const PlayedChannel& c : all) first = std::min(first, c.transfers[0].began);
  for (const PlayedChannel& c : all) {
    for (const auto& t : c.transfers) {
      ops.push_back(t.op);
      ops.back().start_ns = t.began - first;
    }
  }
  std::vector<Nanoseconds> ends;
  for (const NetworkTimes& times : run_collectives(link, ops, network_options(link)).ops) {
    ends.push_back(first + times.end_ns);
  }
  return ends;
}

/// Random posts on two or three lanes; how late transfers were let end at worst, short ones less a
/// sleep.
Nanoseconds check_random_posts(uint64_t seed, Nanoseconds late, Nanoseconds wait) {
  Rng rng(seed);
  const int64_t ranks = 2 + 2 * rng.below(2);
  const Cluster link = link_of(ranks, static_cast<Share>(rng.below(3)));
  const auto channels = static_cast<size_t>(2 + rng.below(2));
  Played played(link, channels, rng.below(1'000'000'000) - 500'000'000, late, seed);
  for (size_t c = 0; c < channels; ++c) {
    for (int i = 0; i < 6; ++i) played.post(c, random_op(ranks, rng), rng.below(100'000));
  }
  played.run(wait);
  const std::vector<Nanoseconds> ends = ends_by_model(link, played.channels());
  Nanoseconds latest = 0;
  size_t i = 0;
  for (const PlayedChannel& c : played.channels()) {
    CHECK(c.at == c.transfers.size());
    for (const auto& t : c.transfers) {
      CAPTURE(seed, i, t.began, t.alone);
      CHECK(t.let_end >= ends[i] - 2);  // sums of events round
      CHECK(t.let_end >= t.began + t.alone);
      latest = std::max(latest, t.let_end - ends[i++] - (t.alone < kNap ? kNap : 0));
    }
  }
  return latest;
}

TEST_CASE("transfers of several lanes may end when the link model says so for their begins") {
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    CHECK(check_random_posts(seed, 0, 5 * kStep) <= 2 * kStep + 2);
  }
}

TEST_CASE("a driver that wakes late lets transfers end late, but never by another model") {
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    CHECK(check_random_posts(seed, 30'000, 5 * kStep) <= 60'000);
    // Where it has seen the step begin late, until a begin is seen sooner.
    check_random_posts(seed, 30'000, 1'000'000);
  }
}

TEST_CASE("link use is timed by the device's clock from the step's begin") {
  const Cluster link = link_of(4, Share::kPerCollective);
  Played played(link, 2, 12'345, 0, 1);
  const NetworkOp op{AllToAll{.bytes_per_pair = 30'000}};
  for (int step = 0; step < 2; ++step) {
    for (size_t c = 0; c < 2; ++c) played.post(c, op, 0);
    played.run(100);
    std::map<std::string, double> bytes;
    Nanoseconds first = kNever, last = 0;
    for (const LinkSpan& span : played.driver().take_links()) {
      bytes[span.name] += span.bytes_per_s * static_cast<double>(span.end - span.begin) / 1e9;
      first = std::min(first, span.begin);
      last = std::max(last, span.end);
    }
    for (const auto& [name, sum] : bytes) {
      CAPTURE(step, name);
      // A device has one peer in its node and two beyond, a NIC carries for two devices.
      CHECK(sum == Approx(name.starts_with("nic") ? 2 * 4 * 30e3 : 2 * 30e3).epsilon(1e-3));
    }
    CHECK(bytes.size() == 4 * 2 + 2 * 2);
    const PlayedChannel& c = played.channels()[0];
    CHECK(first >= c.transfers[static_cast<size_t>(step)].began - played.start());
    CHECK(first < 20'000);
    CHECK(last <= c.transfers[static_cast<size_t>(step)].let_end - played.start());
    CHECK(played.driver().take_links().empty());
  }
}

TEST_CASE("a driver that gives up lets end whatever was posted, and whatever will be") {
  std::vector<kernels::LinkFlags> flags(3);
  EmulatedLinkDriver driver(link_of(2, Share::kPerFlow), flags);
  const auto ends = [&](const PacedTransfer& t) { return t.signal.flags->over >= t.signal.ends; };
  const NetworkOp op{AllReduce{.bytes = 1e12}};
  const PacedTransfer before = driver.post(0, op);
  CHECK_FALSE(ends(before));
  driver.let_all_end();
  CHECK(ends(before));
  CHECK(ends(driver.post(0, op)));
  CHECK(ends(driver.post(1, op)));
}

constexpr Nanoseconds kAhead = 1'000'000'000;  // the host's clock of the played device's

void begin(const kernels::LinkSignal& signal) {
  std::atomic_ref(signal.flags->began_ns).store(clock_ns() - kAhead);
  std::atomic_ref(signal.flags->begun).store(signal.begins);
}

TEST_CASE("the thread that drives a link lets no transfer end before the link model says so") {
  kernels::DeviceTable device = lazy_device();
  lazy_start(LazyOrder::kAsGiven);
  device.sleep = [](int64_t, const kernels::LinkSignal& signal, kernels::Stream) { begin(signal); };
  const Cluster link = link_of(2, Share::kPerFlow);
  EmulatedLinkThread link_thread(device, link, 2);
  const NetworkOp op{AllToAll{.bytes_per_pair = 4e6}};
  for (int step = 0; step < 3; ++step) {
    link_thread.expect_step();
    link_thread.begin_step(nullptr);
    const kernels::LinkSignal signals[] = {link_thread.post(0, op).signal,
                                           link_thread.post(1, op).signal};
    begin(signals[0]);
    begin(signals[1]);
    std::vector<NetworkOp> ops(2, op);
    ops[1].start_ns = signals[1].flags->began_ns - signals[0].flags->began_ns;
    const auto model = run_collectives(link, ops, network_options(link)).ops;
    for (size_t i = 0; i < 2; ++i) {
      while (std::atomic_ref(signals[i].flags->over).load() < signals[i].ends) {
      }
      const Nanoseconds late = clock_ns() - kAhead - signals[0].flags->began_ns - model[i].end_ns;
      CHECK(late >= -2);
    }
    CHECK_NOTHROW(link_thread.check());
    CHECK_FALSE(link_thread.take_links().empty());
  }
  // A post that never begins: the thread ends all the same.
  const kernels::LinkSignal last = link_thread.post(0, op).signal;
  link_thread.abort();
  CHECK(last.flags->over >= last.ends);
}

}  // namespace
}  // namespace moe::test
