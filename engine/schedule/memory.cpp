#include "engine/schedule/memory.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/base/errors.h"
#include "engine/graph/joined.h"
#include "engine/graph/op_def.h"
#include "engine/schedule/blocks.h"
#include "engine/schedule/interference.h"

namespace moe {
namespace {

Bytes round_up(Bytes bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

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

/// Returns a matrix of one bit per pair of places, in rows of whole words: whether blocks of both
/// interfere. place: of each block.
std::vector<uint64_t> places_that_meet(const Interference& interference,
                                       const std::vector<uint32_t>& place, size_t count) {
  const size_t words = (count + 63) / 64;
  std::vector<uint64_t> meet(count * words);
  for (size_t a = 0; a < place.size(); ++a) {
    uint64_t* const row = &meet[place[a] * words];
    interference.for_each(a,
                          [&](size_t b) { row[place[b] / 64] |= uint64_t{1} << (place[b] % 64); });
  }
  // 64 rows at a time, whose words stay in the cache while the rows before them pass by.
  for (size_t from = 0; from < count; from += 64) {
    const size_t to = std::min(from + 64, count);
    for (size_t q = 0; q < to; ++q) {
      uint64_t& of_q = meet[q * words + from / 64];
      for (size_t p = from; p < to; ++p) {
        uint64_t& of_p = meet[p * words + q / 64];
        const uint64_t either = ((of_q >> (p - from)) | (of_p >> (q % 64))) & 1;
        of_q |= either << (p - from);
        of_p |= either << (q % 64);
      }
    }
  }
  return meet;
}

/// Sets the offsets of all blocks, place by place from the largest to the smallest: each gets the
/// lowest offset at which it overlaps no place that interferes with it. Returns the arena's size.
Bytes place_blocks(const HappensBefore& hb, const SharedPlaces& places,
                   std::vector<Block>& blocks) {
  std::vector<Block> compared;
  std::vector<uint32_t> place;  // of each in `compared`
  std::vector<Bytes> bytes(places.count), offset(places.count);
  const auto compare = [&](uint32_t b) {
    place.push_back(places.of[b]);
    bytes[places.of[b]] = blocks[b].bytes;
    compared.push_back(blocks[b]);
  };
  for (const uint32_t b : places.kept) {
    compare(b);
    compared.back().start = hb.chains().lanes[0][0];
  }
  for (const uint32_t b : places.compared) compare(b);
  const std::vector<uint64_t> meet =
      places_that_meet(Interference(hb, compared), place, places.count);
  const size_t words = (places.count + 63) / 64;
  const auto between = [&](uint32_t a, uint32_t b) {
    return ((meet[a * words + b / 64] >> (b % 64)) & 1) != 0;
  };
  std::vector<uint32_t> by_size(places.count);
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&bytes](uint32_t a, uint32_t b) { return bytes[a] > bytes[b]; });
  std::vector<uint32_t> placed;  // sorted by offset
  Bytes arena = 0;
  for (const uint32_t p : by_size) {
    Bytes at = 0;
    for (const uint32_t other : placed) {
      if (offset[other] >= at + bytes[p]) break;  // fits into the gap before `other`
      if (between(p, other)) at = std::max(at, offset[other] + bytes[other]);
    }
    offset[p] = at;
    arena = std::max(arena, at + bytes[p]);
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), at,
                         [&offset](Bytes value, uint32_t other) { return value < offset[other]; }),
        p);
  }
  for (size_t b = 0; b < blocks.size(); ++b) blocks[b].offset = offset[places.of[b]];
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

MemoryPlan plan_memory(const Graph& graph, const HappensBefore& hb, const LaneOrders& orders,
                       Bytes element_bytes,
                       SharedPlaces (*shared)(const Lifetimes&, const Blocks&)) {
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
  plan.arena_bytes = place_blocks(hb, shared(lifetimes, blocks), blocks.list);
  set_offsets(blocks, plan);
  const std::vector<Bytes> alive =
      alive_bytes(blocks.list, serial_lives(lifetimes, blocks.list), graph.num_ops());
  plan.liveness_bytes = *std::max_element(alive.begin(), alive.end());
  plan.scratch_bytes = scratch(graph, orders, element_bytes);
  return plan;
}

}  // namespace

MemoryPlan plan_memory(const Graph& graph, const Schedule& schedule, const LaneOrders& orders,
                       Bytes element_bytes) {
  return plan_memory(graph, HappensBefore(graph, schedule, orders), orders, element_bytes,
                     shared_places);
}

MemoryPlan plan_memory(const Graph& graph, const HappensBefore& hb, const LaneOrders& orders,
                       Bytes element_bytes) {
  return plan_memory(graph, hb, orders, element_bytes, places_in_turn);
}

}  // namespace moe
