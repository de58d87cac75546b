#include <algorithm>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/passes/pass.h"

namespace moe {

/// Cuts transfers whose message is longer than `bytes` into the smallest number of equal chunks of
/// at most `bytes` (Lina, section 4.1: micro-ops of 30 MB). The option `which` selects the
/// transfers: "all_reduce", "all_to_all" or "both". A chunk never contains bytes of two ops; the
/// size of one all-reduce is set by the system's bucket_bytes. Throws UserError when an op is cut
/// already.
Schedule chunked(const Graph& graph, Schedule schedule, const PassContext& context) {
  const auto bytes = static_cast<Bytes>(std::get<double>(context.options.at("bytes")));
  const std::string& which = std::get<std::string>(context.options.at("which"));
  Bytes longest = 0;
  bool cut = false;
  for (const OpId op : graph.op_ids()) {
    const bool sums = is_sync(graph.def(op).payload);
    const bool exchanges = graph.def(op).collective == Collective::kAllToAll;
    const bool wanted = which == "both"         ? sums || exchanges
                        : which == "all_reduce" ? sums
                                                : exchanges;
    if (wanted) longest = std::max(longest, message_bytes(graph, op));
    if (!wanted || message_bytes(graph, op) <= bytes) continue;
    cut = true;
    schedule.set_chunk(graph, op, bytes, context.stage);
    context.log->push_back({graph.op(op).name, context.stage,
                            fmt::format("{} chunks", num_chunks(graph, schedule, op))});
  }
  if (!cut) {
    const std::string what = which == "both" ? "transfer" : which;
    context.skip(longest == 0
                     ? fmt::format("there is no {}", what)
                     : fmt::format("no {} is longer than bytes = {}; the longest has {} bytes",
                                   what, bytes, longest));
  }
  return schedule;
}

}  // namespace moe
