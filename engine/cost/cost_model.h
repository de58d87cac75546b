// CostModel: op on device -> ns, collective -> ns, each alone. Collectives go by closed form
// (network/) or by an interpolated table (table.h).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/cluster/cluster.h"
#include "engine/cost/in_step.h"
#include "engine/cost/overlap.h"
#include "engine/graph/graph.h"
#include "engine/graph/op_def.h"
#include "engine/network/contention.h"

namespace moe {

/// What a routing gives an op whose work or bytes follow the slot occupancy.
struct RoutedWork {
  /// Of a compute op on one rank; of an all-to-all on the rank that sends or receives most.
  WorkContext work;
  /// AllToAll::bytes of an irregular all-to-all; null: as many between every pair as work says.
  const std::vector<double>* bytes = nullptr;
  /// Of Collective::kExperts: AllToAll::bytes of its steps, one after the other.
  const std::vector<std::vector<double>>* steps = nullptr;
};

/// A collective and its rank's compute while both run. On a CPU its copies and wake-ups use the
/// core that computes; on a GPU its blocks hold multiprocessors and share the memory's rate.
struct CoreSharing {
  Nanoseconds taken = 0;  // from compute, where all of the collective runs beside it
  Nanoseconds late = 0;   // that the collective ends later where it ends while the core computes
  OverlapSlowdown slowdown = {};  // of compute as long as the collective runs
  bool none() const {
    return taken == 0 && late == 0 && slowdown.gemm == 1 && slowdown.memory == 1;
  }
};

class CostModel {
 public:
  virtual ~CostModel() = default;
  /// False: the model has no times, neither measured nor modelled, and op_ns() throws.
  virtual bool has_times() const { return true; }
  /// How long the op takes alone; 0 for a view. Same answer for the same op signature, always.
  virtual Nanoseconds op_ns(const Graph& graph, OpId op) const = 0;
  /// How long it takes alone with this work in place of the one that op_ns() expects; op_ns() of a
  /// model that knows no other.
  virtual Nanoseconds routed_ns(const Graph& graph, OpId op, const RoutedWork&) const {
    return op_ns(graph, op);
  }
  /// From the end of an op to the begin of an op on another lane that was waiting for it: what
  /// waking that lane takes.
  virtual Nanoseconds handoff_ns() const { return 0; }
  /// From the choice of a transfer by an arbiter to its begin: what agreeing on it takes, and
  /// waking its lanes.
  virtual Nanoseconds pick_ns() const { return handoff_ns(); }
  /// The cluster whose links its collectives cross; null: nothing is known of links, a collective
  /// takes op_ns() whatever else is on its way. It lives as long as the model.
  virtual const Cluster* network() const { return nullptr; }
  /// What a collective puts on the links of network(); null without links, for other ops, and for a
  /// collective that takes no time there. On a Wire it takes op_ns() alone when it is scaled by
  /// op_ns() / alone_ns(*network(), transfer).
  virtual std::optional<NetworkOp> transfer(const Graph&, OpId) const { return std::nullopt; }
  /// What a collective and its rank's compute do to each other while both run.
  virtual CoreSharing sharing(const Graph&, OpId) const { return {}; }
  /// One line for results: the model, its source, and its own fit error where it has one.
  virtual std::string describe() const = 0;
};

/// What decides an op's time: kind, ranks, shapes, dtypes, attributes; not its name or place.
std::string op_signature(const Graph& graph, OpId op);
/// Whether the op's work follows the slot occupancy: it reads, writes or sends only slots that hold
/// a token.
bool work_follows_occupancy(const Graph& graph, OpId op);

/// What a rank brings to a collective, OpDef::work's bytes: of an all-to-all all that it holds, for
/// itself too; of an all-reduce the tensor.
double payload_bytes(const Graph& graph, OpId op, const WorkContext& context);
/// What a rank puts on the wire: all but its own share of an all-to-all, which of rounds only the
/// first has; 2 (n-1) chunks of an
/// all-reduce of n members; 0 for other ops.
Bytes wire_bytes(const Graph& graph, OpId op, const WorkContext& context);

/// The collective as a transfer on the cluster, all groups at once: an all-to-all of payload /
/// members per pair (members of a block, in rounds) or of the routed bytes, an all-reduce of the
/// payload. An irregular
/// all-to-all is charged a counts exchange of its own op, not here. Throws UserError when the
/// cluster has another number of devices than the graph ranks.
NetworkOp network_op(const Cluster& cluster, const Graph& graph, OpId op, const RoutedWork& routed);
/// The closed form of that transfer.
Nanoseconds collective_ns(const Cluster& cluster, const Graph& graph, OpId op,
                          const RoutedWork& routed);

/// CostModel::transfer of a model whose collectives cross the links of `cluster`.
std::optional<NetworkOp> transfer_on(const Cluster& cluster, const Graph& graph, OpId op,
                                     const RoutedWork& routed);

/// Piecewise linear through measured (bytes, ns) points, as Lancet's communication table (1 KiB,
/// 2 KiB, 4 KiB, ...); beyond the ends the nearest segment goes on, never below 0. Requires: at
/// least two points, bytes strictly ascending (UserError otherwise, naming the row from 1).
class InterpolatedTable {
 public:
  explicit InterpolatedTable(std::vector<std::pair<double, double>> points);
  Nanoseconds at(double bytes) const;

 private:
  std::vector<std::pair<double, double>> points_;
};

/// What Lina's inference takes beside a device's rates; nullopt: what the ops' work takes.
struct OffloadTimes {
  std::optional<Nanoseconds> place_ns;     // a place_expected, phase 1
  std::optional<Nanoseconds> resume_ns;    // phase 2 where the estimate holds, the loads' exchange
                                           // included
  std::optional<Nanoseconds> rerun_ns;     // phase 2 where it places again, the same
  std::optional<double> host_bytes_per_s;  // experts from host memory, each device for itself
};

/// max(flops / rate, bytes / memory rate) + launch; collectives by closed form, or by table (of the
/// payload a rank) where one is given for the kind: measured among all ranks, it says nothing of
/// smaller groups and rounds. times: in place of that, for ops on offloaded experts.
/// Throws UserError for a cluster that check() refuses, a device without rates, and times that make
/// no sense, naming "inference.<field>".
class RooflineCost : public CostModel {
 public:
  RooflineCost(Cluster cluster, WorkContext context,
               std::map<Collective, InterpolatedTable> tables = {}, OffloadTimes times = {});
  Nanoseconds op_ns(const Graph& graph, OpId op) const override {
    return routed_ns(graph, op, {context_});
  }
  Nanoseconds routed_ns(const Graph& graph, OpId op, const RoutedWork& routed) const override;
  const Cluster* network() const override { return &cluster_; }
  std::optional<NetworkOp> transfer(const Graph& graph, OpId op) const override;
  /// Cluster::overlap_slowdown.
  CoreSharing sharing(const Graph& graph, OpId op) const override;
  std::string describe() const override;

 private:
  std::optional<Nanoseconds> offload_ns(const Graph& graph, OpId op,
                                        const WorkContext& context) const;

  Cluster cluster_;
  WorkContext context_;
  std::map<Collective, InterpolatedTable> tables_;
  OffloadTimes offload_times_;
};

/// Of a real run whose plan depends on no time, so that nothing is measured for it. op_ns() throws
/// an InternalError: a pass or policy asks for times and does not declare it (PassDef::reads).
class NoTimes : public CostModel {
 public:
  explicit NoTimes(Cluster cluster) : cluster_(std::move(cluster)) {}
  bool has_times() const override { return false; }
  Nanoseconds op_ns(const Graph& graph, OpId op) const override;
  const Cluster* network() const override { return &cluster_; }
  std::string describe() const override { return "no times: the plan depends on none"; }

 private:
  Cluster cluster_;
};

class ProfileCache;

/// Compute ops as timed alone on this machine; collectives as max(closed form on `link`, the time
/// the bytes take in memory as profiled). A signature that is not in the cache is timed by
/// `measure` and stored; times already read are kept, so a plan sees one value per op throughout.
/// Where the op's work follows the slot occupancy, so does its key ("... fill=0.8", to three
/// decimals), and it is measured with that occupancy; other ops are measured with full slots. Work
/// at another one is taken from the straight line between its neighbours among that and 0, 1/4,
/// 1/2, 3/4, 1, so that a run of many loads measures few. For one thread at a time.
class ProfileCost : public CostModel {
 public:
  using Measure =
      std::function<std::vector<Nanoseconds>(const Graph&, OpId, const WorkContext& context)>;
  using MeasureHandoff = std::function<std::vector<Nanoseconds>()>;
  /// key_prefix: what else decides a time: device, kernel set, threads, ranks beside, kernel build.
  /// measure_handoff null: lanes wake each other in no time.
  ProfileCost(std::shared_ptr<ProfileCache> cache, std::string key_prefix, Measure measure,
              const Cluster* link, WorkContext context, MeasureHandoff measure_handoff = nullptr);
  Nanoseconds op_ns(const Graph& graph, OpId op) const override {
    return routed_ns(graph, op, {context_});
  }
  Nanoseconds routed_ns(const Graph& graph, OpId op, const RoutedWork& routed) const override;
  Nanoseconds handoff_ns() const override;
  /// With in-step factors: moving the bytes in memory and InStep::core_ns; InStep::core_late_ns.
  /// With an overlap table: its slowdown by the blocks of the run's transfers.
  CoreSharing sharing(const Graph& graph, OpId op) const override;
  const Cluster* network() const override { return has_link_ ? &link_ : nullptr; }
  std::optional<NetworkOp> transfer(const Graph& graph, OpId op) const override;
  std::string describe() const override;
  /// Times the op alone once more and keeps the samples with the lower median, here and in the
  /// cache: of an op whose first samples something disturbed.
  void time_again(const Graph& graph, OpId op) const;
  /// From now on ops take what they take in a step; with nullopt, as before: alone.
  void set_in_step(std::optional<InStep> in_step) { in_step_ = std::move(in_step); }
  const std::optional<InStep>& in_step() const { return in_step_; }
  /// Compute beside transfers of so many blocks is slowed down from now on.
  void set_overlap(OverlapTable table, int32_t blocks);
  /// Ops timed by this object (not found in the cache), and the time that took.
  int64_t num_measured() const { return num_measured_; }
  Nanoseconds measuring_ns() const { return measuring_ns_; }

 private:
  /// What the op's samples are kept under, after the prefix, and what it is measured with.
  std::pair<std::string, WorkContext> signature_of(const Graph& graph, OpId op,
                                                   double slot_occupancy) const;
  /// The median of the op's samples: as seen before, from the cache, or measured now.
  Nanoseconds measured_ns(const Graph& graph, OpId op, double slot_occupancy) const;
  Nanoseconds alone_ns(const Graph& graph, OpId op, double slot_occupancy) const;
  template <class F>
  Nanoseconds median_of(const std::string& signature, Nanoseconds least, const F& measure) const;

  std::shared_ptr<ProfileCache> cache_;
  std::string key_prefix_;
  Measure measure_;
  bool has_link_;
  Cluster link_;
  WorkContext context_;
  double slot_occupancy_;            // context_'s as keys have it
  std::vector<double> occupancies_;  // that are measured, ascending
  MeasureHandoff measure_handoff_;
  std::optional<InStep> in_step_;
  std::optional<OverlapTable> overlap_;
  int32_t blocks_ = 0;  // of the run's transfers
  mutable std::map<std::string, Nanoseconds> seen_;
  mutable int64_t num_measured_ = 0;
  mutable Nanoseconds measuring_ns_ = 0;
};

}  // namespace moe
