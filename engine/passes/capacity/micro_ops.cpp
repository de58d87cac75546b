#include <algorithm>
#include <cmath>

#include "engine/base/errors.h"
#include "engine/passes/capacity/capacity_cut.h"
#include "engine/passes/pass.h"

namespace moe {

/// Like capacity_pipeline, but cuts each MoE layer into the smallest number of parts for which the
/// rows that a rank exchanges in one part have at most `bytes` bytes, or which leaves one slot per
/// expert (Lina, ATC 2023, section 4.3: an expert computes the tokens of a micro-op as soon as the
/// first all-to-all of that micro-op has ended).
Graph micro_ops(Graph graph, const PassContext& context) {
  const double bytes = std::get<double>(context.options.at("bytes"));
  double longest = 0;
  for (const CapacityChain& chain : capacity_chains(graph, context.stage)) {
    const std::string name = graph.op(chain.ops[0]).name;
    const double message = bytes_sent(graph, chain);
    longest = std::max(longest, message);
    const double slot = message / static_cast<double>(chain.capacity);
    const auto slots = static_cast<int64_t>(std::max(1.0, std::floor(bytes / slot)));
    const int64_t degree = (chain.capacity + slots - 1) / slots;
    if (degree == 1) continue;
    const std::vector<int64_t> sizes = cut_capacity(graph, chain, degree);
    context.log->push_back(
        {name, context.stage,
         fmt::format("{:.1f} MB of {}", message / 1e6, cut_text(chain, sizes, "in"))});
  }
  if (longest > 0 && longest <= bytes) {
    context.skip(fmt::format(
        "no all-to-all is longer than bytes = {:g}; the longest has {:g} bytes", bytes, longest));
  }
  return graph;
}

}  // namespace moe
