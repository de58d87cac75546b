// The collectives that move experts as a placement requires: send an expert's parameters to the
// devices with a copy (shadow slots), return gradients to owners, sum gradients over residents,
// migrate residents to other devices. Which pieces move is computed in
// placement/expert_transfers.h; here each piece gets its addresses, in memory of the CPU or of a
// device, as a list of actions for this rank. When a placement requires no transfer, no rank calls
// the communicator, since all ranks have the same placement.
#pragma once

#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/exec/collective_layout.h"
#include "engine/graph/op_def.h"
#include "engine/placement/expert_transfers.h"

namespace moe {

/// One action of an op of Collective::kExperts. All ranks have the same number of exchanges, in the
/// same order.
template <class T>
struct ExpertAction {
  enum class Kind : uint8_t { kCopy, kAdd, kExchange };
  Kind kind;
  T* to = nullptr;  // kCopy: to = from, kAdd: to += from, for n elements that do not overlap
  const T* from = nullptr;
  int64_t n = 0;
  Pieces pieces = {};  // of kExchange; offsets are relative to ExpertMover::base()
};

/// The result of an op of Collective::kExperts.
struct ExpertsMoved {
  CommTimes times;
  Bytes bytes = 0;  // sent by this rank to other ranks
};

/// One op of Collective::kExperts on one rank, laid out once and called every step. T is the float
/// type of the run.
template <class T>
class ExpertMover {
 public:
  ExpertMover(const Graph& graph, OpId op, const CollectiveMemory& memory, void* scratch,
              int64_t rank);
  const Group& group() const { return group_; }
  /// The actions for this step's placements. The reference is valid until the next call.
  const std::vector<ExpertAction<T>>& actions();
  /// The address to which offsets in ExpertAction::pieces are relative.
  std::byte* base() const {
    return reinterpret_cast<std::byte*>(scratch_ != nullptr ? scratch_ : residents_[0].data);
  }
  /// Bytes that the actions send to other ranks.
  Bytes bytes() const { return bytes_; }
  /// Executes the actions on the CPU. Called by every rank's lane in the same order. Throws as the
  /// Communicator does.
  ExpertsMoved call(Communicator& all);

 private:
  /// A tensor [slots, ...] with one slot per expert; its first slot is slot `first` of the
  /// placement.
  struct Experts {
    T* data;
    int64_t each;  // elements per slot
    int64_t first;
    int64_t begin, length;  // the range of each slot's elements that is moved
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

  /// Addresses in scratch memory, indexed by piece and tensor; null where lay_out() assigned none.
  using Pointers = std::vector<T*>;
  /// Assigns scratch memory, from `free` on, to each piece for which wanted(piece) is true, and
  /// moves `free` behind it.
  template <class Wanted>
  Pointers lay_out(const std::vector<ExpertPiece>& pieces, Wanted wanted, T*& free) const;
  /// Adds one exchange of pieces. send(i, tensor) and receive(i, tensor) return the addresses of
  /// piece i, and are called only where this rank sends or receives it. Adds nothing when there are
  /// no pieces.
  template <class Send, class Receive>
  void exchange(const std::vector<ExpertPiece>& pieces, Send send, Receive receive);
  /// Adds an exchange whose received pieces are added to the values at to(i, tensor). `free` is
  /// scratch memory for the received pieces.
  template <class From, class To>
  void exchange_and_add(const std::vector<ExpertPiece>& pieces, From from, To to, T* free);

  std::string name_;
  Payload payload_;
  PlacementBounds bounds_;
  Group group_;
  int64_t device_;
  int64_t per_node_ = 1;             // devices per node
  size_t tensors_ = 0;               // tensors per expert
  std::vector<ShadowRange> ranges_;  // one empty range when the op moves no shadows
  std::vector<const int32_t*> placements_;
  std::vector<Experts> residents_, shadows_, results_;  // indexed by range and tensor
  T* scratch_;
  std::vector<ExpertAction<T>> actions_;
  Bytes bytes_ = 0;
};

}  // namespace moe
