#include "engine/exec/expert_mover.h"

#include <algorithm>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/ops/placed.h"

namespace moe {

template <class T>
ExpertMover<T>::ExpertMover(const Graph& graph, OpId id, const CollectiveMemory& memory,
                            void* scratch, int64_t rank)
    : name_(graph.op(id).name),
      payload_(graph.def(id).payload),
      bounds_(ops::bounds_of(graph.op(id))),
      group_(group_of(graph, graph.op(id))),
      device_(group_.place(rank)),
      scratch_(static_cast<T*>(scratch)) {
  const Op& op = graph.op(id);
  per_node_ = attr_int(op, "devices_per_node", 1);
  const bool copies = payload_ == Payload::kShadows,
             returns = payload_ == Payload::kShadowGradients;
  const bool migrates = payload_ == Payload::kResidents;
  const bool sums = payload_ == Payload::kResidentGradients;
  MOE_CHECK(copies || returns || migrates || sums,
            "op {} has kind {}, but must have a kind that moves experts or their gradients",
            op.name, graph.def(id).name);
  for (size_t i = 0; i < (migrates ? 2 : 1); ++i) {
    placements_.push_back(memory.numbers(op.inputs[i]));
  }
  ranges_ = {{0, 0}};
  if (copies || returns) ranges_ = ops::shadow_ranges(op);
  const size_t all = op.inputs.size() - placements_.size();
  tensors_ = returns ? all / (ranges_.size() + 1) : all;
  const std::span<const TensorId> out = op.outputs, in = std::span(op.inputs).last(all);
  for (size_t r = 0; r < ranges_.size(); ++r) {
    const ShadowRange& range = ranges_[r];
    const auto add = [&](std::vector<Experts>& to, std::span<const TensorId> tensors) {
      for (const TensorId t : tensors) to.push_back(experts(graph, t, memory, 0, range.share));
    };
    add(residents_, in.last(tensors_));
    if (returns || sums) add(results_, out);
    if (!copies && !returns) continue;
    for (const TensorId t : (copies ? out : in).subspan(r * tensors_, tensors_)) {
      shadows_.push_back(experts(graph, t, memory, bounds_.residents + range.first, {}));
    }
  }
}

template <class T>
typename ExpertMover<T>::Experts ExpertMover<T>::experts(const Graph& graph, TensorId t,
                                                         const CollectiveMemory& memory,
                                                         int64_t first,
                                                         const ExpertShare& share) const {
  const Shape& shape = graph.tensor(t).shape;
  const int64_t each = num_elements(shape) / shape[0], row = each / shape[1];
  const int64_t begin = share.rows_before(shape[1]) * row;
  return {static_cast<T*>(memory.data(t)), each, first, begin, share.rows(shape[1]) * row};
}

template <class T>
Placement ExpertMover<T>::placement(size_t input) const {
  return Placement::decode(
      bounds_, {placements_[input], static_cast<size_t>(Placement::code_size(bounds_))});
}

template <class T>
const typename ExpertMover<T>::Experts& ExpertMover<T>::of(const std::vector<Experts>& all,
                                                           const ExpertPiece& piece,
                                                           size_t t) const {
  return all[static_cast<size_t>(piece.range) * tensors_ + t];
}

/// Returns the address of the elements that the piece moves, for the expert in `slot`.
template <class T>
T* ExpertMover<T>::at(const std::vector<Experts>& all, const ExpertPiece& piece, size_t t,
                      int64_t slot) const {
  const Experts& experts = of(all, piece, t);
  return experts.data + (slot - experts.first) * experts.each + experts.begin +
         experts.length * piece.part / piece.parts;
}

template <class T>
int64_t ExpertMover<T>::length(const ExpertPiece& piece, size_t t) const {
  const int64_t n = of(residents_, piece, t).length;
  return n * (piece.part + 1) / piece.parts - n * piece.part / piece.parts;
}

template <class T>
const std::vector<ExpertAction<T>>& ExpertMover<T>::actions() {
  actions_.clear();
  bytes_ = 0;
  const Placement now = placement(0);
  if (payload_ == Payload::kShadows) {
    copy_shadows(now);
  } else if (payload_ == Payload::kShadowGradients) {
    give_back(now);
  } else if (payload_ == Payload::kResidentGradients) {
    sum(now);
  } else {
    migrate(now, placement(1));
  }
  return actions_;
}

template <class T>
ExpertsMoved ExpertMover<T>::call(Communicator& all) {
  Communicator& comm = all.group(group_);
  ExpertsMoved moved;
  bool called = false;
  for (const ExpertAction<T>& action : actions()) {
    if (action.kind == ExpertAction<T>::Kind::kCopy) {
      std::copy_n(action.from, action.n, action.to);
    } else if (action.kind == ExpertAction<T>::Kind::kAdd) {
      for (int64_t j = 0; j < action.n; ++j) action.to[j] += action.from[j];
    } else {
      const CommTimes times = comm.all_to_all(name_, base(), base(), action.pieces);
      if (!std::exchange(called, true)) moved.times = times;
      moved.times.end = times.end;
      moved.times.cpu = times.cpu;
    }
  }
  moved.bytes = bytes_;
  if (!called) moved.times = comm.nothing();
  return moved;
}

template <class T>
void ExpertMover<T>::copy(T* to, const T* from, int64_t n) {
  if (n > 0 && to != from) actions_.push_back({ExpertAction<T>::Kind::kCopy, to, from, n});
}

template <class T>
template <class Wanted>
typename ExpertMover<T>::Pointers ExpertMover<T>::lay_out(const std::vector<ExpertPiece>& pieces,
                                                          Wanted wanted, T*& free) const {
  Pointers pointers;
  for (const ExpertPiece& piece : pieces) {
    const bool mine = wanted(piece);
    for (size_t t = 0; t < tensors_; ++t) {
      pointers.push_back(mine ? free : nullptr);
      if (mine) free += length(piece, t);
    }
  }
  return pointers;
}

template <class T>
template <class Send, class Receive>
void ExpertMover<T>::exchange(const std::vector<ExpertPiece>& pieces, Send send, Receive receive) {
  if (pieces.empty()) return;
  const auto size = static_cast<size_t>(group_.size);
  const size_t tensors = tensors_;
  // The pieces from rank a to rank b have the same numbers on both ranks; each piece has one group
  // of the layout per tensor.
  std::vector<size_t> count(size * size), number;
  for (const ExpertPiece& piece : pieces) {
    number.push_back(
        count[static_cast<size_t>(piece.from) * size + static_cast<size_t>(piece.to)]++);
  }
  Pieces layout;
  layout.groups = static_cast<int64_t>(*std::max_element(count.begin(), count.end()) * tensors);
  const size_t all = size * static_cast<size_t>(layout.groups);
  for (auto* v :
       {&layout.send_offset, &layout.send_bytes, &layout.receive_offset, &layout.receive_bytes}) {
    v->assign(all, 0);
  }
  const std::byte* const base = this->base();
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (size_t t = 0; t < tensors; ++t) {
      const auto bytes = length(pieces[i], t) * static_cast<Bytes>(sizeof(T));
      const auto place = [&](int64_t peer) {
        return static_cast<size_t>(peer * layout.groups) + number[i] * tensors + t;
      };
      if (pieces[i].from == device_) {
        layout.send_offset[place(pieces[i].to)] = reinterpret_cast<std::byte*>(send(i, t)) - base;
        layout.send_bytes[place(pieces[i].to)] = bytes;
        if (pieces[i].to != device_) bytes_ += bytes;
      }
      if (pieces[i].to == device_) {
        layout.receive_offset[place(pieces[i].from)] =
            reinterpret_cast<std::byte*>(receive(i, t)) - base;
        layout.receive_bytes[place(pieces[i].from)] = bytes;
      }
    }
  }
  actions_.push_back({ExpertAction<T>::Kind::kExchange, nullptr, nullptr, 0, std::move(layout)});
}

template <class T>
void ExpertMover<T>::copy_shadows(const Placement& placement) {
  for (const auto& pieces : copy_steps(placement, ranges_, per_node_)) {
    const auto from = [&](size_t i, size_t t) {
      const int64_t slot = pieces[i].from_slot;
      return at(slot < bounds_.residents ? residents_ : shadows_, pieces[i], t, slot);
    };
    const auto to = [&](size_t i, size_t t) {
      return at(shadows_, pieces[i], t, pieces[i].to_slot);
    };
    exchange(pieces, from, to);
  }
}

/// Sums are taken in the order of devices, with this device's own value at its position: where
/// every device is its own node, the bits do not depend on which device sums which part.
template <class T>
template <class From, class To>
void ExpertMover<T>::exchange_and_add(const std::vector<ExpertPiece>& pieces, From from, To to,
                                      T* free) {
  const auto to_me = [&](const ExpertPiece& piece) { return piece.to == device_; };
  const Pointers arrived = lay_out(pieces, to_me, free);
  const auto arrival = [&](size_t i, size_t t) { return arrived[i * tensors_ + t]; };
  exchange(pieces, from, arrival);
  const auto add = [&](size_t i, auto into) {
    for (size_t t = 0; t < tensors_; ++t) {
      const int64_t n = length(pieces[i], t);
      if (n > 0) actions_.push_back({ExpertAction<T>::Kind::kAdd, into(t), arrival(i, t), n});
    }
  };
  // For each (range, slot, part): the first piece, whose memory holds the sum so far.
  std::map<std::tuple<int64_t, int64_t, int64_t>, size_t> before;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!to_me(pieces[i]) || pieces[i].from > device_) continue;
    const auto key = std::tuple(pieces[i].range, pieces[i].to_slot, pieces[i].part);
    const size_t room = before.emplace(key, i).first->second;
    if (room != i) add(i, [&](size_t t) { return arrival(room, t); });
  }
  for (const auto& [key, at] : before) {
    const size_t i = at;
    add(i, [&](size_t t) { return to(i, t); });
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!to_me(pieces[i]) || pieces[i].from < device_) continue;
    add(i, [&](size_t t) { return to(i, t); });
  }
}

template <class T>
void ExpertMover<T>::give_back(const Placement& placement) {
  begin_results();
  std::vector<Experts> sums = shadows_;
  T* free = scratch_;
  for (size_t i = 0; i < shadows_.size(); ++i) {
    const ShadowRange& range = ranges_[i / tensors_];
    sums[i].data = free;
    for (int64_t s = 0; s < range.last - range.first; ++s, free += shadows_[i].each) {
      if (placement.at(device_, shadows_[i].first + s) < 0) continue;
      copy(free, shadows_[i].data + s * shadows_[i].each, shadows_[i].each);
    }
  }
  for (const auto& pieces : return_steps(placement, ranges_, per_node_)) {
    const auto from = [&](size_t i, size_t t) {
      return at(sums, pieces[i], t, pieces[i].from_slot);
    };
    const auto to = [&](size_t i, size_t t) {
      const int64_t slot = pieces[i].to_slot;
      return at(slot < bounds_.residents ? results_ : sums, pieces[i], t, slot);
    };
    exchange_and_add(pieces, from, to, free);
  }
}

/// Adds the actions that copy this device's own gradients of its residents to the results, where
/// the plan did not give the results their storage.
template <class T>
void ExpertMover<T>::begin_results() {
  for (size_t t = 0; t < tensors_; ++t) {
    copy(results_[t].data, residents_[t].data, bounds_.residents * residents_[t].each);
  }
}

template <class T>
void ExpertMover<T>::sum(const Placement& placement) {
  begin_results();
  const ExpertSteps steps = sum_steps(placement);
  const auto in = [&](const std::vector<Experts>& tensors, const std::vector<ExpertPiece>& pieces,
                      int64_t ExpertPiece::*slot) {
    return [&, slot](size_t i, size_t t) { return at(tensors, pieces[i], t, pieces[i].*slot); };
  };
  exchange_and_add(steps[0], in(residents_, steps[0], &ExpertPiece::from_slot),
                   in(results_, steps[0], &ExpertPiece::to_slot), scratch_);
  exchange(steps[1], in(results_, steps[1], &ExpertPiece::from_slot),
           in(results_, steps[1], &ExpertPiece::to_slot));
}

template <class T>
void ExpertMover<T>::migrate(const Placement& now, const Placement& next) {
  std::vector<ExpertPiece> pieces;
  for (const Move& move : resident_moves(now, next)) {
    pieces.push_back(
        {move.expert, move.from, now.slot_of(move.expert, move.from), move.to, move.slot});
  }
  // The experts of all slots are first copied to scratch memory, because an expert may move to
  // several devices.
  std::vector<T*> packed;
  T* free = scratch_;
  for (const Experts& tensor : residents_) {
    packed.push_back(free);
    const int64_t n = pieces.empty() ? 0 : bounds_.residents * tensor.each;
    copy(free, tensor.data, n);
    free += n;
  }
  exchange(
      pieces,
      [&](size_t i, size_t t) { return packed[t] + pieces[i].from_slot * residents_[t].each; },
      [&](size_t i, size_t t) { return at(residents_, pieces[i], t, pieces[i].to_slot); });
}

template class ExpertMover<float>;
template class ExpertMover<double>;

}  // namespace moe
