#include "engine/analysis/packing.h"
#include "tests/model/gpt2.h"

#include <catch2/catch.hpp>

namespace moe {
namespace {

/// Four experts on four devices, three MoE layers, so many devices per node.
double exchange_ms(int64_t devices_per_node, int64_t n, DType dtype = DType::kF32) {
  PlanSpec spec;
  spec.num_ranks = 4;
  test::change_model(spec, [&](test::Gpt2& m) {
    m.hidden = 10;
    m.ffn = 20;
    m.heads = 2;
    m.dtype = dtype;
    m.layers = 3;
    m.moe_every = 1;
    m.experts = 4;
    m.ep = n == 1 ? 0 : 4 / n;
  });
  spec.cluster.devices_per_node = devices_per_node;
  spec.cluster.nodes = 4 / devices_per_node;
  spec.cluster.nic.bytes_per_s = 1000;
  spec.cluster.intra.bytes_per_s = 1e9;
  return packing_exchange_ms(spec);
}

TEST_CASE("packing's exchange takes what the busiest NIC receives; without packing none is due") {
  const double expert = 2 * (2 * 10 * 20 + 10 + 20) * 4 * 3;  // bytes in all layers, with momentum
  CHECK(exchange_ms(1, 1) == 0);
  // Groups {0,1} and {2,3}: device 0 fetches expert 1; 1 fetches 2, 3; 2 fetches 0, 1; 3 fetches 2.
  CHECK(exchange_ms(1, 2) == 2 * expert);
  CHECK(exchange_ms(1, 2, DType::kF16) == expert);
  // Two devices per node: node 0 fetches experts 2 and 3 for device 1; device 0 has 1 beside it.
  CHECK(exchange_ms(2, 2) == 2 * expert);
  CHECK(exchange_ms(4, 4) == 1e3 * 3 * expert / 1e9);
}

}  // namespace
}  // namespace moe
