#include "engine/exec/expert_mover.h"

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/ops/placed.h"

namespace moe {

template <class T>
ExpertMover<T>::ExpertMover(const Graph& graph, OpId id, const RankBuffers& buffers, void* scratch,
                            int64_t rank)
    : name_(graph.op(id).name),
      kind_(graph.def(id).name),
      bounds_(ops::bounds_of(graph.op(id))),
      group_(group_of(graph, graph.op(id))),
      device_(group_.place(rank)),
      scratch_(static_cast<T*>(scratch)) {
  const Op& op = graph.op(id);
  first_ = attr_int(op, "first");
  last_ = attr_int(op, "last");
  per_node_ = attr_int(op, "devices_per_node", 1);
  const bool migrates = kind_ == "migrate";
  for (size_t i = 0; i < (migrates ? 2 : 1); ++i) {
    placements_.push_back(static_cast<const int32_t*>(buffers.at(op.inputs[i])));
  }
  const auto add = [&](std::vector<Experts>& to, const std::vector<TensorId>& tensors, size_t begin,
                       size_t end, int64_t first) {
    for (size_t i = begin; i < end; ++i) to.push_back(experts(graph, tensors[i], buffers, first));
  };
  const int64_t shadow = bounds_.residents + first_;
  const size_t n = op.inputs.size();
  if (kind_ == "copy_experts") {
    add(residents_, op.inputs, 1, n, 0);
    add(shadows_, op.outputs, 0, op.outputs.size(), shadow);
  } else if (kind_ == "return_gradients") {
    add(shadows_, op.inputs, 1, n / 2 + 1, shadow);
    add(residents_, op.inputs, n / 2 + 1, n, 0);
    add(results_, op.outputs, 0, op.outputs.size(), 0);
  } else if (kind_ == "sum_residents") {
    add(residents_, op.inputs, 1, n, 0);
    add(results_, op.outputs, 0, op.outputs.size(), 0);
  } else {
    MOE_CHECK(migrates, "op {} of kind {}", op.name, kind_);
    add(residents_, op.inputs, 2, n, 0);
  }
}

template <class T>
typename ExpertMover<T>::Experts ExpertMover<T>::experts(const Graph& graph, TensorId t,
                                                         const RankBuffers& buffers,
                                                         int64_t first) const {
  const Shape& shape = graph.tensor(t).shape;
  return {static_cast<T*>(buffers.at(t)), num_elements(shape) / shape[0], first};
}

template <class T>
Placement ExpertMover<T>::placement(size_t input) const {
  return Placement::decode(
      bounds_, {placements_[input], static_cast<size_t>(Placement::code_size(bounds_))});
}

/// The piece's part of the expert in a slot.
template <class T>
T* ExpertMover<T>::at(const Experts& experts, const ExpertPiece& piece, int64_t slot) {
  return experts.data + (slot - experts.first) * experts.each +
         experts.each * piece.part / piece.parts;
}

template <class T>
int64_t ExpertMover<T>::length(const Experts& experts, const ExpertPiece& piece) {
  return experts.each * (piece.part + 1) / piece.parts - experts.each * piece.part / piece.parts;
}

template <class T>
ExpertsMoved ExpertMover<T>::call(Communicator& all) {
  moved_ = {};
  called_ = false;
  Communicator& comm = all.group(group_);
  const Placement now = placement(0);
  if (kind_ == "copy_experts") {
    copy(comm, now);
  } else if (kind_ == "return_gradients") {
    give_back(comm, now);
  } else if (kind_ == "sum_residents") {
    sum(comm, now);
  } else {
    migrate(comm, now, placement(1));
  }
  if (!called_) {
    const Nanoseconds at = clock_ns();
    moved_.times = {at, at, at};
  }
  return moved_;
}

template <class T>
template <class Wanted>
typename ExpertMover<T>::Pointers ExpertMover<T>::lay_out(const std::vector<ExpertPiece>& pieces,
                                                          Wanted wanted, T*& free) const {
  Pointers pointers;
  for (const ExpertPiece& piece : pieces) {
    for (const Experts& tensor : residents_) {
      const bool mine = wanted(piece);
      pointers.push_back(mine ? free : nullptr);
      if (mine) free += length(tensor, piece);
    }
  }
  return pointers;
}

template <class T>
template <class Send, class Receive>
void ExpertMover<T>::exchange(Communicator& comm, const std::vector<ExpertPiece>& pieces, Send send,
                              Receive receive) {
  if (pieces.empty()) return;
  const auto size = static_cast<size_t>(group_.size);
  const size_t tensors = residents_.size();
  // The k-th piece from one rank to another is its k-th group, for both of them.
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
  const auto base =
      reinterpret_cast<std::byte*>(scratch_ != nullptr ? scratch_ : residents_[0].data);
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (size_t t = 0; t < tensors; ++t) {
      const auto bytes = length(residents_[t], pieces[i]) * static_cast<Bytes>(sizeof(T));
      const auto place = [&](int64_t peer) {
        return static_cast<size_t>(peer * layout.groups) + number[i] * tensors + t;
      };
      if (pieces[i].from == device_) {
        layout.send_offset[place(pieces[i].to)] = reinterpret_cast<std::byte*>(send(i, t)) - base;
        layout.send_bytes[place(pieces[i].to)] = bytes;
        if (pieces[i].to != device_) moved_.bytes += bytes;
      }
      if (pieces[i].to == device_) {
        layout.receive_offset[place(pieces[i].from)] =
            reinterpret_cast<std::byte*>(receive(i, t)) - base;
        layout.receive_bytes[place(pieces[i].from)] = bytes;
      }
    }
  }
  const CommTimes times = comm.all_to_all(name_, base, base, layout);
  if (!called_) moved_.times = times;
  moved_.times.end = times.end;
  called_ = true;
}

template <class T>
void ExpertMover<T>::copy(Communicator& comm, const Placement& placement) {
  for (const auto& pieces : copy_steps(placement, first_, last_, per_node_)) {
    const auto from = [&](size_t i, size_t t) {
      const int64_t slot = pieces[i].from_slot;
      return at(slot < bounds_.residents ? residents_[t] : shadows_[t], pieces[i], slot);
    };
    const auto to = [&](size_t i, size_t t) {
      return at(shadows_[t], pieces[i], pieces[i].to_slot);
    };
    exchange(comm, pieces, from, to);
  }
}

/// What arrives is added to what lies where it goes, sender by sender.
template <class T>
template <class From, class To>
void ExpertMover<T>::exchange_and_add(Communicator& comm, const std::vector<ExpertPiece>& pieces,
                                      From from, To to, T* free) {
  const auto to_me = [&](const ExpertPiece& piece) { return piece.to == device_; };
  const Pointers arrived = lay_out(pieces, to_me, free);
  const size_t tensors = residents_.size();
  exchange(comm, pieces, from, [&](size_t i, size_t t) { return arrived[i * tensors + t]; });
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!to_me(pieces[i])) continue;
    for (size_t t = 0; t < tensors; ++t) {
      T* const sum = to(i, t);
      const T* const x = arrived[i * tensors + t];
      for (int64_t j = 0; j < length(residents_[t], pieces[i]); ++j) sum[j] += x[j];
    }
  }
}

template <class T>
void ExpertMover<T>::give_back(Communicator& comm, const Placement& placement) {
  std::vector<Experts> sums;  // of shadows
  T* free = scratch_;
  for (size_t t = 0; t < results_.size(); ++t) {
    std::copy_n(residents_[t].data, bounds_.residents * residents_[t].each, results_[t].data);
    sums.push_back({free, shadows_[t].each, shadows_[t].first});
    const int64_t each = shadows_[t].each;
    for (int64_t s = 0; s < last_ - first_; ++s) {
      const bool used = placement.at(device_, shadows_[t].first + s) >= 0;
      if (used) std::copy_n(shadows_[t].data + s * each, each, free + s * each);
    }
    free += (last_ - first_) * each;
  }
  for (const auto& pieces : return_steps(placement, first_, last_, per_node_)) {
    const auto from = [&](size_t i, size_t t) {
      return at(sums[t], pieces[i], pieces[i].from_slot);
    };
    const auto to = [&](size_t i, size_t t) {
      const int64_t slot = pieces[i].to_slot;
      return at(slot < bounds_.residents ? results_[t] : sums[t], pieces[i], slot);
    };
    exchange_and_add(comm, pieces, from, to, free);
  }
}

template <class T>
void ExpertMover<T>::sum(Communicator& comm, const Placement& placement) {
  for (size_t t = 0; t < residents_.size(); ++t) {
    std::copy_n(residents_[t].data, bounds_.residents * residents_[t].each, results_[t].data);
  }
  const ExpertSteps steps = sum_steps(placement);
  const auto in = [](const std::vector<Experts>& tensors, const std::vector<ExpertPiece>& pieces,
                     int64_t ExpertPiece::*slot) {
    return [&tensors, &pieces, slot](size_t i, size_t t) {
      return at(tensors[t], pieces[i], pieces[i].*slot);
    };
  };
  exchange_and_add(comm, steps[0], in(residents_, steps[0], &ExpertPiece::from_slot),
                   in(results_, steps[0], &ExpertPiece::to_slot), scratch_);
  exchange(comm, steps[1], in(results_, steps[1], &ExpertPiece::from_slot),
           in(results_, steps[1], &ExpertPiece::to_slot));
}

template <class T>
void ExpertMover<T>::migrate(Communicator& comm, const Placement& now, const Placement& next) {
  std::vector<ExpertPiece> pieces;
  for (const Move& move : resident_moves(now, next)) {
    pieces.push_back(
        {move.expert, move.from, now.slot_of(move.expert, move.from), move.to, move.slot});
  }
  // Packed slot by slot: an expert may leave for several devices.
  std::vector<T*> packed;
  T* free = scratch_;
  for (const Experts& tensor : residents_) {
    packed.push_back(free);
    free = std::copy_n(tensor.data, pieces.empty() ? 0 : bounds_.residents * tensor.each, free);
  }
  exchange(
      comm, pieces,
      [&](size_t i, size_t t) { return packed[t] + pieces[i].from_slot * residents_[t].each; },
      [&](size_t i, size_t t) { return at(residents_[t], pieces[i], pieces[i].to_slot); });
}

template class ExpertMover<float>;
template class ExpertMover<double>;

}  // namespace moe
