#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/graph/op_def.h"
#include "engine/schedule/blocks.h"
#include "engine/schedule/memory.h"

namespace moe {
namespace {

/// Returns what a tensor is for, as a part of the peak. The few bytes of states that are not the
/// optimizer's (biases of routers, placements) count as its states.
const char* purpose(const Lifetimes& lifetimes, TensorId t) {
  const Graph& graph = lifetimes.graph;
  const TensorKind kind = graph.tensor(t).kind;
  if (kind == TensorKind::kInput) return "inputs";
  if (kind == TensorKind::kParam) return "parameters";
  if (kind == TensorKind::kState) return "optimizer states";
  const OpId maker = lifetimes.uses.producer[t.index()];
  const Payload payload = graph.def(maker).payload;
  if (payload == Payload::kShadows) return "copies of experts";
  if (graph.op(maker).is_dw || payload == Payload::kGradients ||
      payload == Payload::kShadowGradients || payload == Payload::kResidentGradients) {
    return "gradients of parameters";
  }
  const std::vector<OpId>& readers = lifetimes.uses.readers[t.index()];
  const auto sends = [&](OpId op) { return carries(graph, op, Payload::kRows); };
  if (sends(maker) || std::any_of(readers.begin(), readers.end(), sends)) {
    return "rows of exchanges";
  }
  return kind == TensorKind::kGradient ? "gradients of activations" : "activations";
}

/// A tensor that stands for storage that is in use at the peak, and the bytes of that storage.
using HeldBytes = std::vector<std::pair<TensorId, Bytes>>;

/// Returns the storage in use at the peak: blocks of the arena, each by the largest of its joined
/// tensors or the last that is written up to the peak of those that share it; then all persistent.
HeldBytes held_at_peak(const Lifetimes& lifetimes, const MemoryPlan& plan) {
  const Blocks blocks = make_blocks(lifetimes, plan);
  const std::vector<Life> lives = serial_lives(lifetimes, blocks.list);
  const std::vector<Bytes> alive = alive_bytes(blocks.list, lives, lifetimes.graph.num_ops());
  const auto peak =
      static_cast<size_t>(std::max_element(alive.begin(), alive.end()) - alive.begin());
  const auto smaller = [&plan](TensorId a, TensorId b) {
    return plan.buffers[a.index()].bytes < plan.buffers[b.index()].bytes;
  };
  std::vector<TensorId> holder(blocks.list.size());
  for (const JoinedBlock& block : plan.joined) {
    if (block.persistent) continue;
    const auto& members = block.members;
    holder[static_cast<size_t>(blocks.of[members[0].index()])] =
        *std::max_element(members.begin(), members.end(), smaller);
  }
  for (size_t i = 0; i < std::min(peak + 1, lifetimes.graph.num_ops()); ++i) {
    for (const TensorId t : lifetimes.graph.op(lifetimes.hb.serial()[i]).outputs) {
      if (plan.buffers[t.index()].joined >= 0) continue;
      holder[static_cast<size_t>(blocks.of[t.index()])] = t;
    }
  }
  HeldBytes held;
  for (size_t b = 0; b < lives.size(); ++b) {
    if (lives[b].from <= peak && peak <= lives[b].to) {
      held.emplace_back(holder[b], blocks.list[b].bytes);
    }
  }
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const TensorId t(static_cast<int64_t>(i));
    const bool alone = plan.buffers[i].joined < 0;
    if (alone && is_persistent(lifetimes.graph, t)) held.emplace_back(t, plan.buffers[i].bytes);
  }
  for (const JoinedBlock& block : plan.joined) {
    if (block.persistent) held.emplace_back(block.members[0], block.bytes);
  }
  return held;
}

}  // namespace

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

Peak peak_of(const Graph& graph, const Schedule& schedule, const LaneOrders& orders,
             const MemoryPlan& plan, size_t count) {
  const HappensBefore hb(graph, schedule, orders);
  const TensorUses uses(graph);
  const Lifetimes lifetimes{graph, hb, uses};
  HeldBytes held = held_at_peak(lifetimes, plan);
  std::map<std::string, Bytes> parts;
  for (const auto& [t, bytes] : held) parts[purpose(lifetimes, t)] += bytes;
  parts["workspace of ops"] += plan.scratch_bytes;
  parts["gaps between tensors"] += plan.arena_bytes - plan.liveness_bytes;
  Peak peak;
  for (const auto& [what, bytes] : parts) {
    if (bytes > 0) peak.parts.push_back({what, bytes});
  }
  std::stable_sort(peak.parts.begin(), peak.parts.end(),
                   [](const PeakPart& a, const PeakPart& b) { return a.bytes > b.bytes; });
  std::stable_sort(held.begin(), held.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  held.resize(std::min(held.size(), count));
  for (const auto& [t, bytes] : held) {
    peak.holders.push_back(
        fmt::format("{} {:.1f} MiB", graph.tensor(t).name, static_cast<double>(bytes) / (1 << 20)));
  }
  return peak;
}

}  // namespace moe
