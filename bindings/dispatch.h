// Reads the sizes of an exchange of rows, as scripts/moe/spec/dispatcher.lua has them.
#pragma once

#include "bindings/host/convert.h"
#include "engine/dispatch/route.h"

namespace moe::lua {

/// expert_rank counts from 1.
inline dispatch::Exchange exchange_of(const Fields& sizes) {
  dispatch::Exchange exchange{.ranks = sizes.integer("ranks"),
                              .ranks_per_node = sizes.integer("ranks_per_node"),
                              .experts = sizes.integer("experts"),
                              .topk = sizes.integer("topk"),
                              .hidden = sizes.integer("hidden"),
                              .max_nodes = sizes.integer("max_nodes", 0),
                              .groups = sizes.integer("groups", 0),
                              .top_groups = sizes.integer("top_groups", 0)};
  if (!sizes.has("expert_rank")) return exchange;
  for (const nlohmann::json& rank : sizes.value().at("expert_rank")) {
    exchange.expert_rank.push_back(rank.get<int32_t>() - 1);
  }
  return exchange;
}

}  // namespace moe::lua
