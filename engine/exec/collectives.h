// Glue between collective ops and a Communicator: which bytes of an op's tensors go where.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/exec/buffers.h"
#include "engine/exec/expert_mover.h"

namespace moe {

struct CollectiveDone {
  CommTimes times;
  Bytes bytes = 0;  // sent by this rank to others
};

/// One collective op of one rank, laid out once and called every step. T is the float type of the
/// run; P ranks and their numbers are those of the op's group, S is 1 or the sources that share a
/// slot already.
///   all_to_all to="expert"  block (p, e) of [P,El,S,C,d] goes to [e][this rank] of p's
///                           [El,P,S,C,d]
///   all_to_all to="source"  the reverse
///   all_to_all placed       rows of an expert to the slots [L,P,C,d] that share them
///   all_to_all with rounds  the same with the blocks p of the round's peers alone
///   exchange_counts         the same for the numbers counts [P,El,S] -> [El,P,S]
///   gather_loads            counts [E] -> [P,E]
///   experts' movements      ExpertMover
///   all_reduce              all tensors as one message, sums in rank order
/// Cut into n chunks, chunk c carries the rows [rows*c/n, rows*(c+1)/n) of every piece, or the
/// elements [n_el*c/n, n_el*(c+1)/n) of the message.
template <class T>
class CollectiveOp {
 public:
  /// rank: this one's among all. Requires: a legal plan.
  CollectiveOp(const Graph& graph, OpId op, const RankBuffers& buffers, void* scratch,
               int64_t rank);
  /// One chunk; called by every rank's lane in the same order with the lane's communicator of all
  /// ranks, an op's chunks in ascending order, others' between them. Throws as the Communicator
  /// does.
  CollectiveDone call(Communicator& all, int64_t chunk = 0, int64_t num_chunks = 1);

 private:
  void lay_out_all_to_all(const Graph& graph, const Op& op, const RankBuffers& buffers);
  void lay_out_placed(const Graph& graph, const Op& op, const RankBuffers& buffers);
  void lay_out_round(const Shape& received, const Round& round);
  void lay_out_exchange(const Graph& graph, const Op& op, const RankBuffers& buffers);
  void lay_out_gather(const Graph& graph, const Op& op, const RankBuffers& buffers);
  void lay_out_pieces(const Shape& received, Bytes piece_bytes);
  size_t received_at(int64_t sent_at) const;
  void lay_out_all_reduce(const Graph& graph, const Op& op, const RankBuffers& buffers);
  void set_sizes();
  void set_placed_sizes();
  void clear_unused_rows();
  const Pieces& pieces_of(int64_t chunk, int64_t num_chunks);
  CommTimes all_reduce(Communicator& comm, const std::string& what, int64_t first, int64_t last);

  struct Part {
    T* in;
    T* out;
    int64_t n;
  };
  std::string name_;
  Group group_;
  int64_t place_;  // of this rank in its group
  void* scratch_;
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
  std::unique_ptr<ExpertMover<T>> mover_;
};

}  // namespace moe
