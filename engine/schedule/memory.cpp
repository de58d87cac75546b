#include "engine/schedule/memory.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "engine/base/errors.h"
#include "engine/graph/joined.h"
#include "engine/graph/op_def.h"
#include "engine/schedule/interference.h"
#include "engine/schedule/lifetime.h"

namespace moe {
namespace {

Bytes round_up(Bytes bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Computes which ops must be over before the storage of a tensor is free, by HappensBefore.
struct Lifetimes {
  const Graph& graph;
  const HappensBefore& hb;
  const TensorUses& uses;

  /// Raises over[c], for each chain c (HappensBefore), to the number of ops of this chain that must
  /// be over before `t` is dead.
  void add_uses(TensorId t, std::vector<int32_t>& over) const {
    if (is_result(graph, uses, t)) {  // never dead: more ops than the producer's chain has
      for (size_t c = 0; c < over.size(); ++c) {
        over[c] = static_cast<int32_t>(hb.chains().lanes[c].size());
      }
      over[hb.chain(uses.producer[t.index()])] += 1;
      return;
    }
    const auto use = [&](OpId op) {
      over[hb.chain(op)] = std::max(over[hb.chain(op)], hb.index(op) + 1);
    };
    use(uses.producer[t.index()]);
    for (const OpId reader : uses.readers[t.index()]) use(reader);
  }

  /// Whether op may overwrite its input t: t is written in the step and not persistent, op reads t
  /// once, and all other readers of t are over before op begins.
  bool dies_at(TensorId t, OpId op) const {
    if (is_persistent(graph, t) || !uses.producer[t.index()].valid()) return false;
    const auto& inputs = graph.op(op).inputs;
    if (std::count(inputs.begin(), inputs.end(), t) != 1) return false;
    const std::vector<OpId>& readers = uses.readers[t.index()];
    return std::all_of(readers.begin(), readers.end(),
                       [&](OpId r) { return r == op || hb.before(r, op); });
  }
};

/// Sets Buffer::alias_of: decides, op by op, which output takes over the storage of which input.
void choose_aliases(const Lifetimes& lifetimes, std::vector<Buffer>& buffers) {
  std::vector<bool> taken(buffers.size());
  for (const OpId id : lifetimes.hb.serial()) {
    const Op& op = lifetimes.graph.op(id);
    for (const auto& [out, in] : alias_pairs(lifetimes.graph, op)) {
      const TensorId to = op.outputs[static_cast<size_t>(out)];
      const TensorId from = op.inputs[static_cast<size_t>(in)];
      Buffer& buffer = buffers[to.index()];
      const bool joined = buffer.joined >= 0 || buffers[from.index()].joined >= 0;
      if (joined || buffer.alias_of.valid() || taken[from.index()] ||
          buffer.bytes != buffers[from.index()].bytes || !lifetimes.dies_at(from, id)) {
        continue;
      }
      buffer.alias_of = from;
      taken[from.index()] = true;
    }
  }
}

std::vector<size_t> places_of(const std::vector<OpId>& serial) {
  std::vector<size_t> place(serial.size());
  for (size_t i = 0; i < serial.size(); ++i) place[serial[i].index()] = i;
  return place;
}

/// Returns JoinedBlock::start: the last op of the serial order that, in every timing, runs before
/// all ops that write `members` or is itself the first of these. Throws RunError if there is none.
OpId start_of(const Lifetimes& lifetimes, const std::vector<size_t>& place,
              const std::vector<TensorId>& members) {
  std::vector<OpId> writers;
  for (const TensorId t : members) {
    const OpId maker = lifetimes.uses.producer[t.index()];
    if (maker.valid() && !is_view(lifetimes.graph, lifetimes.graph.op(maker)))
      writers.push_back(maker);
  }
  const std::vector<OpId>& serial = lifetimes.hb.serial();
  size_t at = serial.size();
  for (const OpId writer : writers) at = std::min(at, place[writer.index()] + 1);
  while (at-- > 0) {
    const bool first = std::all_of(writers.begin(), writers.end(), [&](OpId writer) {
      return serial[at] == writer || lifetimes.hb.before(serial[at], writer);
    });
    if (first) return serial[at];
  }
  std::vector<std::string> names;
  for (const TensorId t : members) names.push_back(lifetimes.graph.tensor(t).name);
  throw run_error(
      "illegal schedule: tensors '{}' share one storage, but no op comes before all ops that write "
      "them: add order edges so that one of these ops is first (stage 'memory')",
      fmt::join(names, "', '"));
}

/// Adds the groups of tensors that ops join. A member's offset is still relative to the block of
/// its group; set_offsets() adds the offset of the block.
void add_joined(const Lifetimes& lifetimes, Bytes element_bytes, MemoryPlan& plan) {
  const JoinedTensors joined(lifetimes.graph);
  const std::vector<size_t> place = places_of(lifetimes.hb.serial());
  for (const JoinedTensors::Group& group : joined.groups) {
    const auto number = static_cast<int32_t>(plan.joined.size());
    const Bytes size = dtype_bytes(lifetimes.graph.tensor(group.members[0]).dtype, element_bytes);
    JoinedBlock block{.members = group.members, .bytes = round_up(group.num_elements * size)};
    for (const TensorId t : group.members) {
      Buffer& buffer = plan.buffers[t.index()];
      buffer.bytes = stored_elements(lifetimes.graph.tensor(t)) * size;
      buffer.offset = joined.offset[t.index()] * size;
      buffer.joined = number;
      block.persistent |= is_persistent(lifetimes.graph, t);
    }
    if (!block.persistent) block.start = start_of(lifetimes, place, group.members);
    plan.joined.push_back(std::move(block));
  }
}

/// Sets the offsets in persistent storage, in the order of tensors; a joined group is placed at the
/// position of its first member.
void place_persistent(const Graph& graph, MemoryPlan& plan) {
  const auto place = [&plan](Bytes bytes) {
    return std::exchange(plan.persistent_bytes, plan.persistent_bytes + bytes);
  };
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const TensorId t(static_cast<int64_t>(i));
    Buffer& buffer = plan.buffers[i];
    if (buffer.joined < 0) {
      buffer.persistent = is_persistent(graph, t);
      if (buffer.persistent) buffer.offset = place(buffer.bytes);
    } else {
      JoinedBlock& block = plan.joined[static_cast<size_t>(buffer.joined)];
      buffer.persistent = block.persistent;
      if (block.persistent && t == block.members[0]) block.offset = place(block.bytes);
    }
  }
}

/// Blocks of the arena, sorted by chain and index of their first op, and the block of each tensor.
struct Blocks {
  std::vector<Block> list;
  std::vector<int32_t> of;  // index into list per tensor, -1 if the tensor is not in the arena
};

/// A block whose end of use is not yet computed: its first op, and the tensors that it holds before
/// tensors with Buffer::alias_of are added.
struct Root {
  OpId start;
  Bytes bytes;
  std::span<const TensorId> tensors;
};

std::vector<Root> roots_of(const Lifetimes& lifetimes, const MemoryPlan& plan) {
  std::vector<Root> roots;
  for (const std::vector<OpId>& chain : lifetimes.hb.chains().lanes) {
    for (const OpId op : chain) {
      for (const TensorId& t : lifetimes.graph.op(op).outputs) {
        const Buffer& buffer = plan.buffers[t.index()];
        if (buffer.joined >= 0 || buffer.alias_of.valid()) continue;
        roots.push_back({op, buffer.bytes, {&t, 1}});
      }
    }
  }
  for (const JoinedBlock& block : plan.joined) {
    if (!block.persistent) roots.push_back({block.start, block.bytes, block.members});
  }
  const auto key = [&lifetimes](const Root& root) {
    return std::pair(lifetimes.hb.chain(root.start), lifetimes.hb.index(root.start));
  };
  std::stable_sort(roots.begin(), roots.end(),
                   [&key](const Root& a, const Root& b) { return key(a) < key(b); });
  return roots;
}

Blocks make_blocks(const Lifetimes& lifetimes, const MemoryPlan& plan) {
  Blocks blocks{{}, std::vector<int32_t>(plan.buffers.size(), -1)};
  for (const Root& root : roots_of(lifetimes, plan)) {
    for (const TensorId t : root.tensors) {
      blocks.of[t.index()] = static_cast<int32_t>(blocks.list.size());
    }
    blocks.list.push_back(
        {root.start, std::vector<int32_t>(lifetimes.hb.num_chains()), root.bytes, 0});
  }
  for (const OpId op : lifetimes.hb.serial()) {  // so that an alias comes after its source
    for (const TensorId t : lifetimes.graph.op(op).outputs) {
      const TensorId from = plan.buffers[t.index()].alias_of;
      if (from.valid()) blocks.of[t.index()] = blocks.of[from.index()];
      const int32_t block = blocks.of[t.index()];
      if (block >= 0) lifetimes.add_uses(t, blocks.list[static_cast<size_t>(block)].over);
    }
  }
  return blocks;
}

/// The first and the last op, as indices in the serial order, that need a block.
struct Life {
  size_t from, to;
};

std::vector<Life> serial_lives(const Lifetimes& lifetimes, const std::vector<Block>& blocks) {
  const std::vector<OpId>& serial = lifetimes.hb.serial();
  const std::vector<size_t> place = places_of(serial);
  std::vector<Life> lives;
  for (const Block& block : blocks) {
    Life life{place[block.start.index()], place[block.start.index()]};
    for (size_t c = 0; c < lifetimes.hb.num_chains(); ++c) {
      const std::vector<OpId>& chain = lifetimes.hb.chains().lanes[c];
      const auto count = static_cast<size_t>(block.over[c]);
      if (count == 0) continue;
      const bool forever = count > chain.size();
      life.to = std::max(life.to, forever ? serial.size() - 1 : place[chain[count - 1].index()]);
    }
    lives.push_back(life);
  }
  return lives;
}

/// Returns, for each op of the serial order, the bytes of blocks that are in use at it.
std::vector<Bytes> alive_bytes(const std::vector<Block>& blocks, const std::vector<Life>& lives,
                               size_t num_ops) {
  std::vector<Bytes> alive(num_ops + 1);
  for (size_t b = 0; b < blocks.size(); ++b) {
    alive[lives[b].from] += blocks[b].bytes;
    alive[lives[b].to + 1] -= blocks[b].bytes;
  }
  std::partial_sum(alive.begin(), alive.end(), alive.begin());
  return alive;
}

/// Sets the offsets of all blocks, from the largest block to the smallest: each gets the lowest
/// offset at which it overlaps no placed block that interferes with it. Returns the arena's size.
Bytes place_blocks(const Interference& interference, std::vector<Block>& blocks) {
  std::vector<uint32_t> by_size(blocks.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&blocks](uint32_t a, uint32_t b) { return blocks[a].bytes > blocks[b].bytes; });
  std::vector<uint32_t> placed;  // sorted by offset
  Bytes arena = 0;
  for (const uint32_t b : by_size) {
    Block& block = blocks[b];
    Bytes offset = 0;
    for (const uint32_t other : placed) {
      if (blocks[other].offset >= offset + block.bytes) break;  // fits into the gap before `other`
      if (interference.between(b, other)) {
        offset = std::max(offset, blocks[other].offset + blocks[other].bytes);
      }
    }
    block.offset = offset;
    arena = std::max(arena, offset + block.bytes);
    const auto at = std::upper_bound(
        placed.begin(), placed.end(), offset,
        [&blocks](Bytes value, uint32_t other) { return value < blocks[other].offset; });
    placed.insert(at, b);
  }
  return arena;
}

void set_offsets(const Blocks& blocks, MemoryPlan& plan) {
  const auto offset_of = [&blocks](TensorId t) {
    return blocks.list[static_cast<size_t>(blocks.of[t.index()])].offset;
  };
  for (JoinedBlock& joined : plan.joined) {
    if (!joined.persistent) joined.offset = offset_of(joined.members[0]);
  }
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    Buffer& buffer = plan.buffers[i];
    if (buffer.joined >= 0) {
      buffer.offset += plan.joined[static_cast<size_t>(buffer.joined)].offset;
    } else if (blocks.of[i] >= 0) {
      buffer.offset = offset_of(TensorId(static_cast<int64_t>(i)));
    }
  }
}

/// Returns the type of the first float that the op writes, else of the first that it reads.
DType float_type(const Graph& graph, const Op& op) {
  for (const std::vector<TensorId>* const tensors : {&op.outputs, &op.inputs}) {
    for (const TensorId t : *tensors) {
      if (t.valid() && graph.tensor(t).dtype != DType::kI32) return graph.tensor(t).dtype;
    }
  }
  return DType::kF32;
}

Bytes scratch(const Graph& graph, const LaneOrders& orders, Bytes element_bytes) {
  Bytes total = 0;
  for (const std::vector<OpId>& lane : orders.lanes) {
    Bytes largest = 0;
    for (const OpId id : lane) {
      const Op& op = graph.op(id);
      const OpDef& def = graph.def(op);
      if (def.scratch_bytes == nullptr) continue;
      const Bytes size = dtype_bytes(float_type(graph, op), element_bytes);
      largest = std::max(largest, round_up(def.scratch_bytes(graph, op, size)));
    }
    total += largest;
  }
  return total;
}

}  // namespace

MemoryPlan plan_memory(const Graph& graph, const Schedule& schedule, const LaneOrders& orders,
                       Bytes element_bytes) {
  const HappensBefore hb(graph, schedule, orders);
  const TensorUses uses(graph);
  const Lifetimes lifetimes{graph, hb, uses};
  MemoryPlan plan;
  plan.buffers.resize(graph.tensors().size());
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const Tensor& tensor = graph.tensors()[i];
    plan.buffers[i].bytes =
        round_up(stored_elements(tensor) * dtype_bytes(tensor.dtype, element_bytes));
  }
  add_joined(lifetimes, element_bytes, plan);
  place_persistent(graph, plan);
  choose_aliases(lifetimes, plan.buffers);
  Blocks blocks = make_blocks(lifetimes, plan);
  plan.arena_bytes = place_blocks(Interference(hb, blocks.list), blocks.list);
  set_offsets(blocks, plan);
  const std::vector<Bytes> alive =
      alive_bytes(blocks.list, serial_lives(lifetimes, blocks.list), graph.num_ops());
  plan.liveness_bytes = *std::max_element(alive.begin(), alive.end());
  plan.scratch_bytes = scratch(graph, orders, element_bytes);
  return plan;
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
