// What the parts of an inference step take, each alone, for sim/inference.h: compute by the
// roofline over the ops of the model's forward graph, an expert by a graph of its own for so many
// rows, all-to-alls by closed form of the bytes that really move. Not here: routing, placement, who
// waits for whom.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "engine/cost/cost_model.h"
#include "engine/model/model.h"
#include "engine/placement/placement.h"

namespace moe {

class InferenceCosts {
 public:
  /// Throws UserError for a model or a cluster that check() refuses, a model without MoE layers.
  InferenceCosts(const ModelSpec& model, const Cluster& cluster);

  struct MoeLayer {
    Nanoseconds before = 0;    // from the MoE layer before, or the embedding, to the gate
    Nanoseconds gate = 0;      // with the layer norm before it
    Nanoseconds dispatch = 0;  // local part of either exchange
    Nanoseconds combine = 0;
  };
  const std::vector<MoeLayer>& layers() const { return layers_; }
  Nanoseconds after_layers() const { return after_; }
  /// An expert of so many rows; 0 for none.
  Nanoseconds expert_ns(int64_t rows) const;
  /// The slowest device, whose experts run one after another, each device from ready[device] on.
  /// rows [devices, slots, sources] as rows_by_slot().
  Nanoseconds experts_end_ns(const PlacementBounds& bounds, std::span<const int64_t> rows,
                             std::span<const Nanoseconds> ready) const;
  struct Exchanges {
    Nanoseconds dispatch = 0, combine = 0;
  };
  Exchanges exchanges(const PlacementBounds& bounds, std::span<const int64_t> rows) const;
  Bytes expert_bytes() const { return expert_bytes_; }

 private:
  void read_graph();

  ModelSpec model_;
  RooflineCost cost_;
  Cluster cluster_;
  std::vector<MoeLayer> layers_;
  Nanoseconds after_ = 0;
  Bytes expert_bytes_ = 0;
  mutable std::map<int64_t, Nanoseconds> expert_ns_;  // by rows
};

}  // namespace moe
