// RoutedStep: what a routing makes of the ops of one step, by rank: the share of its rows that hold
// a token, and the bytes of every irregular all-to-all from rank to rank. The rows of a source are
// those of its choices that find a place; the rows of a device those that a placement gives to its
// slots; and the experts that placements make travel. Parts of a batch take their share of the
// rows, spread evenly. Not here: time.
#pragma once

#include <vector>

#include "engine/base/group.h"
#include "engine/cost/cost_model.h"
#include "engine/graph/graph.h"
#include "engine/placement/placement.h"
#include "engine/routing/expert_counts.h"

namespace moe {

/// An MoE layer as its gate has it; sizes of one rank.
struct MoeLayer {
  int32_t block = 0;  // Op::layer
  int64_t tokens = 0;
  int64_t experts = 0;
  int64_t k = 0;
  int64_t capacity = 0;  // places per expert
};
/// By block: the layers that routing models count from 0.
std::vector<MoeLayer> moe_layers(const Graph& graph);

/// What each source keeps of its choices for each expert: at most the capacity.
ExpertCounts kept_rows(ExpertCounts choices, int64_t capacity);

/// Whose rows per op's work follows: those of the rank's own tokens, or of its experts.
enum class Side : uint8_t { kSource, kExperts };

class RoutedStep {
 public:
  /// holders: ranks that hold all experts together (ModelSpec::expert_group). Keeps a reference to
  /// the graph.
  RoutedStep(const Graph& graph, const Group& holders);
  RoutedStep(const RoutedStep&) = delete;

  const std::vector<MoeLayer>& layers() const { return layers_; }
  /// Expert parallelism as it begins, for every layer.
  std::vector<Placement> first_placements() const;

  /// Takes a step's routing: kept rows of all ranks, and who holds what in each group of holders,
  /// by layer, in this step and in the next one. Throws UserError for loads of other sizes.
  void route(const std::vector<ExpertCounts>& kept, const std::vector<Placement>& placements,
             const std::vector<Placement>& next);
  /// Nothing moves to the next step.
  void route(const std::vector<ExpertCounts>& kept, const std::vector<Placement>& placements) {
    route(kept, placements, placements);
  }

  // Of the routing taken last.

  /// All ranks compute and send the same.
  bool alike() const { return alike_; }
  /// Null for an op that no routing changes. Stays where it is until route().
  const RoutedWork* routed_work(OpId op, int32_t rank) const;
  /// What a rank sends to others in an irregular all-to-all or a movement of experts. Requires:
  /// routed_work(op) has bytes or steps.
  Bytes sent_bytes(OpId op, int32_t rank) const;
  /// Ops whose work or bytes follow the routing, ascending.
  const std::vector<OpId>& ops() const { return ops_; }

 private:
  struct Rows {
    std::vector<int64_t> sent;  // [ranks, ranks]: from a source to a device, itself included
    std::vector<RoutedWork> source, experts;  // by rank
    bool source_used = false, experts_used = false;
  };
  /// All-to-alls that move the same bytes.
  struct Exchange {
    size_t layer;
    Group group;
    bool to_expert;
    double row_bytes;  // of a part: its share of a row
    int64_t places;    // rows that the slots of a rank have room for
    std::vector<double> matrix;
    RoutedWork routed;
    std::vector<Bytes> sent;  // by rank, to others
  };
  /// An op that moves experts, step by step.
  struct Movement {
    OpId op;
    size_t layer;
    std::vector<double> expert_bytes;  // of all of the op's tensors, by range
    std::vector<std::vector<double>> steps;
    RoutedWork routed;
    std::vector<Bytes> sent;  // by rank, to others
  };
  struct Entry {
    int32_t layer = -1;
    int32_t exchange = -1;
    int32_t movement = -1;
    Side side = Side::kSource;
  };

  void add(OpId op);
  int32_t layer_of(OpId op) const;
  int32_t exchange_of(OpId op, size_t layer);
  int32_t movement_of(OpId op, size_t layer);
  void move(Movement& movement, const Placement& now, const Placement& next) const;
  void route_layer(size_t layer, const ExpertCounts& kept, const Placement& placement);
  void fill_matrix(Exchange& exchange) const;
  bool ranks_alike() const;

  const Graph& graph_;
  const size_t ranks_;
  const Group holders_;
  std::vector<MoeLayer> layers_;
  std::vector<Rows> rows_;  // by layer
  std::vector<Exchange> exchanges_;
  std::vector<Movement> movements_;
  std::vector<Entry> entries_;  // by op
  std::vector<OpId> ops_;
  bool alike_ = true;
};

}  // namespace moe
