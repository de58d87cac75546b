#include "engine/passes/device/kernel_variants.h"

#include <algorithm>

#include "engine/graph/op_def.h"

namespace moe {
namespace {

KernelVariants variants_of(const Graph& graph, OpId op) {
  const auto variants = graph.def(op).variants;
  KernelVariants all = variants != nullptr ? variants(graph, graph.op(op)) : KernelVariants();
  return all.names.size() > 1 ? all : KernelVariants();
}

/// Sets the attribute of a variant. Variant 0 is the default and is written as no attribute.
void set_variant(Op& op, const KernelVariants& variants, size_t variant) {
  if (variant == 0) {
    op.attrs.erase(variants.attribute);
  } else {
    op.attrs[variants.attribute] = std::string(variants.names[variant]);
  }
}

size_t quickest(Graph& graph, OpId op, const KernelVariants& variants, const CostModel& cost) {
  size_t best = 0;
  Nanoseconds least = 0;
  for (size_t variant = 0; variant < variants.names.size(); ++variant) {
    set_variant(graph.op(op), variants, variant);
    const Nanoseconds ns = cost.op_ns(graph, op);
    if (variant == 0 || ns < least) {
      best = variant;
      least = ns;
    }
  }
  return best;
}

}  // namespace

Graph select_variants(Graph graph, const WantedVariants& wanted) {
  for (size_t i = 0; i < graph.num_ops() && !wanted.empty(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    const KernelVariants variants = variants_of(graph, op);
    if (variants.names.empty()) continue;
    const auto name = wanted.find(variants.attribute);
    if (name == wanted.end()) continue;
    const auto variant = std::find(variants.names.begin(), variants.names.end(), name->second);
    if (variant == variants.names.end()) continue;
    set_variant(graph.op(op), variants, static_cast<size_t>(variant - variants.names.begin()));
  }
  return graph;
}

Graph autotune_variants(Graph graph, const CostModel& cost, const WantedVariants& but_not) {
  // Number of the fastest variant, indexed by the signature of the op without a variant.
  std::map<std::string, size_t> chosen;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    const KernelVariants variants = variants_of(graph, op);
    if (variants.names.empty() || graph.op(op).attrs.contains(variants.attribute) ||
        but_not.contains(variants.attribute)) {
      continue;
    }
    const auto [known, fresh] = chosen.emplace(op_signature(graph, op), 0);
    if (fresh) known->second = quickest(graph, op, variants, cost);
    set_variant(graph.op(op), variants, known->second);
  }
  return graph;
}

}  // namespace moe
