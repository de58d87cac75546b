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
  const ExpertSteps steps = copy_steps(placement, first_, last_);
  const auto into = [&](const std::vector<ExpertPiece>& pieces) {
    return [&](size_t i, size_t t) { return at(shadows_[t], pieces[i], pieces[i].to_slot); };
  };
  exchange(
      comm, steps.first,
      [&](size_t i, size_t t) {
        return at(residents_[t], steps.first[i], steps.first[i].from_slot);
      },
      into(steps.first));
  exchange(
      comm, steps.second,
      [&](size_t i, size_t t) {
        return at(shadows_[t], steps.second[i], steps.second[i].from_slot);
      },
      into(steps.second));
}

template <class T>
void ExpertMover<T>::give_back(Communicator& comm, const Placement& placement) {
  for (size_t t = 0; t < results_.size(); ++t) {
    std::copy_n(residents_[t].data, bounds_.residents * residents_[t].each, results_[t].data);
  }
  const ExpertSteps steps = return_steps(placement, first_, last_);
  const auto to_me = [&](const ExpertPiece& piece) { return piece.to == device_; };
  const auto from_me = [&](const ExpertPiece& piece) { return piece.from == device_; };
  const size_t tensors = residents_.size();
  T* free = scratch_;
  const Pointers sums = lay_out(steps.second, from_me, free);
  T* const behind = free;
  const Pointers parts = lay_out(steps.first, to_me, free);
  exchange(
      comm, steps.first,
      [&](size_t i, size_t t) { return at(shadows_[t], steps.first[i], steps.first[i].from_slot); },
      [&](size_t i, size_t t) { return parts[i * tensors + t]; });
  // steps.first lists an expert's senders in the order of devices; this one's own comes between.
  for (size_t k = 0; k < steps.second.size(); ++k) {
    const ExpertPiece& sum = steps.second[k];
    if (!from_me(sum)) continue;
    for (size_t t = 0; t < tensors; ++t) {
      const int64_t n = length(residents_[t], sum);
      T* const into = sums[k * tensors + t];
      const auto add = [&](const T* x) {
        for (int64_t j = 0; j < n; ++j) into[j] += x[j];
      };
      std::fill_n(into, n, T{0});
      for (int64_t d = 0; d < bounds_.devices; ++d) {
        if (d == device_) add(at(shadows_[t], sum, sum.from_slot));
        for (size_t i = 0; i < steps.first.size(); ++i) {
          const ExpertPiece& piece = steps.first[i];
          if (to_me(piece) && piece.from == d && piece.expert == sum.expert) {
            add(parts[i * tensors + t]);
          }
        }
      }
    }
  }
  free = behind;  // the parts are summed
  const Pointers arrived = lay_out(steps.second, to_me, free);
  exchange(
      comm, steps.second, [&](size_t i, size_t t) { return sums[i * tensors + t]; },
      [&](size_t i, size_t t) { return arrived[i * tensors + t]; });
  for (size_t i = 0; i < steps.second.size(); ++i) {
    if (!to_me(steps.second[i])) continue;
    for (size_t t = 0; t < tensors; ++t) {
      T* const into = at(results_[t], steps.second[i], steps.second[i].to_slot);
      const T* const x = arrived[i * tensors + t];
      for (int64_t j = 0; j < length(residents_[t], steps.second[i]); ++j) into[j] += x[j];
    }
  }
}

template <class T>
void ExpertMover<T>::sum(Communicator& comm, const Placement& placement) {
  const size_t tensors = residents_.size();
  for (size_t t = 0; t < tensors; ++t) {
    std::copy_n(residents_[t].data, bounds_.residents * residents_[t].each, results_[t].data);
  }
  const ExpertSteps steps = sum_steps(placement);
  const auto to_me = [&](const ExpertPiece& piece) { return piece.to == device_; };
  T* free = scratch_;
  const Pointers parts = lay_out(steps.first, to_me, free);
  exchange(
      comm, steps.first,
      [&](size_t i, size_t t) {
        return at(residents_[t], steps.first[i], steps.first[i].from_slot);
      },
      [&](size_t i, size_t t) { return parts[i * tensors + t]; });
  for (int64_t s = 0; s < bounds_.residents; ++s) {
    const int64_t expert = placement.at(device_, s);
    const ExpertPiece* mine = nullptr;
    for (const ExpertPiece& piece : steps.first) {
      if (to_me(piece) && piece.expert == expert) mine = &piece;
    }
    if (mine == nullptr) continue;
    for (size_t t = 0; t < tensors; ++t) {
      T* const into = at(results_[t], *mine, s);
      const int64_t n = length(residents_[t], *mine);
      std::fill_n(into, n, T{0});
      for (int64_t d = 0; d < bounds_.devices; ++d) {
        const T* x = d == device_ ? at(residents_[t], *mine, s) : nullptr;
        for (size_t i = 0; i < steps.first.size(); ++i) {
          const ExpertPiece& piece = steps.first[i];
          if (to_me(piece) && piece.from == d && piece.expert == expert) x = parts[i * tensors + t];
        }
        for (int64_t j = 0; x != nullptr && j < n; ++j) into[j] += x[j];
      }
    }
  }
  exchange(
      comm, steps.second,
      [&](size_t i, size_t t) {
        return at(results_[t], steps.second[i], steps.second[i].from_slot);
      },
      [&](size_t i, size_t t) {
        return at(results_[t], steps.second[i], steps.second[i].to_slot);
      });
}

template <class T>
void ExpertMover<T>::migrate(Communicator& comm, const Placement& now, const Placement& next) {
  std::vector<ExpertPiece> pieces;
  for (const Move& move : resident_moves(now, next)) {
    pieces.push_back(
        {move.expert, move.from, now.slot_of(move.expert, move.from), move.to, move.slot});
  }
  const size_t tensors = residents_.size();
  T* free = scratch_;
  const Pointers packed = lay_out(
      pieces, [&](const ExpertPiece& piece) { return piece.from == device_; }, free);
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (size_t t = 0; pieces[i].from == device_ && t < tensors; ++t) {
      std::copy_n(at(residents_[t], pieces[i], pieces[i].from_slot),
                  length(residents_[t], pieces[i]), packed[i * tensors + t]);
    }
  }
  exchange(
      comm, pieces, [&](size_t i, size_t t) { return packed[i * tensors + t]; },
      [&](size_t i, size_t t) { return at(residents_[t], pieces[i], pieces[i].to_slot); });
}

template class ExpertMover<float>;
template class ExpertMover<double>;

}  // namespace moe
