#include "engine/comm/local/emulated_link.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <chrono>

#include "engine/base/errors.h"
#include "engine/base/threads.h"

namespace moe {

namespace {

class EmulatedLink final : public Communicator {
 public:
  /// `inner` is the communicator of these members among the link's devices; `rank` is this rank's
  /// number among all ranks.
  EmulatedLink(Communicator& inner, EmulatedWire& wire, int64_t lane, int64_t rank,
               const Members& members)
      : inner_(inner),
        wire_(wire),
        lane_(lane),
        rank_(rank),
        members_(members),
        channel_(wire.channel(lane, members)) {
    const size_t n = static_cast<size_t>(inner.size());
    row_.resize(n);
    matrix_.resize(n * n);
    const Bytes row_bytes = static_cast<Bytes>(n * sizeof(Bytes));
    exchange_.send_offset.assign(n, 0);
    exchange_.send_bytes.assign(n, row_bytes);
    exchange_.receive_bytes.assign(n, row_bytes);
    for (size_t peer = 0; peer < n; ++peer) {
      exchange_.receive_offset.push_back(static_cast<Bytes>(peer) * row_bytes);
    }
  }

  int64_t rank() const override { return inner_.rank(); }
  int64_t size() const override { return inner_.size(); }
  /// A barrier transfers no bytes and does not occupy the wire.
  CommTimes call(const Request& request) override {
    const CommTimes moved = inner_.call(request);
    switch (request.kind) {
      case CallKind::kAllToAll:
        exchange_sizes(request.what, *request.pieces);
        return hold(request, moved, exchange_of(*request.pieces));
      case CallKind::kAllReduceF32:
      case CallKind::kAllReduceF64:
        return hold(request, moved, sum_of(request, 1, ReducePart::kWhole));
      case CallKind::kReduceScatterF32:
      case CallKind::kReduceScatterF64:
        return hold(request, moved, sum_of(request, size(), ReducePart::kReduceScatter));
      case CallKind::kAllGather:
        return hold(request, moved, sum_of(request, size(), ReducePart::kAllGather));
      default:
        return moved;
    }
  }

  Communicator& among(const Members& members) override {
    for (const auto& made : subgroups_) {
      if (made->members_ == members) return *made;
    }
    subgroups_.push_back(
        std::make_unique<EmulatedLink>(inner_.among(members), wire_, lane_, rank_, members));
    return *subgroups_.back();
  }

 private:
  Group group() const { return {members_.size, members_.stride}; }
  /// Whether the members are a group (base/group.h), and no pair across groups.
  bool is_group() const {
    return wire_.link().num_devices() % (members_.size * members_.stride) == 0 &&
           group().place(members_.first) == 0;
  }

  /// Returns the exchange of which matrix_ has the bytes.
  NetworkOp exchange_of(const Pieces& pieces) const {
    if (is_group()) {
      return {
          AllToAll{.bytes = {matrix_.begin(), matrix_.end()}, .round = pieces.round, .rank = rank_},
          group()};
    }
    const auto all = static_cast<size_t>(wire_.link().num_devices());
    std::vector<double> bytes(all * all);
    const auto n = static_cast<size_t>(members_.size);
    for (size_t i = 0; i < n * n; ++i) {
      const auto rank = [&](size_t number) {
        return static_cast<size_t>(members_.rank(static_cast<int64_t>(number)));
      };
      bytes[rank(i / n) * all + rank(i % n)] = static_cast<double>(matrix_[i]);
    }
    return {AllToAll{.bytes = std::move(bytes)}, Group{wire_.link().num_devices()}};
  }

  NetworkOp sum_of(const Request& request, int64_t shares, ReducePart part) const {
    const bool all = size() == wire_.link().num_devices();
    const Bytes bytes = request.size * shares * element_bytes(request.kind);
    if (!is_group()) {  // a pair: each sends the other its half
      NetworkOp both = exchange_of({});
      std::vector<double>& matrix = std::get<AllToAll>(both.what).bytes;
      const auto n = static_cast<size_t>(wire_.link().num_devices());
      const auto a = static_cast<size_t>(members_.rank(0)),
                 b = static_cast<size_t>(members_.rank(1));
      matrix[a * n + b] = matrix[b * n + a] = static_cast<double>(bytes);
      return both;
    }
    return {AllReduce{.bytes = static_cast<double>(bytes),
                      .algorithm = wire_.link().all_reduce,
                      .rank = all ? -1 : rank_,
                      .part = part},
            group()};
  }

  /// Fills matrix_ with the bytes that every member sends to every other.
  void exchange_sizes(const std::string& what, const Pieces& pieces) {
    for (size_t peer = 0; peer < row_.size(); ++peer) {
      const auto first = pieces.send_bytes.begin() + static_cast<int64_t>(peer) * pieces.groups;
      row_[peer] = 0;
      std::for_each(first, first + pieces.groups, [&](Bytes b) { row_[peer] += b; });
    }
    inner_.all_to_all(what + " (sizes)", row_.data(), matrix_.data(), exchange_);
  }

  /// Waits until the emulated transfer is over. All members get the same begin and end, whenever
  /// their threads woke.
  CommTimes hold(const Request& request, const CommTimes& moved, const NetworkOp& transfer) {
    try {
      const EmulatedWire::Times times = wire_.carry(channel_, ++turn_, transfer, moved.begin);
      return {moved.post, times.begin, times.end, thread_cpu_ns()};
    } catch (const EmulatedWire::Stopped& stopped) {
      throw run_error("rank {}: {}: stopped: {}", rank_, describe(request), stopped.reason);
    }
  }

  Communicator& inner_;
  EmulatedWire& wire_;
  const int64_t lane_, rank_;
  const Members members_;
  EmulatedWire::Channel& channel_;
  uint64_t turn_ = 0;          // number of transfers so far
  Pieces exchange_;            // the exchange in which every member sends its row_ to all
  std::vector<Bytes> row_;     // [n]: bytes from this rank to each member
  std::vector<Bytes> matrix_;  // [n, n]: bytes from each member to each
  std::vector<std::unique_ptr<EmulatedLink>> subgroups_;
};

/// Sets this thread's timer slack to 1 ns; where the system refuses, its sleeps end later.
void sleep_precisely() {
  thread_local const int slack_set = prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  static_cast<void>(slack_set);
}

}  // namespace

EmulatedWire::Channel& EmulatedWire::channel(int64_t lane, const Members& members) {
  const Lock lock(mutex_);
  return channels_[{lane, members.size, members.stride, members.first}];
}

void EmulatedWire::abort(const std::string& reason) {
  const Lock lock(mutex_);
  if (!stopped_) reason_ = reason;
  stopped_ = true;
  stop_.notify_all();
}

std::vector<LinkUse> EmulatedWire::take_use(Nanoseconds since) {
  const Lock lock(mutex_);
  std::vector<LinkUse> all = transfers_.take_use();
  const auto offset = static_cast<double>(origin_ - since);
  for (LinkUse& use : all) {
    use.begin_ns += offset;
    use.end_ns += offset;
  }
  return all;
}

void EmulatedWire::wait(Lock& lock, Nanoseconds until, bool spin) {
  spin = spin && spins_;
  const std::chrono::steady_clock::time_point wake(
      std::chrono::nanoseconds(origin_ + until - (spin ? kWakesLate : 0)));
  if (stop_.wait_until(lock, wake, [&] { return stopped_; }) || !spin) return;
  lock.unlock();
  while (clock() < until) __builtin_ia32_pause();
  lock.lock();
}

EmulatedWire::Times EmulatedWire::carry(Channel& channel, uint64_t turn, const NetworkOp& op,
                                        Nanoseconds post) {
  sleep_precisely();
  Lock lock(mutex_);
  if (channel.turn < turn && !stopped_) transfers_.begin(channel, turn, op, post - origin_);
  const Nanoseconds begin = channel.begin;
  while (!stopped_) {
    if (transfers_.is_over(channel, clock())) return {origin_ + begin, origin_ + channel.end};
    wait(lock, transfers_.next_ns(channel), transfers_.may_end_next(channel));
  }
  throw Stopped{reason_};
}

std::unique_ptr<Communicator> emulate_link(Communicator& inner, EmulatedWire& wire, int64_t lane) {
  MOE_CHECK(wire.link().num_devices() == inner.size(),
            "the emulated link has {} devices, but there are {} ranks; the numbers must be equal",
            wire.link().num_devices(), inner.size());
  return std::make_unique<EmulatedLink>(inner, wire, lane, inner.rank(), Members{inner.size()});
}

void sleep_until_ns(Nanoseconds until) {
  if (clock_ns() >= until) return;
  sleep_precisely();
  const timespec at{static_cast<time_t>(until / 1'000'000'000),
                    static_cast<long>(until % 1'000'000'000)};
  // clock_ns is steady_clock, which is CLOCK_MONOTONIC. When a signal ends the sleep early, sleep
  // again.
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {
  }
}

void wait_until_ns(Nanoseconds until) {
  sleep_until_ns(until - kWakesLate);
  while (clock_ns() < until) __builtin_ia32_pause();
}

}  // namespace moe
