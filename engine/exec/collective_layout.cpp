#include "engine/exec/collective_layout.h"

#include <algorithm>
#include <cstring>

#include "engine/base/errors.h"
#include "engine/base/index.h"
#include "engine/graph/op_def.h"
#include "engine/ops/placed.h"

namespace moe {
namespace {

/// Returns the index of the first of `n` elements that belongs to chunk number `chunk` of
/// `num_chunks`.
int64_t chunk_begin(int64_t n, int64_t chunk, int64_t num_chunks) {
  return n * chunk / num_chunks;
}

}  // namespace

template <class T>
CollectiveLayout<T>::CollectiveLayout(const Graph& graph, OpId id, const CollectiveMemory& memory,
                                      int64_t rank)
    : group_(group_of(graph, graph.op(id))),
      place_(group_.place(rank)),
      rank_(rank),
      block_(graph.op(id).layer),
      cut_(graph.op(id)) {
  const Op& op = graph.op(id);
  const Payload payload = graph.def(id).payload;
  if (payload == Payload::kLoads) {
    lay_out_gather(graph, op, memory);
  } else if (payload == Payload::kRows) {
    lay_out_all_to_all(graph, op, memory, rank);
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
  pieces_.groups = per_peer_ = received[0] * sources_;
  const int64_t pieces = group_.size * per_peer_;
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
  const int64_t p = sent_at / per_peer_, e = sent_at % per_peer_ / sources_;
  return index((e * group_.size + p) * sources_ + sent_at % sources_);
}

template <class T>
void CollectiveLayout<T>::lay_out_all_to_all(const Graph& graph, const Op& op,
                                             const CollectiveMemory& memory, int64_t rank) {
  to_expert_ = op.rows.to_expert();
  // The shape [El,P*S,C,d] of the tensor on the experts' side.
  const Shape& shape = graph.tensor(to_expert_ ? op.outputs[0] : op.inputs[0]).shape;
  capacity_ = shape[2];
  row_bytes_ = shape[3] * dtype_bytes(graph.tensor(op.inputs[0]).dtype, memory.element_bytes);
  send_ = static_cast<const std::byte*>(memory.data(op.inputs[0]));
  receive_ = static_cast<std::byte*>(memory.data(op.outputs[0]));
  const Tensor &in = graph.tensor(op.inputs[0]), &out = graph.tensor(op.outputs[0]);
  packed_ = in.stored_rows > 0;
  room_to_send_ = in.stored_rows;
  room_to_receive_ = out.stored_rows;
  loose_ = packed_ || op.rows.loose;
  round_ = round_of(graph, op);
  if (round_.of > 1 && !op.rows.irregular) return lay_out_round(shape, round_);
  if (op.attrs.contains("residents")) return lay_out_placed(graph, op, memory);
  lay_out_pieces(shape, capacity_ * row_bytes_);
  pieces_.round = round_;
  if (op.rows.irregular) lay_out_counted(graph, op, memory, rank);
}

/// Sets what set_sizes() reads in each step. In the steps of a two-step exchange on nodes of m
/// devices, the rank at place j of node a has rows of m sources between the steps: attr nodes marks
/// the step in the node, sources_ = m that between the nodes.
template <class T>
void CollectiveLayout<T>::lay_out_counted(const Graph& graph, const Op& op,
                                          const CollectiveMemory& memory, int64_t rank) {
  by_peer_ = memory.numbers(input_of(graph, op, Role::kCounts));
  by_group_ = memory.numbers(input_of(graph, op, Role::kRecvCounts));
  part_ = op.rows.share.has_value();
  if (const TensorId begin = input_of(graph, op, Role::kBegin); begin.valid()) {
    begin_by_peer_ = memory.numbers(begin);
    begin_by_group_ = memory.numbers(input_of(graph, op, Role::kRecvBegin));
  }
  const int64_t pieces = static_cast<int64_t>(pieces_.send_bytes.size());
  if (packed_) {
    const TensorId counts = input_of(graph, op, Role::kCounts);
    batch_parts_ = num_elements(graph.tensor(counts).shape) / pieces;
    pieces_.groups = per_peer_ * batch_parts_;
    resize_pieces(pieces * batch_parts_);
  }
  const int64_t experts = per_peer_ / sources_, nodes = attr_int(op, "nodes", 1);
  const int64_t m = nodes > 1 ? group_.size : sources_, slots = experts / nodes;
  const int64_t node = nodes > 1 ? rank / m % nodes : place_, j = nodes > 1 ? place_ : rank % m;
  cut_by_peer_.resize(index(pieces));
  cut_by_group_.resize(index(pieces));
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t p = i / per_peer_, e = i % per_peer_ / sources_, s = i % sources_;
    const int64_t to_node = nodes > 1 ? e / slots : p, to_place = nodes > 1 ? p : j;
    const int64_t my_source = node * m + (nodes > 1 ? j : s);
    cut_by_peer_[index(i)] = (to_node * m + to_place) * slots + e % slots + my_source;
    const int64_t my_node = nodes > 1 ? e / slots : node;
    const int64_t its_source = nodes > 1 ? node * m + p : p * m + s;
    cut_by_group_[received_at(i)] = (my_node * m + j) * slots + e % slots + its_source;
  }
}

/// Lays out one group of pieces per slot of the experts' side; set_placed_sizes() sets their sizes
/// in each step.
template <class T>
void CollectiveLayout<T>::lay_out_placed(const Graph& graph, const Op& op,
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
  part_ = op.rows.share.has_value();
  if (packed_) {
    batch_parts_ = num_elements(graph.tensor(op.inputs[1]).shape) / bounds_.experts;
  }
  pieces_.groups = bounds_.slots() * batch_parts_;
  pieces_.round = round_;
  resize_pieces(group_.size * pieces_.groups);
}

/// Sets the number of pieces, all of them empty.
template <class T>
void CollectiveLayout<T>::resize_pieces(int64_t pieces) {
  for (auto* all : {&pieces_.send_offset, &pieces_.send_bytes, &pieces_.receive_offset,
                    &pieces_.receive_bytes}) {
    all->assign(index(pieces), 0);
  }
}

/// Returns where the rows in use are stored on the experts' side or on the sources' side, by this
/// step's counts. Throws RunError if packed rows have no room for them.
template <class T>
std::vector<ops::StoredBlock> CollectiveLayout<T>::blocks_at(bool experts, int64_t blocks) const {
  std::vector<ops::StoredBlock> stored =
      ops::stored_blocks({blocks, capacity_, batch_parts_, packed_}, experts ? by_group_ : by_peer_,
                         experts ? begin_by_group_ : begin_by_peer_);
  if (packed_) {
    const std::string failure =
        ops::no_room(block_, rank_, stored.back().row_0 + stored.back().rows.end,
                     experts == to_expert_ ? room_to_receive_ : room_to_send_);
    if (!failure.empty()) throw RunError(failure);
  }
  return stored;
}

/// Sets the offsets and sizes of all pieces of a placed exchange for this step. On the sources'
/// side, rows [begin, count) of an expert are where the gate put them. On the experts' side, the
/// rows of each slot start at the beginning of its block; the rows of a part of the batch have the
/// numbers in the block that they have at their source.
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
  const auto at_source = blocks_at(false, bounds_.experts);
  for (size_t i = 0; i < at_source.size(); ++i) {
    const auto e = static_cast<int64_t>(i) % bounds_.experts,
               part = static_cast<int64_t>(i) / bounds_.experts;
    const ops::StoredBlock& block = at_source[i];
    for (const RowRange& range : share_rows(placement, e, place_, by_peer_[i])) {
      if (!(to_expert_ ? sends_to(range.device) : receives_from(range.device))) continue;
      const int64_t begin = std::max(range.begin, block.rows.begin);
      const ops::Rows rows =
          cut_.of({begin, std::max(begin, range.end)}, range.device * slots + range.slot + place_);
      const size_t piece = index(range.device * pieces_.groups + part * slots + range.slot);
      source_offset[piece] = (block.row_0 + rows.begin) * row_bytes_;
      source_bytes[piece] = rows.count() * row_bytes_;
    }
  }
  const auto at_experts = blocks_at(true, slots * group_.size);
  for (size_t i = 0; i < at_experts.size(); ++i) {
    const int64_t part = static_cast<int64_t>(i) / (slots * group_.size);
    const int64_t s = static_cast<int64_t>(i) / group_.size % slots,
                  p = static_cast<int64_t>(i) % group_.size;
    if (!(to_expert_ ? receives_from(p) : sends_to(p))) continue;
    const ops::Rows rows = cut_.of(at_experts[i].rows, place_ * slots + s + p);
    const size_t piece = index(p * pieces_.groups + part * slots + s);
    expert_offset[piece] = (at_experts[i].row_0 + rows.begin) * row_bytes_;
    expert_bytes[piece] = rows.count() * row_bytes_;
  }
}

/// Whether this rank sends to (receives_from: receives from) `peer` in this op's round.
template <class T>
bool CollectiveLayout<T>::sends_to(int64_t peer) const {
  return peer / round_.members(group_) == round_.sends_to(group_, place_) / round_.members(group_);
}

template <class T>
bool CollectiveLayout<T>::receives_from(int64_t peer) const {
  return peer / round_.members(group_) ==
         round_.receives_from(group_, place_) / round_.members(group_);
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
              tensor.name, name_of(tensor.dtype), sizeof(T));
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
  // Pieces are in the order (peer, part of the batch, expert, source); counts have the part first.
  const int64_t per_part = group_.size * per_peer_;
  const auto at_peers = blocks_at(false, per_part), at_experts = blocks_at(true, per_part);
  for (size_t n = 0; n < at_peers.size(); ++n) {
    const auto part = static_cast<int64_t>(n) / per_part, i = static_cast<int64_t>(n) % per_part;
    const size_t at = received_at(i);
    const ops::StoredBlock &peer = at_peers[n], &group = at_experts[index(part * per_part) + at];
    const ops::Rows of_peer = cut_.of(peer.rows, cut_by_peer_[index(i)]);
    const ops::Rows of_group = cut_.of(group.rows, cut_by_group_[at]);
    const Bytes peer_offset = (peer.row_0 + of_peer.begin) * row_bytes_;
    const Bytes group_offset = (group.row_0 + of_group.begin) * row_bytes_;
    const int64_t p = i / per_peer_;
    const size_t piece = index((p * batch_parts_ + part) * per_peer_ + i % per_peer_);
    const int64_t sent = to_expert_ ? of_peer.count() : of_group.count();
    const int64_t received = to_expert_ ? of_group.count() : of_peer.count();
    pieces_.send_bytes[piece] = sends_to(p) ? sent * row_bytes_ : 0;
    pieces_.receive_bytes[piece] = receives_from(p) ? received * row_bytes_ : 0;
    pieces_.send_offset[piece] = to_expert_ ? peer_offset : group_offset;
    pieces_.receive_offset[piece] = to_expert_ ? group_offset : peer_offset;
  }
}

template <class T>
std::vector<UnusedRows> CollectiveLayout<T>::unused_rows() const {
  std::vector<UnusedRows> unused;
  if (by_peer_ == nullptr || part_ || loose_) return unused;
  for (size_t i = 0; i < pieces_.receive_bytes.size(); ++i) {
    if (!receives_from(static_cast<int64_t>(i) / pieces_.groups)) continue;
    const size_t at = to_expert_ ? received_at(static_cast<int64_t>(i)) : i;
    const int64_t used = (to_expert_ ? by_group_ : by_peer_)[at];
    const ops::Rows rows =
        cut_.of({used, capacity_}, (to_expert_ ? cut_by_group_ : cut_by_peer_)[at]);
    if (rows.count() == 0) continue;
    unused.push_back({receive_ + (static_cast<int64_t>(at) * capacity_ + rows.begin) * row_bytes_,
                      rows.count() * row_bytes_});
  }
  return unused;
}

template class CollectiveLayout<float>;
template class CollectiveLayout<double>;

}  // namespace moe
