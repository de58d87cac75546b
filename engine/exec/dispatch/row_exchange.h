// An exchange of rows of a training step under a dispatcher, on ranks of the CPU: which rows are of
// which token, the weights that experts' ranks apply, and the sums of tokens. The hops are in
// mover.h.
#pragma once

#include "engine/exec/collective_layout.h"
#include "engine/exec/dispatch/mover.h"
#include "engine/plan.h"

namespace moe {

/// One op of one rank, laid out once and called every step. T is the float type of the run.
/// Before the rows, each rank tells all others for which of its choices it has rows and, where
/// experts' ranks apply them, the weights; these bytes are not counted.
///   to the experts  a row that stands for several choices is copied to each of them [times its
///                   weight]; with attr dots, the product of each row and of the expert's result
///                   (input `results`) returns to the choice
///   to the sources  where rows are added on the way, the sum of a token's rows [times their
///                   weights] is put into the first of them, and the others are zeros
template <class T>
class RowExchange {
 public:
  /// Requires: the pass dispatched has prepared the op (its input choice_slot).
  RowExchange(const Plan& plan, OpId op, const CollectiveMemory& memory);

  struct Done {
    CommTimes times;
    Bytes bytes = 0;  // of rows, sent to other ranks
  };
  /// Moves the rows of `pieces`, which are those of an all-to-all without a dispatcher. `first`:
  /// whether they are the op's first chunk.
  Done call(Communicator& comm, const std::string& what, const std::byte* send, std::byte* receive,
            const Pieces& pieces, bool first);

 private:
  /// What all ranks know of the rows of a call. Choices are numbered by rank, token and slot.
  struct Known;
  Known tell(Communicator& comm, const std::string& what, const Pieces& pieces) const;
  void to_experts(dispatch::Mover<T>& mover, const Known& known, const std::byte* from,
                  std::byte* to, std::vector<T>& dots) const;
  void to_sources(dispatch::Mover<T>& mover, const Known& known, const std::byte* from,
                  std::byte* to) const;

  const dispatch::Route& route_;
  int64_t ranks_per_node_, hidden_, row_bytes_, tokens_, topk_;
  bool to_expert_;
  dispatch::Wire stored_;       // element type of rows in memory; fp32 stands for T
  const int32_t* choice_slot_;  // [tokens, topk]: the row of a choice at the source; -1: none
  const T* weight_;             // [tokens, topk]; null: none
  const std::byte* results_;    // rows at the experts; null: no dots
  T* dots_;                     // [tokens, topk]
};

}  // namespace moe
