#include "engine/comm/emulated_link.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/network/closed_form.h"

namespace moe {
namespace {

// clock_nanosleep with a timer slack of 1 ns wakes 20 to 45 us late. What is spun beyond that is
// taken from compute where the cores are busy.
constexpr Nanoseconds kSpin = 40'000;

class EmulatedLink final : public Communicator {
 public:
  EmulatedLink(Communicator& inner, const Cluster& link)
      : inner_(inner), link_(link), bytes_(static_cast<size_t>(inner.size() * inner.size())) {
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

  CommTimes all_to_all(const std::string& what, const void* send, void* receive,
                       const Pieces& pieces) override {
    inner_.posted_at(take_post());
    const CommTimes moved = inner_.all_to_all(what, send, receive, pieces);
    exchange_sizes(what, pieces);
    return hold(moved, all_to_all_v_ns(link_, bytes_));
  }
  CommTimes all_reduce(const std::string& what, const float* in, float* out, int64_t n) override {
    return reduce(what, in, out, n);
  }
  CommTimes all_reduce(const std::string& what, const double* in, double* out, int64_t n) override {
    return reduce(what, in, out, n);
  }
  CommTimes broadcast(const std::string& what, void* data, Bytes bytes, int64_t root) override {
    inner_.posted_at(take_post());
    return hold(inner_.broadcast(what, data, bytes, root),
                broadcast_ns(link_, static_cast<double>(bytes)));
  }
  /// A barrier carries no bytes and holds no wire.
  CommTimes barrier(const std::string& what) override {
    inner_.posted_at(take_post());
    return inner_.barrier(what);
  }

 private:
  template <class T>
  CommTimes reduce(const std::string& what, const T* in, T* out, int64_t n) {
    inner_.posted_at(take_post());
    return hold(inner_.all_reduce(what, in, out, n),
                all_reduce_ns(link_, static_cast<double>(n) * sizeof(T)));
  }

  /// bytes_: what every rank sends to every other.
  void exchange_sizes(const std::string& what, const Pieces& pieces) {
    for (size_t peer = 0; peer < row_.size(); ++peer) {
      const auto first = pieces.send_bytes.begin() + static_cast<int64_t>(peer) * pieces.groups;
      row_[peer] = 0;
      std::for_each(first, first + pieces.groups, [&](Bytes b) { row_[peer] += b; });
    }
    inner_.all_to_all(what + " (sizes)", row_.data(), matrix_.data(), exchange_);
    std::copy(matrix_.begin(), matrix_.end(), bytes_.begin());
  }

  /// The one place that says when a transfer is over: the wire takes it up when its last member has
  /// posted and this lane's wire is free, and carries it as if no other lane had traffic. All
  /// members come to the same begin and end, whenever their threads woke.
  CommTimes hold(const CommTimes& moved, Nanoseconds alone_ns) {
    const Nanoseconds begin = std::max(moved.begin, wire_free_);
    wire_free_ = begin + alone_ns;
    wait_until_ns(wire_free_);
    return {moved.post, begin, wire_free_};
  }

  Communicator& inner_;
  const Cluster link_;
  Nanoseconds wire_free_ = 0;
  Pieces exchange_;            // every rank's row to every rank
  std::vector<Bytes> row_;     // [N] from this rank
  std::vector<Bytes> matrix_;  // [N, N]
  std::vector<double> bytes_;  // matrix_
};

}  // namespace

std::unique_ptr<Communicator> emulate_link(Communicator& inner, const Cluster& link) {
  MOE_CHECK(link.num_devices() == inner.size(), "a link of {} devices for {} ranks",
            link.num_devices(), inner.size());
  return std::make_unique<EmulatedLink>(inner, link);
}

void wait_until_ns(Nanoseconds until) {
  thread_local const int slack_set = prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  static_cast<void>(slack_set);  // where the system refuses, sleeps only end later
  const Nanoseconds wake = until - kSpin;
  if (clock_ns() < wake) {
    const timespec at{static_cast<time_t>(wake / 1'000'000'000),
                      static_cast<long>(wake % 1'000'000'000)};
    // clock_ns is steady_clock, which is CLOCK_MONOTONIC. A signal only wakes it early: sleep
    // again.
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {
    }
  }
  while (clock_ns() < until) __builtin_ia32_pause();
}

}  // namespace moe
