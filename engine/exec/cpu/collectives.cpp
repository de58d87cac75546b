#include "engine/exec/cpu/collectives.h"

#include <algorithm>
#include <cstring>

#include "engine/base/errors.h"
#include "engine/graph/micro_batches.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

CollectiveMemory memory_of(const RankBuffers& buffers, Bytes element_bytes) {
  return {[&buffers](TensorId t) { return buffers.at(t); },
          [&buffers](TensorId t) { return static_cast<const int32_t*>(buffers.at(t)); },
          element_bytes};
}

}  // namespace

template <class T>
CollectiveOp<T>::CollectiveOp(const Plan& plan, OpId id, const RankBuffers& buffers, void* scratch,
                              int64_t rank)
    : name_(plan.graph.op(id).name), scratch_(scratch) {
  const Graph& graph = plan.graph;
  const CollectiveMemory memory = memory_of(buffers, sizeof(T));
  const Collective collective = graph.def(id).collective;
  if (collective == Collective::kHandoff) {
    const Op& op = graph.op(id);
    // Both ends give the same name.
    name_ = name_in(attr_string(op, "what"), op.micro);
    if (op.phase == Phase::kBackward) name_ += " (gradient)";
    const int64_t ahead = attr_int(op, "peer") - plan.pipeline_rank;
    handoff_ = std::make_unique<Handoff>(Handoff{.distance = ahead * graph.num_ranks});
    const auto at = [&](TensorId t) {
      handoff_->n = num_elements(graph.tensor(t).shape);
      return static_cast<T*>(buffers.at(t));
    };
    if (!op.inputs.empty()) handoff_->sent = at(op.inputs[0]);
    if (!op.outputs.empty()) handoff_->received = at(op.outputs[0]);
    const Bytes bytes = handoff_->n * static_cast<Bytes>(sizeof(T));
    const auto with_peer = [&](Bytes size) {
      return ahead > 0 ? std::vector<Bytes>{0, size} : std::vector<Bytes>{size, 0};
    };
    handoff_->pieces = {.send_offset = {0, 0},
                        .send_bytes = with_peer(handoff_->sent != nullptr ? bytes : 0),
                        .receive_offset = {0, 0},
                        .receive_bytes = with_peer(handoff_->received != nullptr ? bytes : 0)};
  } else if (carries(graph, id, Payload::kActivations)) {
    activations_ = std::make_unique<ActivationExchange<T>>(graph, id, memory, scratch);
  } else if (is_half(collective)) {
    slices_ = std::make_unique<SliceExchange<T>>(graph, id, memory, scratch, rank);
  } else if (collective == Collective::kExperts) {
    mover_ = std::make_unique<ExpertMover<T>>(graph, id, memory, scratch, rank);
  } else {
    layout_ = std::make_unique<CollectiveLayout<T>>(graph, id, memory, rank);
    if (input_of(graph, graph.op(id), Role::kChoiceSlot).valid()) {
      rows_ = std::make_unique<RowExchange<T>>(plan, id, memory);
    }
  }
}

template <class T>
CollectiveDone CollectiveOp<T>::hand_off(Communicator& all) {
  Communicator& both = all.pair(handoff_->distance);
  const Bytes bytes = handoff_->sent != nullptr ? handoff_->n * static_cast<Bytes>(sizeof(T)) : 0;
  if (handoff_->sent != nullptr && handoff_->received != nullptr) {
    return {both.all_reduce(name_, handoff_->sent, handoff_->received, handoff_->n), bytes};
  }
  return {both.all_to_all(name_, handoff_->sent, handoff_->received, handoff_->pieces), bytes};
}

template <class T>
CollectiveDone CollectiveOp<T>::call(Communicator& all, int64_t chunk, int64_t num_chunks) {
  if (handoff_) return hand_off(all);
  if (mover_) {
    const ExpertsMoved moved = mover_->call(all);
    return {moved.times, moved.bytes};
  }
  if (activations_) return {activations_->call(all, name_), activations_->bytes()};
  std::string what = name_;
  if (num_chunks > 1) what += fmt::format(" (chunk {} of {})", chunk + 1, num_chunks);
  if (slices_) {
    const ElementRange range = slices_->elements(chunk, num_chunks);
    return {slices_->call(all, what, range), slices_->bytes(range)};
  }
  Communicator& comm = all.group(layout_->group());
  if (layout_->sums()) {
    const ElementRange range = layout_->elements(chunk, num_chunks);
    return {all_reduce(comm, what, range), layout_->bytes_of_sum(range)};
  }
  if (chunk == 0) layout_->read_counts();
  const Pieces& pieces = layout_->pieces(chunk, num_chunks);
  CollectiveDone done;
  if (rows_) {
    const auto moved =
        rows_->call(comm, what, layout_->send(), layout_->receive(), pieces, chunk == 0);
    done = {moved.times, moved.bytes};
  } else {
    done.times = comm.all_to_all(what, layout_->send(), layout_->receive(), pieces);
    done.bytes = layout_->bytes_to_others(pieces);
  }
  if (chunk + 1 == num_chunks) {
    for (const UnusedRows& rows : layout_->unused_rows()) {
      std::memset(rows.data, 0, static_cast<size_t>(rows.bytes));
    }
  }
  return done;
}

/// Sums the elements of `range` over the ranks. Several tensors are packed into scratch memory; it
/// is used only within the call, so ops whose chunks alternate may share it.
template <class T>
CommTimes CollectiveOp<T>::all_reduce(Communicator& comm, const std::string& what,
                                      ElementRange range) {
  const auto& parts = layout_->parts();
  if (parts.size() == 1) {
    return comm.all_reduce(what, parts[0].in + range.first, parts[0].out + range.first,
                           range.last - range.first);
  }
  T* const packed = static_cast<T*>(scratch_);
  layout_->each_part(range, [&](const auto& p, int64_t at, int64_t n, int64_t to) {
    std::copy_n(p.in + at, n, packed + to);
  });
  const CommTimes times = comm.all_reduce(what, packed, packed, range.last - range.first);
  layout_->each_part(range, [&](const auto& p, int64_t at, int64_t n, int64_t from) {
    std::copy_n(packed + from, n, p.out + at);
  });
  return times;
}

template class CollectiveOp<float>;
template class CollectiveOp<double>;

}  // namespace moe
