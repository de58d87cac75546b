#include "engine/ops/expert_products.h"

namespace moe::ops {
namespace {

constexpr const char* kAttribute = "products";
// In the order of ProductsWay.
constexpr const char* kNames[] = {"batch", "streams", "grouped", "each"};

}  // namespace

OpWays products_ways(const Graph& graph, const Op& op) {
  const Blocks b = blocks_of(graph, op, 0);
  if (b.experts * (only_used(op) ? b.sources : 1) == 1) return {};
  OpWays ways = {kAttribute, {std::begin(kNames), std::end(kNames)}};
  if (only_used(op)) ways.names.erase(ways.names.begin());  // sizes differ
  return ways;
}

kernels::ProductsWay products_way(const Op& op) {
  using kernels::ProductsWay;
  if (!op.attrs.contains(kAttribute)) {
    return only_used(op) ? ProductsWay::kStreams : ProductsWay::kBatch;
  }
  const std::string name = attr_string(op, kAttribute);
  for (int32_t way = 0; way < 4; ++way) {
    if (name == kNames[way]) return static_cast<ProductsWay>(way);
  }
  throw user_error("op '{}': attribute '{}' is '{}', allowed: batch, streams, grouped, each",
                   op.name, kAttribute, name);
}

}  // namespace moe::ops
