#include <fmt/format.h>

#include <algorithm>

#include "engine/schedule/blocks.h"
#include "engine/schedule/memory.h"

namespace moe {

std::vector<StorageLife> storage_lives(const Graph& graph, const Schedule& schedule,
                                       const LaneOrders& orders, const MemoryPlan& plan) {
  const HappensBefore hb(graph, schedule, orders);
  const TensorUses uses(graph);
  std::vector<StorageLife> lives;
  for (const Block& block : make_blocks({graph, hb, uses}, plan).list) {
    StorageLife life{block.bytes, block.start, {}};
    bool forever = false;
    for (size_t c = 0; c < hb.num_chains(); ++c) {
      const std::vector<OpId>& chain = hb.chains().lanes[c];
      const auto count = static_cast<size_t>(block.over[c]);
      forever |= count > chain.size();
      if (count > 0 && !forever) life.last.push_back(chain[count - 1]);
    }
    if (forever) life.last.clear();
    lives.push_back(std::move(life));
  }
  return lives;
}

std::vector<std::string> peak_holders(const Graph& graph, const Schedule& schedule,
                                      const LaneOrders& orders, const MemoryPlan& plan,
                                      size_t count) {
  const HappensBefore hb(graph, schedule, orders);
  const TensorUses uses(graph);
  const Lifetimes lifetimes{graph, hb, uses};
  const Blocks blocks = make_blocks(lifetimes, plan);
  const std::vector<Life> lives = serial_lives(lifetimes, blocks.list);
  const std::vector<Bytes> alive = alive_bytes(blocks.list, lives, graph.num_ops());
  const auto peak =
      static_cast<size_t>(std::max_element(alive.begin(), alive.end()) - alive.begin());
  const auto bytes = [&plan](TensorId t) { return plan.buffers[t.index()].bytes; };
  const auto smaller = [&bytes](TensorId a, TensorId b) { return bytes(a) < bytes(b); };
  // The tensor whose name stands for a block: of joined tensors the largest, of tensors that take
  // over each other's storage the last that is written up to the peak.
  std::vector<TensorId> holder(blocks.list.size());
  for (const JoinedBlock& block : plan.joined) {
    if (block.persistent) continue;
    const auto& members = block.members;
    holder[static_cast<size_t>(blocks.of[members[0].index()])] =
        *std::max_element(members.begin(), members.end(), smaller);
  }
  for (size_t i = 0; i < std::min(peak + 1, graph.num_ops()); ++i) {
    for (const TensorId t : graph.op(hb.serial()[i]).outputs) {
      if (plan.buffers[t.index()].joined >= 0) continue;
      holder[static_cast<size_t>(blocks.of[t.index()])] = t;
    }
  }
  std::vector<TensorId> held;
  for (size_t b = 0; b < lives.size(); ++b) {
    if (lives[b].from <= peak && peak <= lives[b].to) held.push_back(holder[b]);
  }
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const TensorId t(static_cast<int64_t>(i));
    if (is_persistent(graph, t)) held.push_back(t);
  }
  std::stable_sort(held.begin(), held.end(),
                   [&smaller](TensorId a, TensorId b) { return smaller(b, a); });
  held.resize(std::min(held.size(), count));
  std::vector<std::string> lines;
  for (const TensorId t : held) {
    lines.push_back(fmt::format("{} {:.1f} MiB", graph.tensor(t).name,
                                static_cast<double>(bytes(t)) / (1 << 20)));
  }
  return lines;
}

}  // namespace moe
