// Reads the output of NVIDIA's nccl-tests (all_reduce_perf, alltoall_perf) as a table of payload
// and time, from which an InterpolatedTable (cost_model.h) can be made. Logs of NCCL itself are not
// read.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/graph/op_def.h"

namespace moe {

struct NcclLog {
  Collective collective = Collective::kNone;
  int64_t num_ranks = 0;
  std::vector<std::pair<double, double>> rows;  // (payload bytes per rank, ns), bytes ascending
};

/// Parses the text of a log; `name`, its file, begins every error message. A row is
///   size count type [redop] [root]  time algbw busbw #wrong  time algbw busbw #wrong
/// of which the first time (out of place, in microseconds) is used. Headers of versions without
/// `root`, with `error` instead of `#wrong`, and of runs with -c 0 (N/A) are accepted. Lines of
/// other origin (NCCL_DEBUG, MPI) are skipped.
///
/// Payload: `size` is the bytes of a rank's whole send buffer. For all_reduce that is the tensor.
/// For alltoall, where the count per peer is size / ranks / bytes of the type, it includes the
/// rank's part for itself (algbw = size / time; busbw = algbw (n-1)/n excludes that part). Both
/// agree with payload_bytes() of an op, so sizes are used unchanged. Rows of size 0 (an all-to-all
/// of less than one element per peer) are skipped.
///
/// The number of ranks is the number of "Rank" lines of rank 0's group, else nThread * nGpus.
/// Throws UserError naming the file and, for a fault in a line, the line: fewer than two rows, no
/// number of ranks, a row that is cut off or has no number, sizes that do not ascend (several types
/// or operations in one log), results that nccl-tests reports as wrong, an operation that is
/// neither an all-reduce nor an all-to-all, no closing "Avg bus bandwidth" line (the run was cut
/// off).
NcclLog parse_nccl_log(const std::string& text, const std::string& name);

}  // namespace moe
