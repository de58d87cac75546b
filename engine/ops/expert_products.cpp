#include "engine/ops/expert_products.h"

namespace moe::ops {
namespace {

constexpr const char* kAttribute = "products";
// Values of the attribute, in the order of GemmVariant.
constexpr const char* kNames[] = {"batch", "streams", "grouped", "each"};

}  // namespace

KernelVariants gemm_variants(const Graph& graph, const Op& op) {
  const Blocks b = blocks_of(graph, op, 0);
  if (b.experts * (only_used(op) ? b.sources : 1) == 1) return {};
  KernelVariants variants = {kAttribute, {std::begin(kNames), std::end(kNames)}};
  if (only_used(op)) variants.names.erase(variants.names.begin());  // batch needs equal sizes
  return variants;
}

kernels::GemmVariant gemm_variant(const Op& op) {
  using kernels::GemmVariant;
  if (!op.attrs.contains(kAttribute)) {
    return only_used(op) ? GemmVariant::kStreams : GemmVariant::kBatch;
  }
  const std::string name = attr_string(op, kAttribute);
  for (int32_t variant = 0; variant < 4; ++variant) {
    if (name == kNames[variant]) return static_cast<GemmVariant>(variant);
  }
  throw user_error("op '{}': attribute '{}' is '{}', allowed: batch, streams, grouped, each",
                   op.name, kAttribute, name);
}

}  // namespace moe::ops
