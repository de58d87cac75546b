// What NVIDIA's nccl-tests print (all_reduce_perf, alltoall_perf) as a table of payload and time.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/graph/op_def.h"

namespace moe {

struct NcclLog {
  Collective collective = Collective::kNone;
  int64_t num_ranks = 0;
  std::vector<std::pair<double, double>> rows;  // (bytes of payload a rank, ns), bytes ascending
};

/// Reads a log's text; `name` (its file) begins every message. Of each row
///   size count type [redop] [root]  time algbw busbw #wrong  time algbw busbw #wrong
/// the first time is taken: out of place, microseconds. Headers of versions without `root`, with
/// `error` for `#wrong`, and of -c 0 (N/A) are known; lines of others in between (NCCL_DEBUG, MPI)
/// are passed over.
///
/// Payload: `size` is the bytes of a rank's whole send buffer. For all_reduce that is the tensor.
/// For alltoall, whose count a peer is size / ranks / bytes of the type, it holds the rank's part
/// for itself too (algbw = size / time; busbw = algbw (n-1)/n takes that part off). Both are what
/// payload_bytes() says of an op, so sizes are taken as they are. Rows of size 0 (an all-to-all of
/// less than one element per peer) are left out.
///
/// Ranks: the "Rank" lines of rank 0's group, else nThread * nGpus. Throws UserError naming the
/// file and the line: no rows, no number of ranks, a row that is cut off or holds no number, sizes
/// that do not ascend (several types or operations in one log), wrong values, an operation that is
/// neither an all-reduce nor an all-to-all, no closing "Avg bus bandwidth" line (a run cut off).
NcclLog parse_nccl_log(const std::string& text, const std::string& name);

}  // namespace moe
