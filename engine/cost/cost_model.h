// CostModel: the time in ns that one op or one collective takes when nothing else runs. Models are
// RooflineCost (rates of a cluster), ProfileCost (measured ops) and NoTimes.
// Collectives take their closed form (network/) or an interpolated table of measured times. How
// transfers that meet share links is not here but in network/.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/cluster/cluster.h"
#include "engine/cost/block_fills.h"
#include "engine/cost/in_step.h"
#include "engine/cost/overlap.h"
#include "engine/cost/product_time.h"
#include "engine/cost/samples.h"
#include "engine/graph/graph.h"
#include "engine/graph/op_def.h"
#include "engine/network/contention.h"

namespace moe {

/// What the time of one op under a given routing is computed from, in place of the assumptions of
/// op_ns().
struct RoutedWork {
  /// Its slot_occupancy is for a compute op that of its rank, for an all-to-all that of the rank
  /// that sends or receives most.
  WorkContext work;
  /// AllToAll::bytes of an irregular all-to-all; null: every pair of ranks exchanges the same
  /// number of bytes, which follows from `work`.
  const std::vector<double>* bytes = nullptr;
  /// For Collective::kExperts: AllToAll::bytes of each step; steps run one after the other.
  const std::vector<std::vector<double>>* steps = nullptr;
  /// How the rows of a compute op at the experts spread over blocks; null: evenly over as many
  /// blocks as there are without copies of experts. Only given to a model that reads_blocks().
  const BlockFills* blocks = nullptr;
  /// For a collective: only the group of this rank runs it, and `work` is that of this group; -1:
  /// all groups do, at the same time. `bytes` and `steps` have the entries of all groups.
  int64_t rank = -1;
};

/// What a collective and the compute of its rank cost each other while both run. On a CPU, the
/// memcpys and wake-ups of the collective use the core that computes. On a GPU, the thread blocks
/// of the collective occupy multiprocessors and share the memory rate.
struct CoreSharing {
  Nanoseconds taken = 0;          // added to compute if compute runs during the whole collective
  Nanoseconds late = 0;           // added to the collective if it ends while the core computes
  OverlapSlowdown slowdown = {};  // factors while compute runs beside the collective
  bool none() const {
    return taken == 0 && late == 0 && slowdown.gemm == 1 && slowdown.memory == 1 &&
           slowdown.transfer == 1;
  }
};

/// Where the time of an op comes from. kModel: rates or a closed form. kMeasured: measured times
/// around its sizes. kExtrapolated: measured times of other sizes.
enum class TimeSource : uint8_t { kModel, kMeasured, kExtrapolated };

class CostModel {
 public:
  virtual ~CostModel() = default;
  /// False: the model has neither measured nor modelled times, and op_ns() throws.
  virtual bool has_times() const { return true; }
  /// Returns the op's time when nothing else runs; 0 for a view. It depends on op_signature() only.
  virtual Nanoseconds op_ns(const Graph& graph, OpId op) const = 0;
  /// Returns op_ns() for the given work instead of the work that op_ns() assumes. A model that does
  /// not depend on work returns op_ns().
  virtual Nanoseconds routed_ns(const Graph& graph, OpId op, const RoutedWork&) const {
    return op_ns(graph, op);
  }
  /// Whether routed_ns() reads RoutedWork::blocks.
  virtual bool reads_blocks() const { return false; }
  /// Returns the time to wake a lane: from the end of an op to the begin of one that waits for it.
  virtual Nanoseconds handoff_ns() const { return 0; }
  /// Returns the time from an arbiter's choice of a transfer to the begin of the transfer, in which
  /// ranks agree on the choice and the transfer's lanes are woken.
  virtual Nanoseconds pick_ns() const { return handoff_ns(); }
  /// Returns the cluster whose links the collectives cross; valid as long as the model. Null means
  /// that the model has no links: a collective takes op_ns(), whatever other transfers run.
  virtual const Cluster* network() const { return nullptr; }
  /// Returns what a collective transfers over the links of network(); nullopt if network() is null,
  /// for other ops, and for a collective that takes no time on links. Run alone on a Wire
  /// (network/) and scaled by op_ns() / alone_ns(*network(), transfer), the transfer takes op_ns().
  virtual std::optional<NetworkOp> transfer(const Graph&, OpId) const { return std::nullopt; }
  /// Returns how an all-reduce or a half of one moves its bytes: "ring" (network/all_reduce.h), or
  /// "measured" where its time is a measured one; "" for other ops, and if network() is null.
  virtual std::string algorithm(const Graph& graph, OpId op) const;
  virtual TimeSource time_source(const Graph&, OpId) const { return TimeSource::kModel; }
  /// Returns what a collective and its rank's compute cost each other; for other ops, none() of the
  /// result is true.
  virtual CoreSharing sharing(const Graph&, OpId) const { return {}; }
  /// Whether a host launches the ops (host_ns()), one after the other in the order of the program.
  virtual bool has_host() const { return false; }
  /// Returns the host's time to launch the op, which begins no earlier than its launch.
  virtual Nanoseconds host_ns(const Graph&, OpId) const { return 0; }
  /// Whether the host launches nothing more until the op is over, since it reads what the op made.
  virtual bool host_waits(const Graph&, OpId) const { return false; }
  /// Returns one line for results: the model, the source of its numbers, and its fit error if any.
  virtual std::string describe() const = 0;
};

/// Returns a string of all properties of an op that affect its time: kind, number of ranks, shapes
/// and dtypes of its tensors, attributes; not its name or its place in the graph.
std::string op_signature(const Graph& graph, OpId op);
/// Whether the op's work depends on slot occupancy: it reads, writes or sends filled slots only.
bool work_follows_occupancy(const Graph& graph, OpId op);

/// Returns the bytes that a rank contributes to a collective (Work::bytes of the op): for an
/// all-to-all its send buffer (irregular: the expected rows in use), including its part for itself;
/// for an all-reduce and its halves the whole message.
double payload_bytes(const Graph& graph, OpId op, const WorkContext& context);
/// Returns the bytes that a rank sends over links: for an all-to-all, the payload without what it
/// sends to itself (in an exchange in rounds, it does so only in round 0), and the same for
/// Collective::kExperts; for an all-reduce of n members, 2 (n-1) chunks of payload / n, for its
/// halves n-1; 0 for ops that are no collectives.
Bytes wire_bytes(const Graph& graph, OpId op, const WorkContext& context);

/// Returns the collective as a transfer on the cluster (of the groups that `routed.rank` says): an
/// all-to-all with the sum of routed.steps, with routed.bytes or, where both are null, with payload
/// / members bytes per pair (in rounds: members of a block); or an all-reduce of the payload, or a
/// half of one. The exchange of counts before an irregular all-to-all is a separate op and not
/// included. Throws UserError unless the cluster has as many devices as the graph has ranks.
NetworkOp network_op(const Cluster& cluster, const Graph& graph, OpId op, const RoutedWork& routed);
/// Returns the time of the transfer network_op() by its closed form; with routed.steps, the sum of
/// the times of the steps.
Nanoseconds collective_ns(const Cluster& cluster, const Graph& graph, OpId op,
                          const RoutedWork& routed);

/// Implements CostModel::transfer for a model whose collectives cross the links of `cluster`.
std::optional<NetworkOp> transfer_on(const Cluster& cluster, const Graph& graph, OpId op,
                                     const RoutedWork& routed);

/// A piecewise linear function through measured points (bytes, ns), like Lancet's communication
/// table (1 KiB, 2 KiB, ...). Beyond the end points the nearest segment is extended, but not below
/// 0.
class InterpolatedTable {
 public:
  /// Throws UserError, naming the row (counted from 1), unless there are at least two points, all
  /// finite and at least 0, with ascending bytes.
  explicit InterpolatedTable(std::vector<std::pair<double, double>> points);
  Nanoseconds at(double bytes) const;
  /// Whether the bytes are not beyond the end points.
  bool covers(double bytes) const {
    return points_.front().first <= bytes && bytes <= points_.back().first;
  }

 private:
  std::vector<std::pair<double, double>> points_;
};

/// Times of the ops of Lina's inference (USENIX ATC 2023) that a user gives in place of roofline
/// times; with nullopt, the op takes its roofline time. Without rerun_ns, a fine_tune that places
/// experts again takes place_ns.
struct OffloadTimes {
  std::optional<Nanoseconds> place_ns;  // phase 1: place_expected
  /// Phase 2 (the exchange of loads, then fine_tune), if it keeps the placement of phase 1.
  std::optional<Nanoseconds> resume_ns;
  std::optional<Nanoseconds> rerun_ns;     // phase 2 (both ops), if experts are placed again
  std::optional<double> host_bytes_per_s;  // rate of copying experts from CPU memory, per device
};

/// In which type linears and experts are multiplied (NumberTypes::products) in place of that of
/// their operands. "": in that.
struct NarrowProducts {
  std::string dtype;       // as tables name it
  double flops_per_s = 0;  // where no table has a product
};

/// An op takes max(flops / rate, bytes / memory rate) + launch. With Device::op_times or
/// step_times, matrix products of elements of two bytes (times of bf16) or four (of f32, or of tf32
/// where that is the model's type) take their measured time (ProductTimes) + launch instead, if
/// tables have them, but no less than bytes / memory rate. Where they have times of bf16 alone, a
/// product in a model of f32 or tf32 takes its time by rates, but no less than those: no GPU is
/// quicker with wider elements. With Device::op_times_ratio measured times are multiplied by it,
/// and those of bf16 stand for others.
///
/// A collective that is not in rounds takes its time by payload per rank from a table of measured
/// times: that of its kind in `tables`, if it runs among all ranks (a half of an all-reduce takes
/// half of the time in the table of all-reduces); else Cluster::collective_times for its groups'
/// size, if each group lies inside a node. An all-to-all whose pairs exchange different numbers of
/// bytes takes its closed form times the ratio of measured time and closed form of as many bytes in
/// even pieces. Without such a table, and in rounds, it takes its closed form. `times` replaces
/// roofline times of place_expected, fine_tune and swap_in.
class RooflineCost : public CostModel {
 public:
  /// Throws UserError for a cluster that check() refuses, for a device without rates, and for times
  /// out of range, naming "inference.<field>". dtype: the model's element type, of which
  /// Device::gemm_flops_per_s is the rate: "f16", "bf16", "f32" or "tf32" (f32 tensors).
  /// narrow: products of linears and experts, forward and gradients but those of router and head,
  /// take their times in this type, and read two operands of one byte per number.
  RooflineCost(Cluster cluster, WorkContext context,
               std::map<Collective, InterpolatedTable> tables = {}, OffloadTimes times = {},
               std::string dtype = "", NarrowProducts narrow = {});
  Nanoseconds op_ns(const Graph& graph, OpId op) const override {
    return routed_ns(graph, op, {context_});
  }
  Nanoseconds routed_ns(const Graph& graph, OpId op, const RoutedWork& routed) const override;
  const Cluster* network() const override { return &cluster_; }
  std::optional<NetworkOp> transfer(const Graph& graph, OpId op) const override;
  std::string algorithm(const Graph& graph, OpId op) const override;
  TimeSource time_source(const Graph& graph, OpId op) const override;
  /// Returns Cluster::overlap_slowdown for collectives.
  CoreSharing sharing(const Graph& graph, OpId op) const override;
  std::string describe() const override;

 protected:
  /// The share of Device::memory_bytes_per_s at which an op without products reads and writes.
  virtual double memory_share(const Graph&, OpId) const { return 1; }
  /// Returns the type in which the op multiplies if that is not its operands'; else "".
  std::string narrow_dtype(const Graph& graph, const Op& op, const MatrixWork& work) const;

 private:
  std::optional<Nanoseconds> offload_ns(const Graph& graph, OpId op,
                                        const WorkContext& context) const;
  Nanoseconds collective_time(const Graph& graph, OpId op, const RoutedWork& routed) const;
  struct Measured {
    double ns;
    bool extrapolated;
    const std::string* gpu = nullptr;  // of an op of compute
  };
  std::optional<Measured> measured_collective(const Graph& graph, OpId op,
                                              const RoutedWork& routed) const;
  std::optional<Measured> measured_product(const Graph& graph, const Op& op,
                                           const Work& work) const;
  std::optional<Measured> in_tables(const char* dtype, const Work& work) const;
  bool wide(const Graph& graph, const Op& op) const;
  Work work_of(const Graph& graph, const Op& op, const WorkContext& context) const;

  Cluster cluster_;
  WorkContext context_;
  std::map<Collective, InterpolatedTable> tables_;
  OffloadTimes offload_times_;
  std::string dtype_;
  NarrowProducts narrow_;
  ProductTimes products_;
  std::shared_ptr<const OpTables> collective_times_;  // null: none
};

/// The cost model of an executed run whose plan needs no times, so that none are measured. op_ns()
/// throws an InternalError: only a pass or policy that uses times without declaring it
/// (PassDef::reads) calls it.
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

/// Compute ops take the time measured alone on this machine. A collective takes the longer of its
/// closed form on `link` and the measured time to copy its bytes in memory; in a step, too, never
/// less than the closed form, however long the copies took alone. An op whose signature
/// is not in the cache is timed by `measure`, and its samples are stored. Times that were read once
/// are kept, so that a plan uses one value per op. An op whose work depends on slot occupancy is
/// measured at the context's occupancy and at 0, 1/4, 1/2, 3/4 and 1, each with a cache key of its
/// own ("... fill=0.8", to three digits); in between, its time is interpolated linearly, so that a
/// run with many different loads needs few measurements. Where the op counts the rows of blocks, it
/// is measured with all blocks filled alike (timed_fills()), and its time is the mean, over its
/// blocks, of the times at their fills. Other ops are measured with full slots.
/// Samples in the cache that were disturbed are measured again if the machine is quiet now, and
/// replaced by new ones that are undisturbed or have a lower median. Not thread-safe.
class ProfileCost : public CostModel {
 public:
  using Measure = std::function<Samples(const Graph&, OpId, const WorkContext& context)>;
  using MeasureHandoff = std::function<Samples()>;
  using Quiet = std::function<bool()>;
  /// key_prefix: everything that affects times and is not in signatures: device, kernel set,
  /// threads, number of ranks that compute at the same time, kernel build. link: null means that
  /// transfers cross no links. measure_handoff: null means that waking a lane takes no time. quiet:
  /// whether the machine is quiet enough to measure disturbed samples again; called for each of
  /// them; null means never.
  ProfileCost(std::shared_ptr<ProfileCache> cache, std::string key_prefix, Measure measure,
              const Cluster* link, WorkContext context, MeasureHandoff measure_handoff = nullptr,
              Quiet quiet = nullptr);
  Nanoseconds op_ns(const Graph& graph, OpId op) const override {
    return routed_ns(graph, op, {context_});
  }
  Nanoseconds routed_ns(const Graph& graph, OpId op, const RoutedWork& routed) const override;
  bool reads_blocks() const override { return true; }
  Nanoseconds handoff_ns() const override;
  /// With in-step factors: `taken` is the measured time to copy the bytes plus InStep::core_ns,
  /// `late` is InStep::core_late_ns. With an overlap table: `slowdown` is its row for the number of
  /// thread blocks of the run's transfers.
  CoreSharing sharing(const Graph& graph, OpId op) const override;
  const Cluster* network() const override { return has_link_ ? &link_ : nullptr; }
  std::optional<NetworkOp> transfer(const Graph& graph, OpId op) const override;
  std::string describe() const override;
  /// For an op whose samples may have been disturbed by other load on the machine: times it alone
  /// again and keeps, in this object and in the cache, the samples with the lower median, or
  /// undisturbed ones in place of disturbed ones.
  void time_again(const Graph& graph, OpId op) const;
  /// From now on, without in-step factors compute takes this many times the measured times, which
  /// are those at reference speed (profile/profiler.h).
  void set_slower(double slower) { slower_ = slower; }
  /// From now on, ops take their time in a step by these factors; with nullopt, their time alone.
  void set_in_step(std::optional<InStep> in_step) { in_step_ = std::move(in_step); }
  const std::optional<InStep>& in_step() const { return in_step_; }
  /// From now on, compute is slowed down while transfers run, by the table's row for transfers of
  /// `blocks` thread blocks.
  void set_overlap(OverlapTable table, int32_t blocks);
  /// Return how many measurements this object made (of times that the cache lacked or that were
  /// disturbed, and in time_again()), and how long those outside of time_again() took.
  int64_t num_measured() const { return num_measured_; }
  Nanoseconds measuring_ns() const { return measuring_ns_; }
  /// Returns how many of the times that this object read or measured rest on disturbed samples: one
  /// for each signature and occupancy.
  int64_t num_disturbed() const { return static_cast<int64_t>(disturbed_.size()); }

 private:
  /// Returns the op's key in the cache, without the prefix, and the context at which the op is
  /// measured. fill: the slot occupancy, or the fill of each block of an op that counts blocks.
  std::pair<std::string, WorkContext> signature_of(const Graph& graph, OpId op, double fill) const;
  /// Returns the op's median time at this fill: from seen_, the cache or a measurement.
  Nanoseconds measured_ns(const Graph& graph, OpId op, double fill) const;
  /// Returns the fills between which the op's time is interpolated, ascending.
  std::vector<double> fills_of(const Graph& graph, OpId op) const;
  /// Returns the op's time with all slots at one of fills_of(), also where packed rows had room for
  /// some slots only when it was measured.
  double all_filled_ns(const Graph& graph, OpId op, double fill) const;
  /// Returns the mean of the op's times at the given fills, each with a weight; interpolated.
  double mean_ns(const Graph& graph, OpId op,
                 const std::vector<std::pair<double, double>>& weights) const;
  /// Returns the op's median time for this work.
  Nanoseconds alone_ns(const Graph& graph, OpId op, const RoutedWork& routed) const;
  /// Returns the median of the samples of `signature`: from seen_, else from the cache if each is
  /// at least `least` ns there and they need not be measured again, else from measure().
  template <class F>
  Nanoseconds median_of(const std::string& signature, Nanoseconds least, const F& measure) const;
  /// Keeps the samples of `signature` in this object, and in the cache if they are `measured`;
  /// returns their median.
  Nanoseconds keep(const std::string& signature, const Samples& samples, bool measured) const;

  std::shared_ptr<ProfileCache> cache_;
  std::string key_prefix_;
  Measure measure_;
  bool has_link_;
  Cluster link_;
  WorkContext context_;
  double slot_occupancy_;  // context_.slot_occupancy to three digits, as in keys
  MeasureHandoff measure_handoff_;
  Quiet quiet_;
  double slower_ = 1;
  std::optional<InStep> in_step_;
  std::optional<OverlapTable> overlap_;
  int32_t blocks_ = 0;                               // thread blocks of each of the run's transfers
  mutable std::map<std::string, Nanoseconds> seen_;  // medians, indexed by signature
  mutable std::set<std::string> disturbed_;          // signatures in seen_ of disturbed samples
  mutable int64_t num_measured_ = 0;
  mutable Nanoseconds measuring_ns_ = 0;
};

}  // namespace moe
