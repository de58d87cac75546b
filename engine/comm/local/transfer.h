// The work of one in-process collective, cut into jobs that any member's thread may run: whoever is
// awake works, own jobs first, so that a thread which the system wakes late delays nobody. Each job
// writes memory that no other job touches; the bits do not depend on who runs which.
// Not here: who waits for whom (meeting.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"

namespace moe {

enum class CallKind : uint8_t { kAllToAll, kAllReduceF32, kAllReduceF64, kBroadcast, kBarrier };

/// Who takes part, by number 0 to size - 1, and which ranks they are.
struct Members {
  int64_t size = 0;
  int64_t first = 0;
  int64_t stride = 1;
  int64_t rank(int64_t number) const { return first + number * stride; }
  bool operator==(const Members&) const = default;
};

/// What one member asks for.
struct Request {
  CallKind kind = CallKind::kBarrier;
  std::string what;
  const void* in = nullptr;  // broadcast: the root's data
  void* out = nullptr;
  int64_t size = 0;  // all_reduce: elements; broadcast: bytes
  int64_t root = 0;  // broadcast
  const Pieces* pieces = nullptr;
  Nanoseconds post = 0;
};

/// "all_reduce b0.grads"
std::string describe(const Request& request);

/// Why the calls of two ranks do not belong together ("" when they do): kind, name, size, root,
/// groups. The sizes of an all-to-all's pieces are a matter for Transfer::prepare.
std::string mismatch(int64_t rank, const Request& mine, int64_t other_rank, const Request& other);

class Transfer {
 public:
  explicit Transfer(const Members& members)
      : members_(members), queues_(static_cast<size_t>(members.size)) {}

  /// Cuts the members' requests into jobs. They stay referenced until the next prepare. Throws
  /// RunError naming both ranks and both sizes where the pieces of an all-to-all differ. Requires:
  /// no mismatch between the requests, and no thread in work().
  void prepare(std::span<const Request> requests);
  /// Runs jobs until none is left to take. Returns whether this call finished the last one; a
  /// transfer without jobs has nobody who does.
  bool work(int64_t member);
  bool empty() const { return jobs_.empty(); }
  /// Bytes to be written.
  Bytes bytes() const { return bytes_; }

 private:
  struct Job {
    char* to;          // copies
    const char* from;  // copies
    int64_t first;     // sums: the first element
    int64_t count;     // copies: bytes; sums: elements
  };
  struct alignas(64) Queue {  // jobs of one member; a cache line each
    std::atomic<size_t> next{0};
    size_t end = 0;
  };

  void add_copy(void* to, const void* from, Bytes bytes);
  void add_all_to_all(int64_t member);
  void add_sums(int64_t member);
  void run(const Job& job) const;

  const Members members_;
  std::span<const Request> requests_;
  std::vector<Job> jobs_;
  std::vector<Queue> queues_;
  std::atomic<size_t> unfinished_{0};
  Bytes bytes_ = 0;
};

}  // namespace moe
