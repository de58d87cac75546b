// The collectives that move experts as a placement says: copies into shadow slots, gradients back
// to owners, sums over residents, residents to other devices. Which pieces go where is
// placement/expert_transfers.h; here they get addresses, wherever a rank's memory is: a list of
// what the rank does. Where a placement asks for nothing, all ranks know it and nobody calls the
// communicator.
#pragma once

#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/exec/collective_layout.h"
#include "engine/graph/op_def.h"
#include "engine/placement/expert_transfers.h"

namespace moe {

/// A step of an op of Collective::kExperts. All ranks have as many exchanges, in one order.
template <class T>
struct ExpertAction {
  enum class Kind : uint8_t { kCopy, kAdd, kExchange };
  Kind kind;
  T* to = nullptr;  // to = from, or to += from, n elements that do not overlap
  const T* from = nullptr;
  int64_t n = 0;
  Pieces pieces = {};  // of an exchange; offsets from ExpertMover::base()
};

/// What an op of Collective::kExperts did.
struct ExpertsMoved {
  CommTimes times;
  Bytes bytes = 0;  // sent by this rank to others
};

/// One such op of one rank, laid out once and called every step. T is the float type of the run.
template <class T>
class ExpertMover {
 public:
  ExpertMover(const Graph& graph, OpId op, const CollectiveMemory& memory, void* scratch,
              int64_t rank);
  const Group& group() const { return group_; }
  /// By this step's placements. Valid until the next call.
  const std::vector<ExpertAction<T>>& actions();
  std::byte* base() const {
    return reinterpret_cast<std::byte*>(scratch_ != nullptr ? scratch_ : residents_[0].data);
  }
  /// What the actions send to others.
  Bytes bytes() const { return bytes_; }
  /// Does them, on the host. Called by every rank's lane in the same order. Throws as the
  /// Communicator does.
  ExpertsMoved call(Communicator& all);

 private:
  /// A tensor [slots, ...] of experts; its first slot is number `first` of the placement's.
  struct Experts {
    T* data;
    int64_t each;  // elements of a slot
    int64_t first;
    int64_t begin, length;  // of each slot's elements: those that move
  };

  Experts experts(const Graph& graph, TensorId t, const CollectiveMemory& memory, int64_t first,
                  const ExpertShare& share) const;
  Placement placement(size_t input) const;
  const Experts& of(const std::vector<Experts>& all, const ExpertPiece& piece, size_t t) const;
  T* at(const std::vector<Experts>& all, const ExpertPiece& piece, size_t t, int64_t slot) const;
  int64_t length(const ExpertPiece& piece, size_t t) const;

  void copy_shadows(const Placement& placement);
  void give_back(const Placement& placement);
  void begin_results();
  void sum(const Placement& placement);
  void migrate(const Placement& now, const Placement& next);
  void copy(T* to, const T* from, int64_t n);

  using Pointers = std::vector<T*>;  // by piece and tensor; null where this rank has no part
  /// Room in scratch for the pieces of which wanted(piece) is true.
  template <class Wanted>
  Pointers lay_out(const std::vector<ExpertPiece>& pieces, Wanted wanted, T*& free) const;
  /// One exchange of pieces; send(i, tensor) and receive(i, tensor) give the addresses of piece i
  /// where this rank has part in it. There is none where there are no pieces.
  template <class Send, class Receive>
  void exchange(const std::vector<ExpertPiece>& pieces, Send send, Receive receive);
  /// An exchange whose pieces are added to what lies at to(i, tensor). free: room for them.
  template <class From, class To>
  void exchange_and_add(const std::vector<ExpertPiece>& pieces, From from, To to, T* free);

  std::string name_;
  Payload payload_;
  PlacementBounds bounds_;
  Group group_;
  int64_t device_;
  int64_t per_node_ = 1;             // devices
  size_t tensors_ = 0;               // of an expert
  std::vector<ShadowRange> ranges_;  // one where no shadows move
  std::vector<const int32_t*> placements_;
  std::vector<Experts> residents_, shadows_, results_;  // by range and tensor
  T* scratch_;
  std::vector<ExpertAction<T>> actions_;
  Bytes bytes_ = 0;
};

}  // namespace moe
