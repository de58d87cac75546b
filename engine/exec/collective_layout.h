// Which bytes of a collective op's tensors one rank sends and receives, and at which addresses,
// whether its memory is that of the CPU or of a device. The layout is made once; its sizes are read
// from the counts of each step. Not here: how the bytes are transferred (comm/, device/comm.h), and
// the collectives that move experts (expert_mover.h).
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/graph/graph.h"
#include "engine/ops/stored_rows.h"
#include "engine/placement/placement.h"

namespace moe {

/// Addresses of a rank's tensors. `data` returns a tensor's address on the CPU or device of the
/// rank, `numbers` the CPU address of an index tensor, whose values must be those of this step when
/// read_counts() is called. Both functions return null for an invalid id.
struct CollectiveMemory {
  std::function<void*(TensorId)> data;
  std::function<const int32_t*(TensorId)> numbers;
  Bytes element_bytes;  // per float, as dtype_bytes() takes it
};

/// The elements [first, last) of the message of an all-reduce (all its tensors in sequence).
struct ElementRange {
  int64_t first, last;
};

/// Rows of a received block that no peer has filled in this step.
struct UnusedRows {
  std::byte* data;
  Bytes bytes;
};

/// The layout of one collective op on one rank. T is the float type of sums. Ranks are numbered
/// within the op's group, P is its size. El is the number of local experts, C the capacity, d the
/// elements per row. S is the number of source ranks whose rows an earlier all-to-all of a
/// hierarchical exchange has already brought to each rank, 1 for a plain exchange.
///   all_to_all to="expert"  block (p, e) of [P,El,S,C,d] goes to [e][this rank] of p's
///                           [El,P,S,C,d]
///   all_to_all to="source"  the reverse
///   all_to_all placed       (op with a placement) each expert's rows, to those of the L slots per
///                           device that hold the expert: [E,C,d] -> [L,P,C,d]
///   all_to_all with rounds  as above, for the blocks p of the round's peers only
///   all_to_all packed       as above, but only rows in use are stored (ops/stored_rows.h)
///   exchange_counts         as all_to_all, for row counts: [P,El,S] -> [El,P,S]
///   gather_loads            row counts of all E experts: [E] -> [P,E]
///   all_reduce              all tensors as one message, sums in rank order
/// When the transfer is cut into n chunks, chunk c carries the rows [rows*c/n, rows*(c+1)/n) of
/// every piece, or the elements [n_el*c/n, n_el*(c+1)/n) of the message.
template <class T>
class CollectiveLayout {
 public:
  /// One tensor of an all-reduce, with n elements.
  struct Part {
    T* in;
    T* out;
    int64_t n;
  };

  /// `rank` is the number of this rank among all ranks, not within the group. Requires: a legal
  /// plan; an op that is not of Collective::kExperts.
  CollectiveLayout(const Graph& graph, OpId op, const CollectiveMemory& memory, int64_t rank);

  const Group& group() const { return group_; }
  /// Whether the op is an all-reduce; otherwise it exchanges pieces.
  bool sums() const { return !parts_.empty(); }

  const std::byte* send() const { return send_; }
  std::byte* receive() const { return receive_; }
  /// Reads the sizes of the pieces from this step's counts. Called before the first chunk. Throws
  /// RunError naming layer and rank if packed rows have no room for the rows of this step.
  void read_counts();
  /// The pieces of a chunk. The reference is valid until the next call.
  const Pieces& pieces(int64_t chunk, int64_t num_chunks);
  /// Bytes of `pieces` that this rank sends to other ranks.
  Bytes bytes_to_others(const Pieces& pieces) const;
  /// Rows that must be set to 0 after the last chunk.
  std::vector<UnusedRows> unused_rows() const;

  const std::vector<Part>& parts() const { return parts_; }
  ElementRange elements(int64_t chunk, int64_t num_chunks) const;
  /// Calls f(part, first, n, to) for each tensor of the all-reduce with elements in `range`. These
  /// are n elements: the first is element `first` of the tensor and element `to` of the range.
  template <class F>
  void each_part(ElementRange range, F f) const {
    int64_t begin = 0;
    for (const Part& part : parts_) {
      const int64_t from = std::max(range.first, begin), to = std::min(range.last, begin + part.n);
      if (from < to) f(part, from - begin, to - from, from - range.first);
      begin += part.n;
    }
  }
  /// Bytes that this rank sends for the elements of `range`. In a ring of N, every rank sends 2
  /// (N-1)/N of the message.
  Bytes bytes_of_sum(ElementRange range) const {
    const auto sent = [&](int64_t n) {
      return 2 * n * static_cast<int64_t>(sizeof(T)) * (group_.size - 1) / group_.size;
    };
    return sent(range.last) - sent(range.first);
  }

 private:
  void lay_out_all_to_all(const Graph& graph, const Op& op, const CollectiveMemory& memory,
                          int64_t rank);
  void lay_out_placed(const Graph& graph, const Op& op, const CollectiveMemory& memory);
  void lay_out_round(const Shape& received, const Round& round);
  void lay_out_exchange(const Graph& graph, const Op& op, const CollectiveMemory& memory);
  void lay_out_gather(const Graph& graph, const Op& op, const CollectiveMemory& memory);
  void lay_out_pieces(const Shape& received, Bytes piece_bytes);
  size_t received_at(int64_t sent_at) const;
  void lay_out_all_reduce(const Graph& graph, const Op& op, const CollectiveMemory& memory);
  void lay_out_counted(const Graph& graph, const Op& op, const CollectiveMemory& memory,
                       int64_t rank);
  void set_sizes();
  void set_placed_sizes();
  bool sends_to(int64_t peer) const;
  bool receives_from(int64_t peer) const;
  const Pieces& pieces_of(int64_t chunk, int64_t num_chunks);
  std::vector<ops::StoredBlock> blocks_at(bool experts, int64_t blocks) const;
  void resize_pieces(int64_t pieces);

  Group group_;
  int64_t place_;  // number of this rank within its group
  int64_t rank_;
  int32_t block_;            // the model's block
  std::vector<Part> parts_;  // of an all_reduce
  int64_t num_elements_ = 0;
  // The following members are of all ops except all_reduce.
  const std::byte* send_ = nullptr;
  std::byte* receive_ = nullptr;
  Pieces pieces_, chunk_;  // of the whole op, of one chunk
  int64_t row_bytes_ = 0, capacity_ = 0, sources_ = 1;
  int64_t per_peer_ = 0;  // pieces per peer and part of the batch: experts times sources_
  // Rows of each piece, in the order of the blocks on the sources' side and in their order on the
  // experts' side (received_at); null where every row of a block is transferred.
  const int32_t* by_peer_ = nullptr;
  const int32_t* by_group_ = nullptr;
  // For an op that is cut along the batch: the first row of each piece that is transferred; null
  // means row 0.
  const int32_t* begin_by_peer_ = nullptr;
  const int32_t* begin_by_group_ = nullptr;
  bool to_expert_ = true;
  // Of a part along the rows in use or of a round: the cut, and for each piece the sum of slot and
  // source by which it takes its rows, in the order of by_peer_ and of by_group_.
  ops::RowCut cut_;
  Round round_;
  std::vector<int64_t> cut_by_peer_, cut_by_group_;
  bool part_ = false;   // an op cut along the batch: rows of other parts stay unchanged
  bool loose_ = false;  // rows that no peer fills stay unchanged
  // Of packed rows: for how many rows the input and the output have room.
  bool packed_ = false;
  int64_t batch_parts_ = 1;  // parts of the batch that the counts state one by one
  int64_t room_to_send_ = 0, room_to_receive_ = 0;
  // The following members are of a placed exchange.
  const int32_t* placement_ = nullptr;
  PlacementBounds bounds_;
};

}  // namespace moe
