// Process groups by NCCL. All communicators are non-blocking: a call may return before it is done,
// so it is polled until its end or a deadline, and no call can hang when a member has died. Until a
// call is done, the communicator accepts no other call; therefore each call waits until its work is
// queued (but not until it has run).
#include <nccl.h>

#include <chrono>
#include <climits>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/cuda/collectives/process_groups.h"
#include "kernels/cuda/errors.h"

namespace moe::kernels::cuda {
namespace {

static_assert(sizeof(ncclUniqueId) == ProcessGroupTable::kIdBytes);

using Clock = std::chrono::steady_clock;
// Queueing takes tens of microseconds, joining takes seconds: poll eagerly first, then with pauses.
constexpr int kEagerPolls = 1000;
constexpr std::chrono::microseconds kPause{100};

struct Member {
  int rank = 0;
  double timeout_s = 0;
  ProcessGroupSettings settings;
  std::string trouble;  // the first error of a call on this member, or ""
  ncclComm_t comm = nullptr;
  // Children whose split failed or was not done by the deadline; they cannot be used. The library
  // may still write to them until this member is aborted.
  std::vector<std::unique_ptr<Member>> late;

  Clock::time_point deadline() const {
    return Clock::now() +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s));
  }
  std::string explain(ncclResult_t result) const {
    if (result == ncclInProgress)
      return "not done after " + std::to_string(timeout_s) + " s, the time limit of the call";
    return std::string(ncclGetErrorString(result)) + " (" + ncclGetLastError(comm) + ")";
  }
};

Member& member_of(ProcessGroup process_group) {
  return *static_cast<Member*>(process_group);
}

/// Waits for a call that returned `returned` and returns its result, or ncclInProgress at the
/// deadline. A new communicator may still be in progress when its call has returned success.
ncclResult_t settled(ncclComm_t comm, ncclResult_t returned, Clock::time_point deadline) {
  if (returned != ncclSuccess && returned != ncclInProgress) return returned;
  for (int polls = 0;; ++polls) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t error = ncclCommGetAsyncError(comm, &state);
    if (error != ncclSuccess) return error;
    if (state != ncclInProgress || Clock::now() >= deadline) return state;
    if (polls < kEagerPolls) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

/// Aborts the communicator. On return it is destroyed or is being destroyed by a thread of NCCL.
void end(std::unique_ptr<Member> member) {
  if (member->comm != nullptr) ncclCommAbort(member->comm);
  for (auto& child : member->late) end(std::move(child));
}

ncclConfig_t config_of(const ProcessGroupSettings& settings) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  // A channel is one block of NCCL's kernels, which NCCL calls a CTA.
  if (settings.channels > 0) config.minCTAs = config.maxCTAs = settings.channels;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  if (settings.channels_per_net_peer > 0) {
    config.nChannelsPerNetPeer = settings.channels_per_net_peer;
  }
#endif
  return config;
}

/// Returns "" if this NCCL supports the settings, otherwise the reason.
std::string missing(const ProcessGroupSettings& settings) {
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 28, 0)
  if (settings.channels_per_net_peer > 0)
    return "channels_per_net_peer needs NCCL 2.28 or later, but the CUDA plugin was built with an "
           "older one; leave it out";
#endif
  return settings.channels < 0 || settings.channels_per_net_peer < 0
             ? "channels = " + std::to_string(settings.channels) + " and channels_per_net_peer = " +
                   std::to_string(settings.channels_per_net_peer) + ", both must be at least 0"
             : "";
}

bool make_id(void* id) {
  ncclUniqueId unique;
  const ncclResult_t result = ncclGetUniqueId(&unique);
  if (result != ncclSuccess) {
    keep_error("cuda: making the id of a process group: " + Member{}.explain(result));
    return false;
  }
  std::memcpy(id, &unique, sizeof unique);
  return true;
}

ProcessGroup join(const void* id, int64_t rank, int64_t size, double timeout_s,
                  const ProcessGroupSettings& settings) {
  const std::string what =
      "cuda: join as rank " + std::to_string(rank) + " of " + std::to_string(size) + ": ";
  if (rank < 0 || rank >= size || size > INT_MAX) {
    keep_error(what + "the rank must be at least 0 and below the number of ranks");
    return nullptr;
  }
  if (const std::string why = missing(settings); !why.empty()) {
    keep_error(what + why);
    return nullptr;
  }
  auto member = std::make_unique<Member>();
  member->rank = static_cast<int>(rank);
  member->timeout_s = timeout_s;
  member->settings = settings;
  ncclUniqueId unique;
  std::memcpy(&unique, id, sizeof unique);
  ncclConfig_t config = config_of(settings);
  const Clock::time_point deadline = member->deadline();
  const ncclResult_t returned =
      ncclCommInitRankConfig(&member->comm, static_cast<int>(size), unique, member->rank, &config);
  const ncclResult_t result = settled(member->comm, returned, deadline);
  if (result == ncclSuccess) return member.release();
  keep_error(what + member->explain(result));
  end(std::move(member));
  return nullptr;
}

ProcessGroup split(ProcessGroup process_group, int64_t color, double timeout_s) {
  Member& parent = member_of(process_group);
  const std::string what = "cuda: split with color " + std::to_string(color) + ": ";
  if (color < 0 || color > INT_MAX || !parent.trouble.empty()) {
    keep_error(what + (parent.trouble.empty() ? "the color must be 0 to 2^31 - 1"
                                              : "an earlier call failed: " + parent.trouble));
    return nullptr;
  }
  auto child = std::make_unique<Member>();
  child->timeout_s = timeout_s;
  child->settings = parent.settings;  // the config of a child inherits nothing from its parent
  ncclConfig_t config = config_of(child->settings);
  const Clock::time_point deadline = child->deadline();
  const ncclResult_t returned =
      ncclCommSplit(parent.comm, static_cast<int>(color), parent.rank, &child->comm, &config);
  ncclResult_t result = settled(parent.comm, returned, deadline);
  if (result == ncclSuccess) result = settled(child->comm, ncclSuccess, deadline);
  if (result == ncclSuccess) result = ncclCommUserRank(child->comm, &child->rank);
  if (result == ncclSuccess) return child.release();
  parent.trouble = "split: " + child->explain(result);
  keep_error(what + parent.trouble);
  parent.late.push_back(std::move(child));
  return nullptr;
}

/// Calls NCCL to queue work on a stream, and waits until it is queued. Does nothing if an earlier
/// call of the process group failed (Member::trouble).
template <class Call>
void queue(ProcessGroup process_group, const char* what, Call call) {
  Member& member = member_of(process_group);
  if (!member.trouble.empty()) return;
  const Clock::time_point deadline = member.deadline();
  const ncclResult_t result = settled(member.comm, call(member.comm), deadline);
  if (result != ncclSuccess) member.trouble = std::string(what) + ": " + member.explain(result);
}

/// One NCCL group, so that no message waits for another. Both sides omit empty messages.
void exchange(ProcessGroup process_group, const Message* sends, int64_t num_sends,
              const Message* receives, int64_t num_receives, Stream stream) {
  const auto s = static_cast<cudaStream_t>(stream);
  queue(process_group, "exchange", [&](ncclComm_t comm) {
    ncclResult_t first = ncclGroupStart();
    if (first != ncclSuccess) return first;
    const auto note = [&](ncclResult_t result) {
      if (first == ncclSuccess || first == ncclInProgress) first = result;
    };
    for (const Message* m = sends; m != sends + num_sends; ++m)
      if (m->bytes > 0)
        note(ncclSend(m->data, static_cast<size_t>(m->bytes), ncclInt8, m->peer, comm, s));
    for (const Message* m = receives; m != receives + num_receives; ++m)
      if (m->bytes > 0)
        note(ncclRecv(m->data, static_cast<size_t>(m->bytes), ncclInt8, m->peer, comm, s));
    note(ncclGroupEnd());
    return first;
  });
}

void all_reduce(ProcessGroup process_group, const float* in, float* out, int64_t n, Stream stream) {
  if (n == 0) return;
  queue(process_group, "all_reduce", [&](ncclComm_t comm) {
    return ncclAllReduce(in, out, static_cast<size_t>(n), ncclFloat32, ncclSum, comm,
                         static_cast<cudaStream_t>(stream));
  });
}

const char* trouble(ProcessGroup process_group) {
  Member& member = member_of(process_group);
  if (member.trouble.empty()) {
    // With a deadline of now, settled() reads the state once and does not wait.
    const ncclResult_t result = settled(member.comm, ncclSuccess, Clock::now());
    if (result != ncclSuccess && result != ncclInProgress) member.trouble = member.explain(result);
  }
  return member.trouble.c_str();
}

void abort(ProcessGroup process_group) {
  end(std::unique_ptr<Member>(static_cast<Member*>(process_group)));
}

void destroy(ProcessGroup process_group) {
  std::unique_ptr<Member> member(static_cast<Member*>(process_group));
  const Clock::time_point deadline = member->deadline();
  if (member->trouble.empty() &&
      settled(member->comm, ncclCommFinalize(member->comm), deadline) == ncclSuccess) {
    ncclCommDestroy(member->comm);
    return;
  }
  end(std::move(member));
}

}  // namespace

const ProcessGroupTable* process_groups() {
  static constexpr ProcessGroupTable table = {.make_id = make_id,
                                              .join = join,
                                              .split = split,
                                              .exchange = exchange,
                                              .all_reduce = all_reduce,
                                              .trouble = trouble,
                                              .abort = abort,
                                              .destroy = destroy};
  return &table;
}

std::string nccl_version() {
  int version = 0;
  ncclGetVersion(&version);  // 22809 is 2.28.9
  return "NCCL " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
         "." + std::to_string(version % 100);
}

}  // namespace moe::kernels::cuda
