// The micro-batches of a step (Op::micro): how many a graph has, and how the names of their ops and
// tensors differ. unroll() makes them.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "engine/graph/graph.h"

namespace moe {

/// Returns the number of micro-batches of the graph's step, at least 1. Looks at all ops.
inline int32_t num_micro_batches(const Graph& graph) {
  int32_t last = 0;
  for (const Op& op : graph.ops()) last = std::max(last, op.micro);
  return last + 1;
}

/// Returns the number of pipeline ranks that run the graph, at least 1. Looks at all ops.
inline int32_t num_pipeline_ranks(const Graph& graph) {
  int32_t last = 0;
  for (const Op& op : graph.ops()) last = std::max(last, op.pipeline_rank);
  return last + 1;
}

/// Returns the name in micro-batch `micro`, from 0, of what has this name in the first.
inline std::string name_in(const std::string& name, int64_t micro) {
  return micro == 0 ? name : fmt::format("{}@{}", name, micro);
}

/// Returns what stands before and after the micro-batch in the name of an op or a tensor of a
/// micro-batch behind the first; together they are alike in all of these.
inline std::pair<std::string_view, std::string_view> name_around(std::string_view name) {
  const size_t at = name.rfind('@'), end = std::min(name.find(':', at), name.size());
  return {name.substr(0, at), name.substr(end)};
}

}  // namespace moe
