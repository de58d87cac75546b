// RoutedStep: how the routing of one step changes the work of its ops on each rank. It computes
// which fraction of an op's rows hold a token, the bytes of each irregular all-to-all between each
// pair of ranks, and the bytes of experts that move because of a placement. The rows of a source
// rank are its choices that found a slot; the rows of a device are those that the placement assigns
// to its slots. A part of a batch gets an even share of the rows. With attr static_rows = n of the
// op place, every copy of an expert that gets rows computes n rows, of which those without a token
// are padding and are not sent. Times are not here but in StepReplay.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/group.h"
#include "engine/cost/cost_model.h"
#include "engine/graph/graph.h"
#include "engine/placement/placement.h"
#include "engine/routing/expert_counts.h"

namespace moe {

/// An MoE layer of a micro-batch as described by its gate op; sizes are per rank.
struct MoeLayer {
  int32_t block = 0;  // Op::layer
  int32_t micro = 0;  // Op::micro
  int64_t tokens = 0;
  int64_t experts = 0;
  int64_t k = 0;
  int64_t capacity = 0;  // slots per expert
  /// Ranks in a row that route their tokens together, and the slots per expert that they share.
  int64_t together = 1, routed_capacity = 0;
};
/// Returns the MoE layers, ordered by micro-batch, then block. Among those of one micro-batch,
/// their indices are the layer numbers that routing models use.
std::vector<MoeLayer> moe_layers(const Graph& graph);

/// Returns the choices that find a slot: for each expert at most `capacity` of each source rank, or
/// of each `together` ranks in a row, which drop in proportion.
ExpertCounts kept_rows(ExpertCounts choices, int64_t capacity, int64_t together = 1);

/// Whose rows determine the work of an op: those of the rank's own tokens, or those of its experts.
enum class Side : uint8_t { kSource, kExperts };

class RoutedStep {
 public:
  /// `holders`: the group of ranks that together hold all experts (Axis::kEp).
  /// by_block: whether RoutedWork::blocks is given for compute ops at the experts. Keeps a
  /// reference to the graph.
  RoutedStep(const Graph& graph, const Group& holders, bool by_block = false);
  RoutedStep(const RoutedStep&) = delete;

  const std::vector<MoeLayer>& layers() const { return layers_; }
  const Group& holders() const { return holders_; }
  /// Returns the placement of each layer before the first step: plain expert parallelism.
  std::vector<Placement> first_placements() const;

  /// Computes the work of a step. All arguments are indexed as layers(): choices of all ranks that
  /// found a slot, and the placement within each group of holders in this step and in the next one.
  /// Throws UserError if `kept` has another number of ranks or experts than the graph, and for a
  /// copy that gets more than static_rows rows.
  void route(const std::vector<ExpertCounts>& kept, const std::vector<Placement>& placements,
             const std::vector<Placement>& next);
  /// As above, with the same placements in the next step, so that no expert moves.
  void route(const std::vector<ExpertCounts>& kept, const std::vector<Placement>& placements) {
    route(kept, placements, placements);
  }
  /// From now on route() takes the bytes of exchanges of a layer's rows, [ranks, ranks], from
  /// `bytes`: it adds those of all rows to zeros.
  using BytesBetween =
      std::function<void(size_t layer, bool to_expert, std::vector<double>& bytes)>;
  void take_bytes(BytesBetween bytes) { bytes_between_ = std::move(bytes); }

  // The following describe the routing of the last call of route().

  /// The message of ops::no_room() for the first device without room for its packed rows, or "".
  const std::string& no_room() const { return no_room_; }
  /// Rows that the experts of each layer's busiest rank compute, divided by the mean over ranks,
  /// both summed over layers; 1 without rows. Padding that is the same on all ranks is left out.
  double imbalance() const;
  /// Whether all ranks have the same work and send equally many bytes; false if an expert moves.
  bool alike() const { return alike_; }
  /// Returns the work of `op` on `rank`, or in the group of `rank` if it is a collective; null for
  /// an op that does not depend on the routing. Valid until the next route().
  const RoutedWork* routed_work(OpId op, int32_t rank) const;
  /// Returns the bytes that a rank sends to other ranks in an irregular all-to-all, or in all steps
  /// of an op that moves experts. Requires: RoutedWork::bytes or RoutedWork::steps of
  /// routed_work(op) is set.
  Bytes sent_bytes(OpId op, int32_t rank) const;
  /// Ops whose work or bytes depend on the routing, in ascending order.
  const std::vector<OpId>& ops() const { return ops_; }

 private:
  struct Rows {
    std::vector<int64_t> sent;  // [source rank, device], with rows that stay on their rank
    std::vector<int64_t> got;   // rows for a device's experts, before ranks over etp exchange them
    std::vector<RoutedWork> source, experts;  // indexed by rank
    std::vector<BlockFills> blocks;           // indexed by rank; empty unless by_block
    bool source_used = false, experts_used = false;
    int64_t room = 0;  // rows for which a device has room, if rows are packed (Tensor::stored_rows)
    int64_t static_rows = 0;  // attr of the layer's op place; 0: copies compute the rows they get
    std::vector<int32_t> exchanges, rounds;  // those of the layer, as indices of the lists below
  };
  /// A set of all-to-all ops that move the same bytes.
  struct Exchange {
    size_t layer;
    Group group;
    bool to_expert;
    Round round;       // as at the sources, also on the way back
    double share;      // the op's share of the rows of its round
    double row_bytes;  // bytes per row, times the share
    int64_t places;    // number of slots for rows on a rank
    bool weights;      // one number per row, which a dispatcher sends in the row
    int64_t room;      // as Rows::room, of the op's output
    bool repeated;     // between ranks over etp
    std::vector<double> matrix;
    std::vector<RoutedWork> routed;  // indexed by group
    std::vector<Bytes> sent;         // bytes to other ranks, indexed by rank
  };
  /// An op that moves experts in one or more steps.
  struct Movement {
    OpId op;
    size_t layer;
    // Bytes per expert in all tensors of the op, indexed by range (ShadowRange).
    std::vector<double> expert_bytes;
    std::vector<std::vector<double>> steps;
    RoutedWork routed;
    std::vector<Bytes> sent;  // bytes to other ranks, indexed by rank
  };
  /// The rows that the experts of each rank get in one round of an exchange.
  struct RoundRows {
    size_t layer;
    Round round;
    std::vector<RoutedWork> experts;  // indexed by rank
    std::vector<BlockFills> blocks;   // as in Rows
  };
  struct Entry {
    int32_t layer = -1;
    int32_t exchange = -1;
    int32_t round = -1;
    int32_t movement = -1;
    Side side = Side::kSource;
  };

  void add(OpId op);
  int32_t layer_of(OpId op) const;
  int32_t exchange_of(OpId op, size_t layer);
  int32_t movement_of(OpId op, size_t layer);
  int32_t round_of_experts(OpId op, size_t layer);
  void move(Movement& movement, const Placement& now, const Placement& next) const;
  /// Returns the rows that copy `slot` of a device computes as padding, if it gets `rows`.
  int64_t padding(size_t layer, const Placement& placement, int64_t slot, int64_t rows) const;
  void route_layer(size_t layer, const ExpertCounts& kept, const Placement& placement);
  /// Sets no_room_ if a rank has no room for its rows in this layer.
  void check_room(size_t layer, size_t rank, int64_t rows, int64_t room);
  /// Gives each rank over etp the rows at the experts of all of them.
  void join_split(size_t layer, std::vector<int64_t>& of_device);
  void fill_matrix(Exchange& exchange);
  /// Returns the rows of the exchange from rank to rank, [ranks, ranks], with those that stay.
  std::vector<int64_t> rows_between(const Exchange& exchange) const;
  void fill_round(RoundRows& rows) const;
  /// Returns the blocks of a device in a round: those of the sources that send to it.
  BlockFills blocks_in(const RoundRows& rows, int64_t device) const;
  bool ranks_alike() const;

  const Graph& graph_;
  const size_t ranks_;
  const Group holders_;
  Group split_ = {1, 1};  // the ranks over which etp splits products of experts
  const bool by_block_;
  std::vector<MoeLayer> layers_;
  std::map<std::pair<int32_t, int32_t>, int32_t> number_;  // in layers_, by block and micro-batch
  std::vector<Rows> rows_;                                 // indexed by layer
  std::vector<Exchange> exchanges_;
  std::vector<Movement> movements_;
  std::vector<RoundRows> rounds_;
  std::vector<Entry> entries_;  // indexed by op
  std::vector<OpId> ops_;
  BytesBetween bytes_between_;  // may be null
  bool alike_ = true;
  std::string no_room_;
};

}  // namespace moe
