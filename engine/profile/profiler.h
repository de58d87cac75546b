// Times one op of a graph alone on this machine's CPU, on one thread per rank at the same time,
// with inputs as in training (filled routing maps, no zeros, no denormals; see operands.h). Devices
// are in device_profiler.h.
#pragma once

#include <vector>

#include "engine/base/units.h"
#include "engine/comm/communicator.h"
#include "engine/cost/samples.h"
#include "engine/graph/graph.h"
#include "engine/graph/op_def.h"
#include "engine/model/model.h"
#include "engine/routing/gate.h"

namespace moe {

struct ProfileOptions {
  int64_t ranks_beside = 1;  // threads that run the same op at the same time
  double min_time_s = 0.02;  // least time of a measurement
  int64_t min_samples = 7;
  WorkContext work = {};  // how many slots hold a token
  bool checked = true;    // RunOptions::check_finite of the run that is predicted
  /// For a run with a pace: a sample of a compute op is the CPU time of the call's thread, and of a
  /// collective 0, since its time is that of the link alone.
  bool paced = false;
  /// Whether times of compute ops are those at reference speed (at_reference_speed()).
  bool at_reference = false;
};

/// The samples that one of several ranks took of an op at the same time, and the time of a call of
/// the reference kernel (exec/results/machine_state.h) around them on the same core.
struct RankSamples {
  Samples samples;
  Nanoseconds reference_ns;
};
/// Returns the samples of the first rank, scaled so that their median is the mean of all ranks'
/// medians, each at the speed at which the reference kernel takes kReferenceNs: on a shared host
/// cores differ in speed by a third, and from second to second.
Samples at_reference_speed(std::vector<RankSamples> all);

/// Returns at least options.min_samples samples in ns, in f32. A sample is one call with the caches
/// in the state of a training step, on the mean of ranks_beside ranks; calls of which the thread
/// lost time to other threads are made again, within a budget of time, and kept as disturbed after
/// it (call_sampler.h); if options.checked, a sample includes the executor's check of the results
/// for non-finite numbers. A gate that is not built in is timed as top_k. A collective is timed
/// between ranks_beside threads, without a link and without the wait for other ranks, and is never
/// disturbed. An op that moves experts gets 0, since its time depends on the link only. Throws
/// UserError for an op without a CPU kernel. Uses a few times 160 MiB of memory per thread.
Samples profile_op(const Graph& graph, OpId op, const ProfileOptions& options);

/// What an all-to-all, or an op that gathers loads, moves in a step with balanced routing: a piece
/// of the same size for each member. The op sets the rest of its output to 0, except if it is one
/// part of a cut (attr share) or loose.
struct EvenExchange {
  Pieces pieces;
  Bytes used = 0, unused = 0;  // bytes of the output that are received, and that are set to 0
};
/// `size`: number of members.
EvenExchange even_exchange(const Graph& graph, OpId op, const WorkContext& work, int64_t size,
                           Bytes element_bytes = sizeof(float));

/// Returns samples in ns of the time that a lane waiting for another lane of its rank needs to wake
/// up, while ranks_beside ranks compute. Half of the samples are of a comm lane that its compute
/// lane wakes, half of a compute lane that its comm lane wakes.
Samples profile_handoff(int64_t ranks_beside);

/// Returns the gate with which a gate op is timed: the built-in gate that it names; top_k for a
/// gate that is not built in.
Gate timed_gate(const Op& op);

/// Returns the text with which the keys of profiles in the cache begin: "<processor>; openblas
/// 0.3.21 SkylakeX, cpu-v4, build 1f2e3d4c; threads=1 beside=2 checked". The slot occupancy is not
/// part of it.
std::string profile_key(const ProfileOptions& options);

}  // namespace moe
