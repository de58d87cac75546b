#include "engine/schedule/blocks.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "engine/graph/micro_batches.h"

namespace moe {
namespace {

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

SharedPlaces own_places(size_t blocks) {
  SharedPlaces places{std::vector<uint32_t>(blocks), {}, {}, blocks};
  std::iota(places.of.begin(), places.of.end(), 0);
  places.compared = places.of;
  return places;
}

}  // namespace

void Lifetimes::add_uses(TensorId t, std::vector<int32_t>& over) const {
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

bool Lifetimes::dies_at(TensorId t, OpId op) const {
  if (is_persistent(graph, t) || !uses.producer[t.index()].valid()) return false;
  const auto& inputs = graph.op(op).inputs;
  if (std::count(inputs.begin(), inputs.end(), t) != 1) return false;
  const std::vector<OpId>& readers = uses.readers[t.index()];
  return std::all_of(readers.begin(), readers.end(),
                     [&](OpId r) { return r == op || hb.before(r, op); });
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

SharedPlaces shared_places(const Lifetimes& lifetimes, const Blocks& blocks) {
  const size_t n = blocks.list.size();
  std::vector<TensorId> first(n);  // of each block
  const int32_t last = num_micro_batches(lifetimes.graph) - 1;
  const auto micro_of = [&](TensorId t) {
    return lifetimes.graph.op(lifetimes.uses.producer[t.index()]).micro;
  };
  for (size_t i = 0; i < blocks.of.size(); ++i) {
    if (blocks.of[i] < 0 || !lifetimes.uses.producer[i].valid()) continue;
    TensorId& t = first[static_cast<size_t>(blocks.of[i])];
    if (!t.valid()) t = TensorId(static_cast<int64_t>(i));
  }
  SharedPlaces places;
  // By name_around(), by micro-batches that take turns, and by size.
  std::map<std::tuple<std::string_view, std::string_view, int32_t, Bytes>, uint32_t> known;
  for (size_t b = 0; b < n; ++b) {
    const int32_t m = micro_of(first[b]);
    const bool kept = m > 0 && is_result(lifetimes.graph, lifetimes.uses, first[b]);
    const bool compared = !kept && (m <= 3 || m >= last - 1);
    auto place = static_cast<uint32_t>(places.count);
    if (m > 0 && m < last && !kept) {
      const auto [before, behind] = name_around(lifetimes.graph.tensor(first[b]).name);
      const auto key = std::tuple(before, behind, m % 2, blocks.list[b].bytes);
      place = known.try_emplace(key, place).first->second;
    }
    if (place == places.count && !compared && !kept) return own_places(n);
    places.of.push_back(place);
    places.count = std::max<size_t>(places.count, place + 1);
    if (compared) places.compared.push_back(static_cast<uint32_t>(b));
    if (kept) places.kept.push_back(static_cast<uint32_t>(b));
  }
  return places;
}

SharedPlaces places_in_turn(const Lifetimes& lifetimes, const Blocks& blocks) {
  const size_t n = blocks.list.size();
  std::vector<TensorId> first(n);  // of each block
  for (size_t i = 0; i < blocks.of.size(); ++i) {
    if (blocks.of[i] < 0 || !lifetimes.uses.producer[i].valid()) continue;
    TensorId& t = first[static_cast<size_t>(blocks.of[i])];
    if (!t.valid()) t = TensorId(static_cast<int64_t>(i));
  }
  const std::vector<size_t> serial = places_of(lifetimes.hb.serial());
  SharedPlaces places{std::vector<uint32_t>(n), std::vector<uint32_t>(n), {}, 0};
  std::iota(places.compared.begin(), places.compared.end(), 0);
  std::vector<uint32_t> order = places.compared;
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return serial[blocks.list[a].start.index()] < serial[blocks.list[b].start.index()];
  });
  // By tensor, whatever its layer, and size: the last block of each place.
  std::map<std::tuple<std::string_view, std::string_view, Bytes>, std::vector<uint32_t>> known;
  for (const uint32_t b : order) {
    const Block& block = blocks.list[b];
    auto [before, behind] = name_around(lifetimes.graph.tensor(first[b]).name);
    // The name of a tensor of a layer begins with the layer's, such as b3.ln1.
    if (lifetimes.graph.op(lifetimes.uses.producer[first[b].index()]).layer >= 0) {
      before.remove_prefix(before.find('.') + 1);
    }
    std::vector<uint32_t>& lasts = known[{before, behind, block.bytes}];
    const std::span<const int32_t> clock = lifetimes.hb.clock(block.start);
    const auto free = std::find_if(lasts.begin(), lasts.end(), [&](uint32_t last) {
      const std::vector<int32_t>& over = blocks.list[last].over;
      for (size_t c = 0; c < over.size(); ++c) {
        if (clock[c] < over[c]) return false;
      }
      return true;
    });
    places.of[b] = free != lasts.end() ? places.of[*free] : static_cast<uint32_t>(places.count++);
    if (free != lasts.end()) {
      *free = b;
    } else {
      lasts.push_back(b);
    }
  }
  return places;
}

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

std::vector<size_t> places_of(const std::vector<OpId>& serial) {
  std::vector<size_t> place(serial.size());
  for (size_t i = 0; i < serial.size(); ++i) place[serial[i].index()] = i;
  return place;
}

}  // namespace moe
