#include "engine/comm/local/transfer.h"

#include <algorithm>
#include <cstring>

#include "engine/base/errors.h"
#include "engine/base/index.h"

namespace moe {
namespace {

// Size of one task, a copy or a sum: its duration is long compared with taking it from a queue, and
// short compared with a time slice of the system.
constexpr Bytes kCopyBytes = 256 << 10;
constexpr int64_t kSumElements = 32 << 10;
// Elements of a tile, which is summed in the first-level cache and then stored to every member.
constexpr int64_t kTileElements = 1024;

/// Stores in[i] of rank 0 + in[i] of rank 1 + ..., in this order, for `count` elements i from
/// `first` on, by store(tile, i, bytes) for each tile. All ranks' inputs for a tile are read
/// before any output of that tile is written, so `out` may be `in`.
template <class T, class Store>
void sum_in_rank_order(std::span<const Request> requests, int64_t first, int64_t count,
                       Store store) {
  T tile[kTileElements];
  for (int64_t i = first; i < first + count; i += kTileElements) {
    const int64_t n = std::min(kTileElements, first + count - i);
    const size_t tile_bytes = index(n) * sizeof(T);
    std::memcpy(tile, static_cast<const T*>(requests[0].in) + i, tile_bytes);
    for (const Request& r : requests.subspan(1)) {
      const T* in = static_cast<const T*>(r.in) + i;
      for (int64_t j = 0; j < n; ++j) tile[j] += in[j];
    }
    store(tile, i, tile_bytes);
  }
}

}  // namespace

std::string mismatch(int64_t rank, const Request& mine, int64_t other_rank, const Request& other) {
  // The lower rank comes first, so that all ranks report the same message.
  if (other_rank < rank) return mismatch(other_rank, other, rank, mine);
  if (mine.kind != other.kind || mine.what != other.what) {
    return fmt::format("rank {} called {} where rank {} called {}", rank, describe(mine),
                       other_rank, describe(other));
  }
  const auto differ = [&](const char* of, int64_t a, int64_t b) {
    return fmt::format("{}: rank {} has {} {}, rank {} has {}", describe(mine), rank, of, a,
                       other_rank, b);
  };
  if (mine.size != other.size) {
    const bool bytes = mine.kind == CallKind::kBroadcast || mine.kind == CallKind::kAllGather;
    return differ(bytes ? "bytes" : "elements", mine.size, other.size);
  }
  if (mine.root != other.root) return differ("root", mine.root, other.root);
  if (mine.pieces != nullptr && mine.pieces->groups != other.pieces->groups) {
    return differ("groups", mine.pieces->groups, other.pieces->groups);
  }
  return "";
}

void Transfer::prepare(std::span<const Request> requests) {
  requests_ = requests;
  jobs_.clear();
  bytes_ = 0;
  const Request& first = requests[0];
  for (int64_t r = 0; r < members_.size; ++r) {
    Queue& queue = queues_[index(r)];
    queue.next.store(jobs_.size(), std::memory_order_relaxed);
    if (first.kind == CallKind::kAllToAll) {
      add_all_to_all(r);
    } else if (first.kind == CallKind::kAllGather) {
      add_gather(r);
    } else if (scatters(first.kind)) {
      cut_sum(r * first.size, (r + 1) * first.size, 1);
    } else if (first.kind != CallKind::kBarrier) {
      add_sums(r);
    }
    queue.end = jobs_.size();
  }
  unfinished_.store(jobs_.size(), std::memory_order_relaxed);
}

void Transfer::add_copy(void* to, const void* from, Bytes bytes) {
  for (Bytes at = 0; at < bytes; at += kCopyBytes) {
    jobs_.push_back({static_cast<char*>(to) + at, static_cast<const char*>(from) + at, 0,
                     std::min(kCopyBytes, bytes - at)});
  }
  bytes_ += bytes;
}

void Transfer::add_all_to_all(int64_t member) {
  const Request& mine = requests_[index(member)];
  const int64_t groups = mine.pieces->groups;
  for (int64_t i = 0; i < members_.size; ++i) {
    const int64_t peer = (member + i) % members_.size;
    const Request& theirs = requests_[index(peer)];
    for (int64_t g = 0; g < groups; ++g) {
      const size_t to = index(peer * groups + g), from = index(member * groups + g);
      const Bytes bytes = mine.pieces->receive_bytes[to], sent = theirs.pieces->send_bytes[from];
      if (sent != bytes) {
        throw run_error(
            "{}: rank {} sends {} bytes to rank {}, which expects {} bytes (group {} of the "
            "pieces)",
            describe(mine), members_.rank(peer), sent, members_.rank(member), bytes, g);
      }
      add_copy(static_cast<char*>(mine.out) + mine.pieces->receive_offset[to],
               static_cast<const char*>(theirs.in) + theirs.pieces->send_offset[from], bytes);
    }
  }
}

void Transfer::add_sums(int64_t member) {
  const int64_t size = members_.size, n = requests_[0].size;
  const int64_t jobs = (n + kSumElements - 1) / kSumElements;
  cut_sum(jobs * member / size * kSumElements,
          std::min(n, jobs * (member + 1) / size * kSumElements), size);
}

/// Adds the tasks that sum elements [first, last) of the inputs for `stores` members.
void Transfer::cut_sum(int64_t first, int64_t last, int64_t stores) {
  for (; first < last; first += kSumElements) {
    const int64_t count = std::min(kSumElements, last - first);
    jobs_.push_back({nullptr, nullptr, first, count});
    bytes_ += count * element_bytes(requests_[0].kind) * stores;
  }
}

void Transfer::add_gather(int64_t member) {
  const Bytes bytes = requests_[0].size;
  char* const out = static_cast<char*>(requests_[index(member)].out);
  for (int64_t i = 0; i < members_.size; ++i) {
    const int64_t peer = (member + i) % members_.size;
    add_copy(out + peer * bytes, requests_[index(peer)].in, bytes);
  }
}

template <class T>
void Transfer::sum(const Job& job) const {
  const Request& first = requests_[0];
  if (!scatters(first.kind)) {
    return sum_in_rank_order<T>(requests_, job.first, job.count,
                                [this](const T* tile, int64_t i, size_t bytes) {
                                  for (const Request& r : requests_)
                                    std::memcpy(static_cast<T*>(r.out) + i, tile, bytes);
                                });
  }
  const int64_t begin = job.first / first.size * first.size;  // of the member's share
  T* const out = static_cast<T*>(requests_[index(job.first / first.size)].out);
  sum_in_rank_order<T>(
      requests_, job.first, job.count,
      [=](const T* tile, int64_t i, size_t bytes) { std::memcpy(out + i - begin, tile, bytes); });
}

void Transfer::run(const Job& job) const {
  if (job.to != nullptr) {
    if (job.to != job.from) std::memcpy(job.to, job.from, index(job.count));
  } else if (element_bytes(requests_[0].kind) == sizeof(float)) {
    sum<float>(job);
  } else {
    sum<double>(job);
  }
}

bool Transfer::work(int64_t member) {
  bool finished_last = false;
  for (int64_t i = 0; i < members_.size; ++i) {
    Queue& queue = queues_[index((member + i) % members_.size)];
    for (;;) {
      const size_t job = queue.next.fetch_add(1, std::memory_order_relaxed);
      if (job >= queue.end) break;
      run(jobs_[job]);
      // Release: what this task wrote is visible to the thread that finishes the last task, and to
      // the threads that it wakes.
      finished_last |= unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1;
    }
  }
  return finished_last;
}

}  // namespace moe
