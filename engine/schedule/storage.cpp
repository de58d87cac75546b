#include "engine/schedule/storage.h"

#include <algorithm>
#include <map>
#include <span>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/schedule/lifetime.h"

namespace moe {
namespace {

TensorId tensor_id(size_t t) {
  return TensorId(static_cast<int64_t>(t));
}

/// Numbers the owners of storage: an owner is a group of tensors that ops join, or a single tensor
/// outside these groups.
class Owners {
 public:
  Owners(const Graph& graph, const JoinedTensors& joined) : joined_(joined) {
    for (size_t t = 0; t < graph.tensors().size(); ++t) tensors_.push_back(tensor_id(t));
  }

  /// Returns the number of the owner, 0 or more; the users of this class use -1 for no owner.
  int32_t of(TensorId t) const {
    const int32_t group = joined_.group_of[t.index()];
    return group < 0 ? t.value : static_cast<int32_t>(tensors_.size()) + group;
  }
  bool joined(int32_t owner) const { return index(owner) >= tensors_.size(); }
  std::span<const TensorId> tensors(int32_t owner) const {
    if (joined(owner)) return joined_.groups[index(owner) - tensors_.size()].members;
    return {&tensors_[index(owner)], 1};
  }

 private:
  static size_t index(int32_t owner) { return static_cast<size_t>(owner); }

  const JoinedTensors& joined_;
  std::vector<TensorId> tensors_;
};

/// Goes through the ops in serial order and tracks which owner (Owners) has each byte of the arena.
/// A new owner must be written after all uses of the previous owner; by transitivity it then comes
/// after all earlier owners too. Joined tensors are one owner, and each write to one of them must
/// come after all uses of the owner that had the bytes before the group.
class ArenaWalk {
 public:
  ArenaWalk(const Graph& graph, const Schedule& schedule, const JoinedTensors& joined,
            const HappensBefore& hb, const MemoryPlan& memory)
      : graph_(graph),
        schedule_(schedule),
        hb_(hb),
        memory_(memory),
        uses_(graph),
        owners_(graph, joined) {}

  void run() {
    for (const OpId op : hb_.serial()) {
      if (is_view(graph_, graph_.op(op))) continue;
      for (size_t i = 0; i < graph_.op(op).outputs.size(); ++i) write(op, i);
    }
  }

 private:
  static constexpr int32_t kNobody = -1;

  struct Owned {
    Bytes end;
    int32_t by;
    int32_t before = kNobody;  // for joined tensors, the owner before them
  };

  void write(OpId op, size_t output) {
    const TensorId t = graph_.op(op).outputs[output];
    const Buffer& buffer = memory_.buffers[t.index()];
    if (buffer.persistent || buffer.bytes == 0) return;
    const Bytes begin = buffer.offset, end = buffer.offset + buffer.bytes;
    if (begin < 0 || end > memory_.arena_bytes) {
      throw run_error(
          "illegal schedule: tensor '{}' of op '{}' on lane '{}' is at bytes {} to {}, but the "
          "arena has {} bytes (stage 'memory')",
          graph_.tensor(t).name, graph_.op(op).name, lane_name(op), begin, end,
          memory_.arena_bytes);
    }
    const int32_t owner = owners_.of(t);
    std::vector<std::pair<Bytes, Owned>> mine;
    Bytes at = begin;  // `mine` is complete up to here
    for (auto it = first_over(begin); it != owned_.end() && it->first < end;) {
      const auto [other_begin, other] = *it;
      const int32_t before = other.by == owner ? other.before : other.by;
      if (before != kNobody) check_over(before, op, output);
      it = owned_.erase(it);
      if (other_begin < begin) owned_[other_begin] = {begin, other.by, other.before};
      if (other.end > end) it = owned_.emplace(end, Owned{other.end, other.by, other.before}).first;
      const Bytes from = std::max(begin, other_begin);
      if (from > at) mine.push_back({at, {from, owner}});
      at = std::min(end, other.end);
      mine.push_back({from, {at, owner, before}});
    }
    if (at < end) mine.push_back({at, {end, owner}});
    if (owners_.joined(owner)) {
      owned_.insert(mine.begin(), mine.end());
    } else {
      owned_[begin] = {end, owner};
    }
  }

  std::map<Bytes, Owned>::iterator first_over(Bytes begin) {
    auto it = owned_.upper_bound(begin);
    if (it != owned_.begin() && std::prev(it)->second.end > begin) --it;
    return it;
  }

  void check_over(int32_t old, OpId op, size_t output) const {
    for (const TensorId t : owners_.tensors(old)) check_over(t, op, output);
  }

  void check_over(TensorId old, OpId op, size_t output) const {
    if (is_result(graph_, uses_, old)) fail(old, op, output, OpId());
    const OpId maker = uses_.producer[old.index()];
    if (!hb_.before(maker, op)) fail(old, op, output, maker);
    for (const OpId reader : uses_.readers[old.index()]) {
      if (hb_.before(reader, op) || (reader == op && in_place(old, op, output))) continue;
      fail(old, op, output, reader);
    }
  }

  bool in_place(TensorId old, OpId op, size_t output) const {
    const std::vector<TensorId>& inputs = graph_.op(op).inputs;
    const TensorId made = graph_.op(op).outputs[output];
    if (std::count(inputs.begin(), inputs.end(), old) != 1 || owners_.joined(owners_.of(old)) ||
        owners_.joined(owners_.of(made)) ||
        memory_.buffers[made.index()].offset != memory_.buffers[old.index()].offset) {
      return false;
    }
    const auto pairs = alias_pairs(graph_, graph_.op(op));
    return std::any_of(pairs.begin(), pairs.end(), [&](const std::pair<int, int>& pair) {
      return static_cast<size_t>(pair.first) == output &&
             inputs[static_cast<size_t>(pair.second)] == old;
    });
  }

  [[noreturn]] void fail(TensorId old, OpId op, size_t output, OpId user) const {
    const std::string still =
        !user.valid() ? "which the step returns"
        : user == op
            ? "which the op itself still reads"
            : fmt::format(
                  "which op '{}' on lane '{}' may still use, since no edge makes it run first",
                  graph_.op(user).name, lane_name(user));
    throw run_error(
        "illegal schedule: op '{}' on lane '{}' writes tensor '{}' into the storage of tensor "
        "'{}', {} (stage 'memory')",
        graph_.op(op).name, lane_name(op), graph_.tensor(graph_.op(op).outputs[output]).name,
        graph_.tensor(old).name, still);
  }

  const std::string& lane_name(OpId op) const {
    return schedule_.lanes[schedule_.lane_of[op.index()].index()].name;
  }

  const Graph& graph_;
  const Schedule& schedule_;
  const HappensBefore& hb_;
  const MemoryPlan& memory_;
  TensorUses uses_;
  Owners owners_;
  std::map<Bytes, Owned> owned_;  // first byte of a range -> its end and owner
};

/// Checks that each member of the group is at its offset from the group's first byte, and that the
/// group is within its storage.
void check_group(const Graph& graph, const JoinedTensors& joined, const JoinedTensors::Group& group,
                 const MemoryPlan& memory) {
  const auto buffer = [&memory](TensorId t) { return memory.buffers[t.index()]; };
  const TensorId first = group.members[0];
  const Bytes size = buffer(first).bytes / stored_elements(graph.tensor(first));
  const auto start = [&](TensorId t) { return buffer(t).offset - joined.offset[t.index()] * size; };
  const bool persistent = std::any_of(group.members.begin(), group.members.end(),
                                      [&graph](TensorId t) { return is_persistent(graph, t); });
  const Bytes end = start(first) + group.num_elements * size;
  const Bytes limit = persistent ? memory.persistent_bytes : memory.arena_bytes;
  for (const TensorId t : group.members) {
    if (buffer(t).persistent == persistent && start(t) == start(first) &&
        buffer(t).bytes == stored_elements(graph.tensor(t)) * size && start(t) >= 0 &&
        end <= limit) {
      continue;
    }
    throw run_error(
        "illegal schedule: tensor '{}', which is joined with '{}', is not at its offset in their "
        "common storage, has a wrong size, or is outside the memory plan (stage 'memory')",
        graph.tensor(t).name, graph.tensor(first).name);
  }
}

}  // namespace

void check_places(const Graph& graph, const JoinedTensors& joined, const MemoryPlan& memory) {
  const auto buffer = [&memory](TensorId t) { return memory.buffers[t.index()]; };
  for (const JoinedTensors::Group& group : joined.groups) {
    check_group(graph, joined, group, memory);
  }
  std::vector<TensorId> kept;
  for (size_t i = 0; i < memory.buffers.size(); ++i) {
    const TensorId t = tensor_id(i);
    if (joined.group_of[i] < 0 && is_persistent(graph, t) != buffer(t).persistent) {
      throw run_error(
          "illegal schedule: tensor '{}' is {}in persistent storage, where parameters, states and "
          "inputs must be and no other tensor (stage 'memory')",
          graph.tensor(t).name, buffer(t).persistent ? "" : "not ");
    }
    if (buffer(t).persistent) kept.push_back(t);
  }
  std::stable_sort(kept.begin(), kept.end(),
                   [&](TensorId a, TensorId b) { return buffer(a).offset < buffer(b).offset; });
  const Owners owners(graph, joined);
  Bytes end = 0;
  int32_t last = -1;  // the owner (Owners) of the last byte before `end`
  for (const TensorId t : kept) {
    const Bytes begin = buffer(t).offset;
    const bool over = begin < end && owners.of(t) != last;
    if (over || begin < 0 || begin + buffer(t).bytes > memory.persistent_bytes) {
      throw run_error(
          "illegal schedule: persistent tensor '{}' must neither overlap another persistent tensor "
          "nor exceed the persistent storage, but does (stage 'memory')",
          graph.tensor(t).name);
    }
    end = std::max(end, begin + buffer(t).bytes);
    last = owners.of(t);
  }
}

void check_reuse(const Graph& graph, const Schedule& schedule, const JoinedTensors& joined,
                 const HappensBefore& hb, const MemoryPlan& memory) {
  ArenaWalk(graph, schedule, joined, hb, memory).run();
}

}  // namespace moe
