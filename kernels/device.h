// What an executor needs of a GPU apart from compute kernels: memory, streams, events, recordings
// (CUDA graphs) and collectives between processes, as one table of plain functions over opaque
// handles. The CUDA plugin provides one such table. A test provides another that runs on the CPU,
// so that code that uses the table can be tested without a GPU. A function that fails returns null,
// 0 or false, and keeps the first error message of its thread for take_error(); it never throws.
// The compute kernels are in kernels.h.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace moe::kernels {

using Event = void*;         // a point in a stream
using Recording = void*;     // work of several streams, to be replayed later
using ProcessGroup = void*;  // ranks in several processes that take part in the same collectives

struct DeviceInfo {
  char name[128];
  /// For instance
  /// "driver 13.0, runtime 13.0, cuBLAS 13.1.0, NCCL 2.28.9, cuDNN 9.19.0, build 1f2e3d4c".
  char versions[128];
  int64_t memory_bytes, free_bytes;
  /// Number of multiprocessors; major and minor version of the compute capability.
  int32_t multiprocessors, major, minor;
};

/// `bytes` bytes to copy from one place to another.
struct Copy {
  void* to;
  const void* from;
  int64_t bytes;
};

/// Flags for transfers of an emulated link whose end a CPU thread decides. They are in memory of
/// allocate_host() and begin at 0; transfers are numbered from 1.
struct LinkFlags {
  int64_t began_ns;  // written by the device: its clock in ns when it wrote `begun`
  int64_t begun;     // written by the device: number of the last transfer that has begun
  int64_t over;      // written by the CPU thread: number of the last transfer that may end
};
/// What a transfer writes to LinkFlags and waits for; by default neither.
struct LinkSignal {
  LinkFlags* flags = nullptr;
  /// If above 0, and `begun` is still lower than this number, the transfer writes began_ns and then
  /// sets `begun` to this number.
  int64_t begins = 0;
  int64_t ends = 0;  // the transfer ends only when LinkFlags::over is at least this
};

/// The part of a collective that is sent to, or received from, one other process.
struct Message {
  int32_t peer;  // rank of that process in the process group
  void* data;
  int64_t bytes;
};

/// Written to TopKRouting::expert for all choices of a token whose scores contain a NaN; the token
/// gets no slot. The caller must then end the run with an error, as on the CPU.
constexpr int32_t kNanScores = -2;

/// How a process group uses the device; 0 means that the library (NCCL) decides.
struct ProcessGroupSettings {
  /// Channels of a collective, exactly this many; each takes one thread block on the device.
  int32_t channels = 0;
  int32_t channels_per_net_peer = 0;  // channels of messages to one rank on another machine
};

/// Arguments of a gate that chooses the k best scores per token, for `tokens` tokens. The results
/// are those of RoutingMaps in engine/routing/gate.h. All pointers are to device memory.
struct TopKRouting {
  int64_t tokens, experts, k, capacity;
  const float* logits;         // [tokens, experts], from which scores are computed; may be null
  float* scores;               // [tokens, experts], an input if there are no logits
  const int32_t* used_before;  // [experts], slots that earlier parts used; null means none
  int32_t* expert;             // [tokens, k], kNanScores where the token has a NaN score
  int32_t* choice_slot;        // [tokens, k], -1 for a choice without a slot
  int32_t* slot_choice;        // [experts, capacity], -1 for a free slot
  int32_t* counts;             // [experts], used slots, including used_before
  float* weight;               // [tokens, k]
  WeightRule rule;
  ScoreRule score;      // unused without logits
  int64_t first_token;  // index in the batch of the first token, for slot_choice
  bool part;   // true for a part of a batch: slots that this part does not use are left unchanged
  void* work;  // scratch of top_k_work_bytes() bytes
};

/// Collectives between processes with one rank each. All members must make the same calls in the
/// same order. exchange() and all_reduce() queue work on the stream; their errors are reported by
/// trouble(), not by the call.
struct ProcessGroupTable {
  static constexpr int64_t kIdBytes = 128;
  /// Writes a new id of kIdBytes bytes; one rank makes it and sends it to all others.
  bool (*make_id)(void* id);
  /// Joins the process group `id`. Returns when all `size` ranks have joined, or null after
  /// `timeout_s` seconds. A later call that takes longer to queue its work is an error.
  ProcessGroup (*join)(const void* id, int64_t rank, int64_t size, double timeout_s,
                       const ProcessGroupSettings& settings);
  /// Returns a process group of the members that gave the same `color`, in the order of their
  /// ranks, with the same settings. All members of the given process group must call it.
  ProcessGroup (*split)(ProcessGroup, int64_t color, double timeout_s);
  /// Sends and receives messages. The i-th message to a peer is received by that peer's i-th
  /// message from this rank, which must have the same size.
  void (*exchange)(ProcessGroup, const Message* sends, int64_t num_sends, const Message* receives,
                   int64_t num_receives, Stream);
  /// out = sum of `in` over all ranks; the library decides the order of the sum.
  void (*all_reduce)(ProcessGroup, const float* in, float* out, int64_t n, Stream);
  /// Returns "" or the process group's first error, valid until the next call.
  const char* (*trouble)(ProcessGroup);
  /// Aborts the collectives in progress on this rank and destroys the process group.
  void (*abort)(ProcessGroup);
  void (*destroy)(ProcessGroup);
};

struct DeviceTable {
  const KernelTable<float>* kernels;
  /// Kernels with activations in bfloat16; null means none. For each stream, their matrix products
  /// keep memory for operands that they round, until the stream is destroyed.
  const KernelTable<Bf16>* mixed;
  /// Returns whether a library (cuDNN) and not this project's kernels runs bfloat16 attention of
  /// this shape on the calling thread's device, unless shape.own is set; null means never.
  bool (*library_has_attention)(AttentionShape shape);
  const ProcessGroupTable* process_groups;  // null without a library for collectives

  /// Returns the number of devices; 0 without a driver.
  int32_t (*num_devices)();
  /// Makes `device` the calling thread's device.
  void (*use_device)(int32_t device);
  DeviceInfo (*info)();

  /// Rounds up to whole vectors of 16 bytes: kernels may read a matrix to the end of its last one.
  void* (*allocate)(int64_t bytes);
  void (*release)(void*);
  /// Allocates pinned host memory, so that copies between it and the device are asynchronous.
  void* (*allocate_host)(int64_t bytes);
  void (*release_host)(void*);

  /// urgent: its work runs before that of other streams when both wait for the device.
  Stream (*make_stream)(bool urgent);
  void (*end_stream)(Stream);
  /// timed: the event is for elapsed_ns(); other events only order streams.
  Event (*make_event)(bool timed);
  void (*end_event)(Event);
  /// Sets the event to the end of the stream's queued work. Timed events work in replays too.
  void (*record)(Event, Stream);
  /// Makes work that is queued on the stream from now on wait for the event's last record().
  void (*wait)(Stream, Event);
  /// Returns whether all work before the event's last record() is over. Never blocks.
  bool (*over)(Event);
  /// Nanoseconds between two timed events. Requires: both are over.
  double (*elapsed_ns)(Event from, Event to);

  /// Copies between any two of host and device memory.
  void (*copy)(void* to, const void* from, int64_t bytes, Stream);
  void (*fill)(void* to, int32_t byte, int64_t bytes, Stream);
  /// Sets *first to the smaller, as unsigned numbers, of *first and the index of the first NaN or
  /// infinity in x. So an initial *first of -1 (all bytes 0xff) means that none was found yet.
  void (*note_nonfinite)(int64_t* first, EitherIn x, int64_t n, Stream);
  /// column[r] = column of the largest number in row r of x [rows, cols], which has `pitch` numbers
  /// from row to row; the first if several are equal. NaNs are ignored, except that the result is 0
  /// if column 0 is a NaN (std::max_element).
  void (*largest_columns)(int32_t* column, EitherIn x, int64_t rows, int64_t cols, int64_t pitch,
                          Stream);
  /// Computes the choices, slots and weights of a gate; see TopKRouting.
  void (*route_top_k)(const TopKRouting&, Stream);
  int64_t (*top_k_work_bytes)(int64_t tokens, int64_t experts, int64_t k);
  /// Occupies the stream with one thread for at least `ns` ns, and as long as LinkSignal requires.
  void (*sleep)(int64_t ns, const LinkSignal&, Stream);
  /// Makes the copies with `blocks` thread blocks, each of which has a multiprocessor to itself.
  /// The copies are spread evenly over duration_ns and end no earlier than that, nor before
  /// LinkSignal permits: a kernel that emulates the transfer of a network.
  void (*paced_copies)(const Copy* copies, int64_t count, int64_t duration_ns, int32_t blocks,
                       const LinkSignal&, Stream);

  /// From now on, work on the stream, and on streams that wait for it, is recorded and not run.
  void (*begin_recording)(Stream);
  /// Ends the recording and returns it. Requires: the stream has waited for all other streams that
  /// are part of the recording. Those streams must not be destroyed before the recording, because
  /// it uses memory that kernels keep for them.
  Recording (*end_recording)(Stream);
  /// Returns the number of kernels that a replay launches, those of libraries included.
  int64_t (*launches)(Recording);
  void (*replay)(Recording, Stream);
  void (*release_recording)(Recording);

  /// Returns this thread's first error since the last call, or "". Valid until the next call.
  const char* (*take_error)();
};

}  // namespace moe::kernels
