// Which bytes of a collective op's tensors go where, for one rank, wherever its memory is: laid out
// once, sized by the step's counts. Not here: who moves them, and the movements of experts
// (expert_mover.h).
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/graph/graph.h"
#include "engine/placement/placement.h"

namespace moe {

/// Where a rank's tensors lie. numbers: on the host, current when read_counts() is called; both
/// give null for an invalid id.
struct CollectiveMemory {
  std::function<void*(TensorId)> data;
  std::function<const int32_t*(TensorId)> numbers;
  Bytes element_bytes;  // of floats, as dtype_bytes() takes it
};

/// Elements [first, last) of a message.
struct ElementRange {
  int64_t first, last;
};

/// Room that an exchange leaves without rows.
struct UnusedRows {
  std::byte* data;
  Bytes bytes;
};

/// T is the float type of sums; P ranks and their numbers are those of the op's group, S is 1 or
/// the sources that share a slot already.
///   all_to_all to="expert"  block (p, e) of [P,El,S,C,d] goes to [e][this rank] of p's
///                           [El,P,S,C,d]
///   all_to_all to="source"  the reverse
///   all_to_all placed       rows of an expert to the slots [L,P,C,d] that share them
///   all_to_all with rounds  the same with the blocks p of the round's peers alone
///   exchange_counts         the same for the numbers counts [P,El,S] -> [El,P,S]
///   gather_loads            counts [E] -> [P,E]
///   all_reduce              all tensors as one message, sums in rank order
/// Cut into n chunks, chunk c carries the rows [rows*c/n, rows*(c+1)/n) of every piece, or the
/// elements [n_el*c/n, n_el*(c+1)/n) of the message.
template <class T>
class CollectiveLayout {
 public:
  /// A tensor of a sum.
  struct Part {
    T* in;
    T* out;
    int64_t n;
  };

  /// rank: this one's among all. Requires: a legal plan; an op of another kind than kExperts.
  CollectiveLayout(const Graph& graph, OpId op, const CollectiveMemory& memory, int64_t rank);

  const Group& group() const { return group_; }
  /// An all-reduce; an exchange of pieces otherwise.
  bool sums() const { return !parts_.empty(); }

  const std::byte* send() const { return send_; }
  std::byte* receive() const { return receive_; }
  /// Takes the sizes from this step's counts. Called before the first chunk.
  void read_counts();
  /// Valid until the next call.
  const Pieces& pieces(int64_t chunk, int64_t num_chunks);
  /// What this rank sends to others.
  Bytes bytes_to_others(const Pieces& pieces) const;
  /// To be cleared after the last chunk.
  std::vector<UnusedRows> unused_rows() const;

  const std::vector<Part>& parts() const { return parts_; }
  ElementRange elements(int64_t chunk, int64_t num_chunks) const;
  /// f(part, its first element in the range, how many, their place in the range).
  template <class F>
  void each_part(ElementRange range, F f) const {
    int64_t begin = 0;
    for (const Part& part : parts_) {
      const int64_t from = std::max(range.first, begin), to = std::min(range.last, begin + part.n);
      if (from < to) f(part, from - begin, to - from, from - range.first);
      begin += part.n;
    }
  }
  /// A ring sends 2 (N-1)/N of the message from every rank.
  Bytes bytes_of_sum(ElementRange range) const {
    const auto sent = [&](int64_t n) {
      return 2 * n * static_cast<int64_t>(sizeof(T)) * (group_.size - 1) / group_.size;
    };
    return sent(range.last) - sent(range.first);
  }

 private:
  void lay_out_all_to_all(const Graph& graph, const Op& op, const CollectiveMemory& memory);
  void lay_out_placed(const Graph& graph, const Op& op, const CollectiveMemory& memory);
  void lay_out_round(const Shape& received, const Round& round);
  void lay_out_exchange(const Graph& graph, const Op& op, const CollectiveMemory& memory);
  void lay_out_gather(const Graph& graph, const Op& op, const CollectiveMemory& memory);
  void lay_out_pieces(const Shape& received, Bytes piece_bytes);
  size_t received_at(int64_t sent_at) const;
  void lay_out_all_reduce(const Graph& graph, const Op& op, const CollectiveMemory& memory);
  void set_sizes();
  void set_placed_sizes();
  const Pieces& pieces_of(int64_t chunk, int64_t num_chunks);

  Group group_;
  int64_t place_;            // of this rank in its group
  std::vector<Part> parts_;  // all_reduce
  int64_t num_elements_ = 0;
  // all_to_all and exchange_counts
  const std::byte* send_ = nullptr;
  std::byte* receive_ = nullptr;
  Pieces pieces_, chunk_;  // of the whole, of a chunk
  int64_t row_bytes_ = 0, capacity_ = 0, sources_ = 1;
  // Rows by piece, as blocks lie on the sources' side and as they lie on the experts'
  // (received_at); null where every row counts.
  const int32_t* by_peer_ = nullptr;
  const int32_t* by_group_ = nullptr;
  // Where a part of the batch begins; null: at row 0.
  const int32_t* begin_by_peer_ = nullptr;
  const int32_t* begin_by_group_ = nullptr;
  bool to_expert_ = true;
  bool part_ = false;   // rows of other parts are left as they are
  bool loose_ = false;  // and so are unused ones
  // Of a placed exchange.
  const int32_t* placement_ = nullptr;
  PlacementBounds bounds_;
};

}  // namespace moe
