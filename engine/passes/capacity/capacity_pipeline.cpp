#include <cmath>

#include "engine/base/errors.h"
#include "engine/passes/capacity/capacity_cut.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

int64_t degree_of(const PassContext& context) {
  const double degree = std::get<double>(context.options.at("degree"));
  if (degree != std::floor(degree)) {
    throw user_error("{}.degree = {}: a whole number is allowed", context.stage, degree);
  }
  return static_cast<int64_t>(degree);
}

}  // namespace

/// Cuts "all-to-all, experts, all-to-all" of every MoE layer into `degree` parts, so that the
/// experts of part i run while the rows of part i+1 are transferred (Tutel, Hwang et al. 2023;
/// PipeMoE). The parts have equally many slots, or where rows are counted equally many rows in use,
/// give or take one. The pass runs before autodiff, so the backward is cut likewise. Throws
/// UserError when the degree is not a whole number or above the capacity, and as capacity_chains()
/// does.
Graph capacity_pipeline(Graph graph, const PassContext& context) {
  const int64_t degree = degree_of(context);
  if (degree == 1) return graph;
  for (const CapacityChain& chain : capacity_chains(graph, context.stage)) {
    const std::string name = graph.op(chain.ops[0]).name;
    if (degree > chain.capacity) {
      throw user_error("{}.degree = {}: op '{}' has a capacity of {}, so 1 to {} is allowed",
                       context.stage, degree, name, chain.capacity, chain.capacity);
    }
    const std::vector<int64_t> sizes = cut_capacity(graph, chain, degree);
    context.log->push_back({name, context.stage, cut_text(chain, sizes, "cut into")});
  }
  return graph;
}

}  // namespace moe
