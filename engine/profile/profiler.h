// Times one op of a graph alone on this machine, on as many threads side by side as there are
// ranks, with inputs that look like training (routing maps filled, no zeros, no denormals).
#pragma once

#include <vector>

#include "engine/base/units.h"
#include "engine/comm/communicator.h"
#include "engine/graph/graph.h"
#include "engine/graph/op_def.h"
#include "engine/model/model.h"
#include "engine/routing/gate.h"

namespace moe {

struct ProfileOptions {
  int64_t ranks_beside = 1;  // threads that run the same op at the same time
  double min_time_s = 0.02;  // measure at least this long
  int64_t min_samples = 7;
  WorkContext work = {};  // how many slots hold a token
  bool checked = true;    // RunOptions::check_finite of the runs that are predicted
};

/// Samples in ns, each one call in the cache state of a training step, f32, with the executor's
/// look for numbers that are not finite after it where options.checked; at least min_samples. A
/// gate that is not built in is timed as top_k. For a collective: the in-process time without a
/// link and without waiting for the others, among ranks_beside ranks; 0 for experts that travel, of
/// which a link alone knows. Throws UserError for an op without a CPU kernel. Holds a few times 160
/// MiB per thread meanwhile.
std::vector<Nanoseconds> profile_op(const Graph& graph, OpId op, const ProfileOptions& options);

/// What an all-to-all or a gathering of loads moves in a step of balanced routing, in pieces of one
/// size for each of `size` members; and what it clears behind that.
struct EvenExchange {
  Pieces pieces;
  Bytes used = 0, unused = 0;  // of the output
};
EvenExchange even_exchange(const Graph& graph, OpId op, const WorkContext& work, int64_t size,
                           Bytes element_bytes = sizeof(float));

/// Samples in ns of how long a lane that waits for another lane of its rank takes to wake, while
/// ranks_beside ranks compute: half of them a comm lane woken beside compute, half a compute lane
/// woken by its comm lane.
std::vector<Nanoseconds> profile_handoff(int64_t ranks_beside);

/// The gate that a gate op is timed with: the built-in one that it names, top_k for any other.
Gate timed_gate(const Op& op);

/// "<processor>; openblas 0.3.21 SkylakeX, cpu-v4, build 1f2e3d4c; threads=1 beside=2 checked":
/// what a profile's key begins with;
/// the slot occupancy is not part of it.
std::string profile_key(const ProfileOptions& options);

}  // namespace moe
