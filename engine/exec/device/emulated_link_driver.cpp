#include "engine/exec/device/emulated_link_driver.h"

#include <algorithm>
#include <atomic>
#include <tuple>

#include "engine/comm/local/emulated_link.h"
#include "engine/replay/link_spans.h"

namespace moe {
namespace {

// Interval between checks for transfers that have not begun. A transfer that takes less than this
// alone ends late by at most this much.
constexpr Nanoseconds kNap = 20'000;
// How long the start of a step is polled without a pause: all times of the device are counted from
// the start, and noticing it late would make all ends late.
constexpr Nanoseconds kSoon = 500'000;

int64_t read(int64_t& word) {
  return std::atomic_ref(word).load(std::memory_order_acquire);
}
void write(int64_t& word, int64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

}  // namespace

EmulatedLinkDriver::EmulatedLinkDriver(const Cluster& link, std::span<kernels::LinkFlags> flags)
    : flags_(flags), transfers_(link, true), channels_(flags.size() - 1) {}

kernels::LinkSignal EmulatedLinkDriver::start_step(Nanoseconds now) {
  asked_ = now;
  awaits_start_ = true;
  return {&flags_[0], ++passes_, 0};
}

PacedTransfer EmulatedLinkDriver::post(size_t channel, NetworkOp transfer) {
  const Nanoseconds alone = alone_ns(transfers_.link(), transfer);
  Channel& c = channels_[channel];
  c.posts.push_back({++c.num_posted, std::move(transfer), alone});
  return {{&flags_[channel + 1], c.num_posted, c.num_posted}, alone};
}

/// Whether the step has begun on the device. Each step sets the offset of the clocks again,
/// because they drift.
bool EmulatedLinkDriver::has_started(Nanoseconds now) {
  if (awaits_start_ && read(flags_[0].begun) == passes_) {
    awaits_start_ = false;
    start_ = read(flags_[0].began_ns);
    ahead_ = now - start_;
    if (!has_origin_) origin_ = start_;
    has_origin_ = true;
  }
  return !awaits_start_;
}

/// Corrects the offset of the clocks by a begin at `device` that was noticed at `now`: the begin
/// noticed with the shortest delay gives the best estimate.
void EmulatedLinkDriver::see_clock(Nanoseconds device, Nanoseconds now) {
  ahead_ = std::min(ahead_, now - device);
}

void EmulatedLinkDriver::see_begins(Nanoseconds now) {
  std::vector<std::tuple<Nanoseconds, size_t>> begun;
  for (size_t i = 0; i < channels_.size(); ++i) {
    Channel& c = channels_[i];
    kernels::LinkFlags& flags = flags_[i + 1];
    if (c.posts.empty() || c.begun || read(flags.begun) < c.posts.front().number) continue;
    begun.emplace_back(read(flags.began_ns), i);
    see_clock(read(flags.began_ns), now);
  }
  std::sort(begun.begin(), begun.end());
  for (const auto& [at, i] : begun) {
    Channel& c = channels_[i];
    const Post& post = c.posts.front();
    transfers_.begin(c.wire, static_cast<uint64_t>(post.number), post.transfer, at - origin_);
    c.begun = true;
  }
}

void EmulatedLinkDriver::end(Nanoseconds now) {
  for (size_t i = 0; i < channels_.size(); ++i) {
    Channel& c = channels_[i];
    if (!c.begun || !transfers_.is_over(c.wire, on_wire(now))) continue;
    write(flags_[i + 1].over, c.posts.front().number);
    c.posts.pop_front();
    c.begun = false;
  }
}

Nanoseconds EmulatedLinkDriver::look(Nanoseconds now) {
  // No transfer of a step begins before the step's start.
  if (!has_started(now)) return now < asked_ + kSoon ? now : now + kNap;
  see_begins(now);
  end(now);
  Nanoseconds next = kNever;
  for (const Channel& c : channels_) {
    if (!c.posts.empty()) next = std::min(next, next_look(c, now));
  }
  return next;
}

/// Returns the time of the CPU's clock at which to look at this channel again. A transfer that has
/// not begun by `now` cannot end before the time has passed that it takes alone on the wire, so the
/// thread may sleep until shortly before. It may miss begins of other transfers meanwhile, but
/// look() notices all begins before it ends any transfer.
Nanoseconds EmulatedLinkDriver::next_look(const Channel& c, Nanoseconds now) {
  if (!c.begun) return now + std::max(kNap, c.posts.front().alone - kWakesLate);
  const Nanoseconds next = transfers_.next_ns(c.wire) + origin_ + ahead_;
  return transfers_.may_end_next(c.wire) ? next - kWakesLate : next;
}

void EmulatedLinkDriver::let_all_end() {
  for (kernels::LinkFlags& flags : flags_) write(flags.over, kNever);
}

std::vector<LinkSpan> EmulatedLinkDriver::take_links() {
  std::vector<LinkUse> use = transfers_.take_use();
  const auto offset = static_cast<double>(origin_ - start_);
  for (LinkUse& u : use) {
    u.begin_ns += offset;
    u.end_ns += offset;
  }
  return link_spans(transfers_.wire(), use);
}

}  // namespace moe
