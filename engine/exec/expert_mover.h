// The collectives that move experts as a placement says: copies into shadow slots, gradients back
// to owners, sums over residents, residents to other devices. Which pieces go where is
// placement/transfers.h; here they get addresses. Where a placement asks for nothing, all ranks
// know it and nobody calls the communicator.
#pragma once

#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/exec/buffers.h"
#include "engine/placement/transfers.h"

namespace moe {

/// What an op of Collective::kExperts did.
struct ExpertsMoved {
  CommTimes times;
  Bytes bytes = 0;  // sent by this rank to others
};

/// One such op of one rank, laid out once and called every step. T is the float type of the run.
template <class T>
class ExpertMover {
 public:
  ExpertMover(const Graph& graph, OpId op, const RankBuffers& buffers, void* scratch, int64_t rank);
  /// Called by every rank's lane in the same order. Throws as the Communicator does.
  ExpertsMoved call(Communicator& all);

 private:
  /// A tensor [slots, ...] of experts; its first slot is number `first` of the placement's.
  struct Experts {
    T* data;
    int64_t each;  // elements of a slot
    int64_t first;
    int64_t begin, length;  // of each slot's elements: those that move
  };

  Experts experts(const Graph& graph, TensorId t, const RankBuffers& buffers, int64_t first,
                  const ExpertShare& share) const;
  Placement placement(size_t input) const;
  const Experts& of(const std::vector<Experts>& all, const ExpertPiece& piece, size_t t) const;
  T* at(const std::vector<Experts>& all, const ExpertPiece& piece, size_t t, int64_t slot) const;
  int64_t length(const ExpertPiece& piece, size_t t) const;

  void copy(Communicator& comm, const Placement& placement);
  void give_back(Communicator& comm, const Placement& placement);
  void begin_results();
  void sum(Communicator& comm, const Placement& placement);
  void migrate(Communicator& comm, const Placement& now, const Placement& next);

  using Pointers = std::vector<T*>;  // by piece and tensor; null where this rank has no part
  /// Room in scratch for the pieces of which wanted(piece) is true.
  template <class Wanted>
  Pointers lay_out(const std::vector<ExpertPiece>& pieces, Wanted wanted, T*& free) const;
  /// One exchange of pieces; send(i, tensor) and receive(i, tensor) give the addresses of piece i
  /// where this rank has part in it. Nothing is called where there are no pieces.
  template <class Send, class Receive>
  void exchange(Communicator& comm, const std::vector<ExpertPiece>& pieces, Send send,
                Receive receive);
  /// An exchange whose pieces are added to what lies at to(i, tensor). free: room for them.
  template <class From, class To>
  void exchange_and_add(Communicator& comm, const std::vector<ExpertPiece>& pieces, From from,
                        To to, T* free);

  std::string name_, kind_;
  PlacementBounds bounds_;
  Group group_;
  int64_t device_;
  int64_t per_node_ = 1;             // devices
  size_t tensors_ = 0;               // of an expert
  std::vector<ShadowRange> ranges_;  // one where no shadows move
  std::vector<const int32_t*> placements_;
  std::vector<Experts> residents_, shadows_, results_;  // by range and tensor
  T* scratch_;
  ExpertsMoved moved_;
  bool called_ = false;
};

}  // namespace moe
