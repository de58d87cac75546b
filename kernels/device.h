// What an executor needs of a GPU beside its kernels: memory, streams, events, recordings, and
// collectives between processes, as one table of plain functions over opaque handles. The CUDA
// plugin gives one; a test gives one that runs on the host, so that nothing that uses it needs a
// GPU to be tested. A function that fails keeps the first message of its thread for take_error()
// and returns null, 0 or false; it never throws.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace moe::kernels {

using Event = void*;         // a point in a stream
using Recording = void*;     // work of several streams, to be replayed
using ProcessGroup = void*;  // ranks in several processes that meet in collectives

struct DeviceInfo {
  char name[128];
  /// "driver 13.0, runtime 13.0, cuBLAS 13.1.0, NCCL 2.28.9, cuDNN 9.19.0, build 1f2e3d4c"
  char versions[128];
  int64_t memory_bytes, free_bytes;
  int32_t multiprocessors, major, minor;
};

/// Bytes that go from one place to another.
struct Copy {
  void* to;
  const void* from;
  int64_t bytes;
};

/// Flags of transfers that last as long as the host says, numbered from 1, in memory of
/// allocate_host; zeros at first. Device and host each write their own and read the other's.
struct LinkFlags {
  int64_t began_ns;  // the device's clock when `begun` was written
  int64_t begun;     // by the device: the last transfer that has begun
  int64_t over;      // by the host: the last transfer that may end
};
/// Which flags a transfer writes and awaits; by default none.
struct LinkSignal {
  LinkFlags* flags = nullptr;
  int64_t begins = 0;  // above 0: what it writes to `begun`, after the time, where that is less
  int64_t ends = 0;    // it ends no sooner than `over` is as much
};

/// A copy of a collective that has an end in another process.
struct Message {
  int32_t peer;  // its rank in the process group
  void* data;
  int64_t bytes;
};

/// In `expert` for all choices of a token whose scores hold a NaN; it gets no place. A run on the
/// CPU ends there ("gate: scores of token N hold a NaN"), so must one on the device.
constexpr int32_t kNanScores = -2;

/// How a process group uses the device; 0: as the library chooses.
struct ProcessGroupSettings {
  int32_t channels = 0;               // of a collective, at least and at most: blocks on the device
  int32_t channels_per_net_peer = 0;  // of messages to one rank of another machine
};

/// What a gate of the k best scores makes of `tokens` tokens, as RoutingMaps of engine/routing/
/// gate.h has it; all pointers are on the device.
struct TopKRouting {
  int64_t tokens, experts, k, capacity;
  const float* scores;         // [tokens, experts], what is chosen by
  const float* probabilities;  // [tokens, experts], what weights are taken from
  const int32_t* used_before;  // [experts], null: nothing
  int32_t* expert;             // [tokens, k], kNanScores where a score is a NaN
  int32_t* choice_slot;        // [tokens, k]
  int32_t* slot_choice;        // [experts, capacity]
  int32_t* counts;             // [experts]
  float* weight;               // [tokens, k]
  WeightRule rule;
  int64_t first_token;  // of this part of a batch, in slot_choice
  bool part;            // places that this part does not take are left as they are
  void* work;           // top_k_work_bytes
};

/// Collectives of one rank per process. Calls of all members come in the same order; they are
/// queued on the stream. A process group that is in trouble says so in trouble(), not by an error
/// of the call.
struct ProcessGroupTable {
  static constexpr int64_t kIdBytes = 128;
  bool (*make_id)(void* id);
  /// Returns when all `size` ranks have joined, or null after timeout_s, which is also how long a
  /// later call may take until its work is queued before the process group is in trouble.
  ProcessGroup (*join)(const void* id, int64_t rank, int64_t size, double timeout_s,
                       const ProcessGroupSettings& settings);
  /// Members of one color, numbered by their ranks, with the process group's settings. Collective
  /// over it.
  ProcessGroup (*split)(ProcessGroup, int64_t color, double timeout_s);
  /// Every message to a peer meets the message of the same size from this rank there, in order.
  void (*exchange)(ProcessGroup, const Message* sends, int64_t num_sends, const Message* receives,
                   int64_t num_receives, Stream);
  /// The order of the sum is the library's.
  void (*all_reduce)(ProcessGroup, const float* in, float* out, int64_t n, Stream);
  /// "" while all is well; otherwise what the library says. Valid until the next call.
  const char* (*trouble)(ProcessGroup);
  /// Ends what is under way on this rank, and the process group.
  void (*abort)(ProcessGroup);
  void (*destroy)(ProcessGroup);
};

struct DeviceTable {
  const KernelTable<float>* kernels;
  /// With activations in bfloat16; null: none. Its products keep room for operands that they round
  /// by stream, until the stream ends.
  const KernelTable<Bf16>* mixed;
  /// Whether a library, not this project's kernels, runs attention in bfloat16 of this shape on the
  /// calling thread's device, unless shape.own; null: never.
  bool (*library_has_attention)(AttentionShape shape);
  const ProcessGroupTable* process_groups;  // null: no library for it

  /// 0 where there is no driver.
  int32_t (*num_devices)();
  /// The calling thread's device from now on.
  void (*use_device)(int32_t device);
  DeviceInfo (*info)();

  void* (*allocate)(int64_t bytes);
  void (*release)(void*);
  /// Host memory that copies to and from the device without a stop.
  void* (*allocate_host)(int64_t bytes);
  void (*release_host)(void*);

  /// urgent: its work goes before that of other streams where both wait for the device.
  Stream (*make_stream)(bool urgent);
  void (*end_stream)(Stream);
  /// timed: for elapsed_ns only; others order streams.
  Event (*make_event)(bool timed);
  void (*end_event)(Event);
  /// The event is what the stream has been given so far; a timed one also in a replay.
  void (*record)(Event, Stream);
  /// Work that the stream is given from now on begins after the event as it was last recorded.
  void (*wait)(Stream, Event);
  /// Everything before the event's last record is over. Never waits.
  bool (*over)(Event);
  /// Requires: both are over.
  double (*elapsed_ns)(Event from, Event to);

  /// Between any two of host and device memory.
  void (*copy)(void* to, const void* from, int64_t bytes, Stream);
  void (*fill)(void* to, int32_t byte, int64_t bytes, Stream);
  /// *first = the lesser, as unsigned numbers, of *first and the index of the first NaN or infinity
  /// in x. So -1, bytes of 0xff, is 'none yet'.
  void (*note_nonfinite)(int64_t* first, EitherIn x, int64_t n, Stream);
  /// column[r] is that of the largest number of row r of x [rows, cols], of equal ones the first. A
  /// NaN is passed over, but where it stands first it is taken: as by std::max_element.
  void (*largest_columns)(int32_t* column, EitherIn x, int64_t rows, int64_t cols, Stream);
  void (*route_top_k)(const TopKRouting&, Stream);
  int64_t (*top_k_work_bytes)(int64_t tokens, int64_t experts, int64_t k);
  /// Keeps the stream busy, one thread of the device, for as long, and as the signal says.
  void (*sleep)(int64_t ns, const LinkSignal&, Stream);
  /// The copies by `blocks` blocks that share a multiprocessor with nobody, paced evenly, over no
  /// earlier than duration_ns after they begin, and as the signal says: a network's transfer as a
  /// kernel of the device.
  void (*paced_copies)(const Copy* copies, int64_t count, int64_t duration_ns, int32_t blocks,
                       const LinkSignal&, Stream);

  /// From now on what is given to the stream, and to others that wait for it, is not run but kept.
  void (*begin_recording)(Stream);
  /// Requires: the stream has waited for all others that joined. The streams are to outlive the
  /// recording, which uses what kernels keep for them.
  Recording (*end_recording)(Stream);
  void (*replay)(Recording, Stream);
  void (*release_recording)(Recording);

  /// The first failure of this thread since the last call, or "". Valid until the next call.
  const char* (*take_error)();
};

}  // namespace moe::kernels
