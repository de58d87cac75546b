// The copying and summing of one in-process collective, cut into tasks (Job) that any member's
// thread may run. Every thread that is awake works, on its own member's tasks first, so that a
// thread that wakes late delays no other. Each task writes memory that no other task touches; the
// resulting bits do not depend on which thread runs which task. How members wait is in
// in_process.cpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"

namespace moe {

/// Returns whether each member gets only its share of the sums.
inline bool scatters(CallKind kind) {
  return kind == CallKind::kReduceScatterF32 || kind == CallKind::kReduceScatterF64;
}

/// Returns why the calls of two ranks do not match in kind, name, size, root or groups; "" when
/// they match. The sizes of an all-to-all's pieces are compared in Transfer::prepare.
std::string mismatch(int64_t rank, const Request& mine, int64_t other_rank, const Request& other);

class Transfer {
 public:
  explicit Transfer(const Members& members)
      : members_(members), queues_(static_cast<size_t>(members.size)) {}

  /// Cuts the members' requests into tasks. Keeps a reference to the requests until the next
  /// prepare(). Throws RunError, which names both ranks and both sizes, when a member of an
  /// all-to-all sends another size than its peer expects. Requires: the requests match, and no
  /// thread is in work().
  void prepare(std::span<const Request> requests);
  /// Runs tasks until none is left to take. Returns whether this call finished the last task of the
  /// transfer; for a transfer without tasks it always returns false.
  bool work(int64_t member);
  bool empty() const { return jobs_.empty(); }
  /// Bytes that all tasks together write.
  Bytes bytes() const { return bytes_; }

 private:
  struct Job {         // a memcpy, or a sum over members
    char* to;          // of a memcpy; null for a sum
    const char* from;  // of a memcpy
    int64_t first;     // of a sum: the first element, counted in the inputs
    int64_t count;     // of a memcpy: bytes; of a sum: elements
  };
  struct alignas(64) Queue {  // tasks of one member, on a cache line of its own
    std::atomic<size_t> next{0};
    size_t end = 0;
  };

  void add_copy(void* to, const void* from, Bytes bytes);
  void add_all_to_all(int64_t member);
  void add_sums(int64_t member);
  void add_gather(int64_t member);
  void cut_sum(int64_t first, int64_t last, int64_t stores);
  template <class T>
  void sum(const Job& job) const;
  void run(const Job& job) const;

  const Members members_;
  std::span<const Request> requests_;
  std::vector<Job> jobs_;
  std::vector<Queue> queues_;
  std::atomic<size_t> unfinished_{0};
  Bytes bytes_ = 0;
};

}  // namespace moe
