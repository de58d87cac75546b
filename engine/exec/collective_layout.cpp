#include "engine/exec/collective_layout.h"

#include <algorithm>
#include <cstring>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/ops/placed.h"

namespace moe {
namespace {

size_t index(int64_t i) {
  return static_cast<size_t>(i);
}

/// Returns the index of the first of `n` elements that belongs to chunk number `chunk` of
/// `num_chunks`.
int64_t chunk_begin(int64_t n, int64_t chunk, int64_t num_chunks) {
  return n * chunk / num_chunks;
}

}  // namespace

template <class T>
CollectiveLayout<T>::CollectiveLayout(const Graph& graph, OpId id, const CollectiveMemory& memory,
                                      int64_t rank)
    : group_(group_of(graph, graph.op(id))), place_(group_.place(rank)) {
  const Op& op = graph.op(id);
  const Payload payload = graph.def(id).payload;
  if (payload == Payload::kLoads) {
    lay_out_gather(graph, op, memory);
  } else if (payload == Payload::kRows) {
    lay_out_all_to_all(graph, op, memory);
  } else if (payload == Payload::kCounts) {
    lay_out_exchange(graph, op, memory);
  } else {
    MOE_CHECK(payload == Payload::kGradients,
              "op {} has kind {}, must be an exchange of rows, of row counts or of loads, or an "
              "all-reduce",
              op.name, graph.def(id).name);
    lay_out_all_reduce(graph, op, memory);
  }
}

/// Lays out one piece per peer p, local expert e and source s, in the order (p, e, s) that the
/// blocks have on the sources' side.
template <class T>
void CollectiveLayout<T>::lay_out_pieces(const Shape& received, Bytes piece_bytes) {
  sources_ = received[1] / group_.size;
  pieces_.groups = received[0] * sources_;
  const int64_t pieces = group_.size * pieces_.groups;
  for (int64_t i = 0; i < pieces; ++i) {
    const Bytes source = i * piece_bytes;
    const Bytes expert = static_cast<Bytes>(received_at(i)) * piece_bytes;
    pieces_.send_offset.push_back(to_expert_ ? source : expert);
    pieces_.receive_offset.push_back(to_expert_ ? expert : source);
  }
  pieces_.send_bytes.assign(index(pieces), piece_bytes);
  pieces_.receive_bytes = pieces_.send_bytes;
}

/// Returns the index (e, p, s) that piece (p, e, s) has on the experts' side.
template <class T>
size_t CollectiveLayout<T>::received_at(int64_t sent_at) const {
  const int64_t p = sent_at / pieces_.groups, e = sent_at % pieces_.groups / sources_;
  return index((e * group_.size + p) * sources_ + sent_at % sources_);
}

template <class T>
void CollectiveLayout<T>::lay_out_all_to_all(const Graph& graph, const Op& op,
                                             const CollectiveMemory& memory) {
  to_expert_ = attr_string(op, "to") == "expert";
  // The shape [El,P*S,C,d] of the tensor on the experts' side.
  const Shape& shape = graph.tensor(to_expert_ ? op.outputs[0] : op.inputs[0]).shape;
  capacity_ = shape[2];
  row_bytes_ = shape[3] * dtype_bytes(graph.tensor(op.inputs[0]).dtype, memory.element_bytes);
  send_ = static_cast<const std::byte*>(memory.data(op.inputs[0]));
  receive_ = static_cast<std::byte*>(memory.data(op.outputs[0]));
  loose_ = attr_int(op, "loose") != 0;
  if (op.attrs.contains("rounds")) return lay_out_round(shape, round_of(graph, op));
  if (op.attrs.contains("residents")) return lay_out_placed(graph, op, memory);
  lay_out_pieces(shape, capacity_ * row_bytes_);
  if (attr_int(op, "irregular") == 0) return;
  by_peer_ = memory.numbers(input_of(graph, op, Role::kCounts));
  by_group_ = memory.numbers(input_of(graph, op, Role::kRecvCounts));
  part_ = op.attrs.contains("share");
  const TensorId begin = input_of(graph, op, Role::kBegin);
  if (!begin.valid()) return;
  begin_by_peer_ = memory.numbers(begin);
  begin_by_group_ = memory.numbers(input_of(graph, op, Role::kRecvBegin));
}

/// Lays out one group of pieces per slot of the experts' side; set_placed_sizes() sets their sizes
/// in each step.
template <class T>
void CollectiveLayout<T>::lay_out_placed(const Graph&, const Op& op,
                                         const CollectiveMemory& memory) {
  bounds_ = ops::bounds_of(op);
  const auto i32 = [&](size_t i) {
    return i < op.inputs.size() ? memory.numbers(op.inputs[i]) : nullptr;
  };
  by_peer_ = i32(1);
  by_group_ = i32(2);
  begin_by_peer_ = i32(3);
  begin_by_group_ = i32(4);
  placement_ = i32(5);
  part_ = op.attrs.contains("share");
  pieces_.groups = bounds_.slots();
  const size_t n = index(group_.size * pieces_.groups);
  for (auto* all : {&pieces_.send_offset, &pieces_.send_bytes, &pieces_.receive_offset,
                    &pieces_.receive_bytes}) {
    all->assign(n, 0);
  }
}

/// Sets the offsets and sizes of all pieces of a placed exchange for this step. On the sources'
/// side, rows [begin, count) of an expert are where the gate put them. On the experts' side, the
/// rows of each slot start at the beginning of its block; the rows of a part of the batch start at
/// the row that they have at their source.
template <class T>
void CollectiveLayout<T>::set_placed_sizes() {
  const Placement placement =
      Placement::decode(bounds_, {placement_, static_cast<size_t>(Placement::code_size(bounds_))});
  const int64_t slots = bounds_.slots();
  for (auto* all : {&pieces_.send_bytes, &pieces_.receive_bytes}) {
    std::fill(all->begin(), all->end(), 0);
  }
  auto& source_offset = to_expert_ ? pieces_.send_offset : pieces_.receive_offset;
  auto& source_bytes = to_expert_ ? pieces_.send_bytes : pieces_.receive_bytes;
  auto& expert_offset = to_expert_ ? pieces_.receive_offset : pieces_.send_offset;
  auto& expert_bytes = to_expert_ ? pieces_.receive_bytes : pieces_.send_bytes;
  for (int64_t e = 0; e < bounds_.experts; ++e) {
    const int64_t first = begin_by_peer_ != nullptr ? begin_by_peer_[e] : 0;
    for (const RowRange& range : share_rows(placement, e, place_, by_peer_[e])) {
      const int64_t begin = std::max(range.begin, first);
      const size_t at = index(range.device * slots + range.slot);
      source_offset[at] = (e * capacity_ + begin) * row_bytes_;
      source_bytes[at] = std::max<int64_t>(0, range.end - begin) * row_bytes_;
    }
  }
  for (int64_t p = 0; p < group_.size; ++p) {
    for (int64_t s = 0; s < slots; ++s) {
      const int64_t block = s * group_.size + p;
      const int64_t begin = begin_by_group_ != nullptr ? begin_by_group_[block] : 0;
      expert_offset[index(p * slots + s)] = (block * capacity_ + begin) * row_bytes_;
      expert_bytes[index(p * slots + s)] = (by_group_[block] - begin) * row_bytes_;
    }
  }
}

/// Lays out one of n rounds; `received` is the shape [El,P/n,C,d] of its tensor on the experts'
/// side. The pieces have the order that they would have in a group of only the round's peers.
template <class T>
void CollectiveLayout<T>::lay_out_round(const Shape& received, const Round& round) {
  const int64_t experts = received[0], members = received[1];
  const Bytes piece_bytes = capacity_ * row_bytes_;
  const auto pieces = index(group_.size * experts);
  pieces_.groups = experts;
  pieces_.round = round;
  for (auto* all : {&pieces_.send_offset, &pieces_.send_bytes, &pieces_.receive_offset,
                    &pieces_.receive_bytes}) {
    all->assign(pieces, 0);
  }
  for (int64_t p = 0; p < members; ++p) {
    for (int64_t e = 0; e < experts; ++e) {
      const size_t to = index((round.sends_to(group_, place_) + p) * experts + e);
      const size_t from = index((round.receives_from(group_, place_) + p) * experts + e);
      const Bytes source = (p * experts + e) * piece_bytes,
                  expert = (e * members + p) * piece_bytes;
      pieces_.send_offset[to] = to_expert_ ? source : expert;
      pieces_.receive_offset[from] = to_expert_ ? expert : source;
      pieces_.send_bytes[to] = pieces_.receive_bytes[from] = piece_bytes;
    }
  }
}

template <class T>
void CollectiveLayout<T>::lay_out_exchange(const Graph& graph, const Op& op,
                                           const CollectiveMemory& memory) {
  row_bytes_ = sizeof(int32_t);
  lay_out_pieces(graph.tensor(op.outputs[0]).shape, row_bytes_);
  send_ = static_cast<const std::byte*>(memory.data(op.inputs[0]));
  receive_ = static_cast<std::byte*>(memory.data(op.outputs[0]));
}

/// Lays out the sending of this rank's row counts to every rank.
template <class T>
void CollectiveLayout<T>::lay_out_gather(const Graph& graph, const Op& op,
                                         const CollectiveMemory& memory) {
  row_bytes_ = sizeof(int32_t);
  const Bytes bytes = num_elements(graph.tensor(op.inputs[0]).shape) * row_bytes_;
  for (int64_t p = 0; p < group_.size; ++p) {
    pieces_.send_offset.push_back(0);
    pieces_.receive_offset.push_back(p * bytes);
  }
  pieces_.send_bytes.assign(index(group_.size), bytes);
  pieces_.receive_bytes = pieces_.send_bytes;
  send_ = static_cast<const std::byte*>(memory.data(op.inputs[0]));
  receive_ = static_cast<std::byte*>(memory.data(op.outputs[0]));
}

template <class T>
void CollectiveLayout<T>::lay_out_all_reduce(const Graph& graph, const Op& op,
                                             const CollectiveMemory& memory) {
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Tensor& tensor = graph.tensor(op.inputs[i]);
    const int64_t n = num_elements(tensor.shape);
    MOE_CHECK(dtype_bytes(tensor.dtype, memory.element_bytes) == Bytes{sizeof(T)},
              "op {} sums tensor {} of type {}, but can sum only floats of {} bytes", op.name,
              tensor.name, dtype_name(tensor.dtype), sizeof(T));
    parts_.push_back({static_cast<T*>(memory.data(op.inputs[i])),
                      static_cast<T*>(memory.data(op.outputs[i])), n});
    num_elements_ += n;
  }
}

template <class T>
void CollectiveLayout<T>::read_counts() {
  if (by_peer_ == nullptr) return;
  if (placement_ != nullptr) {
    set_placed_sizes();
  } else {
    set_sizes();
  }
}

template <class T>
const Pieces& CollectiveLayout<T>::pieces(int64_t chunk, int64_t num_chunks) {
  return num_chunks == 1 ? pieces_ : pieces_of(chunk, num_chunks);
}

template <class T>
Bytes CollectiveLayout<T>::bytes_to_others(const Pieces& pieces) const {
  Bytes bytes = 0;
  for (int64_t i = 0; i < group_.size * pieces.groups; ++i) {
    if (i / pieces.groups != place_) bytes += pieces.send_bytes[index(i)];
  }
  return bytes;
}

template <class T>
ElementRange CollectiveLayout<T>::elements(int64_t chunk, int64_t num_chunks) const {
  return {chunk_begin(num_elements_, chunk, num_chunks),
          chunk_begin(num_elements_, chunk + 1, num_chunks)};
}

template <class T>
const Pieces& CollectiveLayout<T>::pieces_of(int64_t chunk, int64_t num_chunks) {
  chunk_ = pieces_;
  const auto cut = [&](std::vector<Bytes>& offset, std::vector<Bytes>& bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      const int64_t rows = bytes[i] / row_bytes_, first = chunk_begin(rows, chunk, num_chunks);
      offset[i] += first * row_bytes_;
      bytes[i] = (chunk_begin(rows, chunk + 1, num_chunks) - first) * row_bytes_;
    }
  };
  cut(chunk_.send_offset, chunk_.send_bytes);
  cut(chunk_.receive_offset, chunk_.receive_bytes);
  return chunk_;
}

template <class T>
void CollectiveLayout<T>::set_sizes() {
  const int64_t pieces = static_cast<int64_t>(pieces_.send_bytes.size());
  for (int64_t i = 0; i < pieces; ++i) {
    const auto at = static_cast<int64_t>(received_at(i));
    const int64_t peer_begin = begin_by_peer_ != nullptr ? begin_by_peer_[i] : 0;
    const int64_t group_begin = begin_by_group_ != nullptr ? begin_by_group_[at] : 0;
    const Bytes peer_side = (by_peer_[i] - peer_begin) * row_bytes_;
    const Bytes group_side = (by_group_[at] - group_begin) * row_bytes_;
    const Bytes peer_offset = (i * capacity_ + peer_begin) * row_bytes_;
    const Bytes group_offset = (at * capacity_ + group_begin) * row_bytes_;
    pieces_.send_bytes[index(i)] = to_expert_ ? peer_side : group_side;
    pieces_.receive_bytes[index(i)] = to_expert_ ? group_side : peer_side;
    pieces_.send_offset[index(i)] = to_expert_ ? peer_offset : group_offset;
    pieces_.receive_offset[index(i)] = to_expert_ ? group_offset : peer_offset;
  }
}

template <class T>
std::vector<UnusedRows> CollectiveLayout<T>::unused_rows() const {
  std::vector<UnusedRows> rows;
  if (by_peer_ == nullptr || part_ || loose_) return rows;
  for (size_t i = 0; i < pieces_.receive_bytes.size(); ++i) {
    const Bytes used = pieces_.receive_bytes[i], unused = capacity_ * row_bytes_ - used;
    if (unused > 0) rows.push_back({receive_ + pieces_.receive_offset[i] + used, unused});
  }
  return rows;
}

template class CollectiveLayout<float>;
template class CollectiveLayout<double>;

}  // namespace moe
