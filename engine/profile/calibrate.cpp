#include "engine/profile/calibrate.h"

#include <algorithm>
#include <deque>
#include <set>

#include "engine/base/errors.h"
#include "engine/cost/cost_model.h"
#include "engine/cost/profile_cache.h"
#include "engine/graph/op_def.h"
#include "engine/model/blocks.h"
#include "engine/ops/defs.h"
#include "engine/ops/ops.h"

namespace moe {
namespace {

constexpr Bytes kMinPayload = 1 << 10;
constexpr Bytes kMostMemory = Bytes{2} << 30;  // inputs and outputs of a collective on all ranks

/// Returns the graph of a training step of a small GPT-2 with MoE layers whose slots are all full.
Graph gpt2_step(int64_t hidden, DType dtype, int64_t num_ranks) {
  ModelSpec spec;
  spec.vocab = 2048;
  spec.seq = 128, spec.batch_per_device = 2, spec.experts = 2 * num_ranks;
  spec.capacity_factor = 1;
  spec.dtype = dtype;
  Graph building(op_table());
  ModelBuilder b(building, spec, gate_spec(spec), num_ranks);
  TensorId x = blocks::embedding(b, {}, {.hidden = hidden});
  for (const int64_t block : {0, 1}) {
    b.begin_block(block);
    const TensorId u = blocks::layernorm(b, {x}, {"ln1"});
    x = blocks::attention(b, {u, x}, {.heads = std::max<int64_t>(1, hidden / 64)});
    const TensorId v = blocks::layernorm(b, {x}, {"ln2"});
    x = block == 0 ? blocks::feed_forward(b, {v, x}, {{.ffn = 4 * hidden}})
                   : blocks::experts(b, {v, x}, {{.ffn = 4 * hidden}});
  }
  b.begin_block(-1);
  blocks::head(b, {blocks::layernorm(b, {x}, {"lnf"})}, {});
  Graph graph = b.finish().forward;
  add_backward_and_update(graph, {}, {}, spec);
  return graph;
}

/// Returns the graph of one collective of about `payload` bytes per rank.
Graph collective_graph(const OpDef& def, Bytes payload, int64_t num_ranks) {
  Graph graph(op_table());
  graph.num_ranks = num_ranks;
  const int64_t part = payload / static_cast<Bytes>(sizeof(float)) / num_ranks;
  const TensorId x = graph.add_tensor({"x", {num_ranks, part, 1}, DType::kF32, TensorKind::kInput});
  const bool exchanges = def.payload == Payload::kRows;
  graph.add_op(def, def.name, {x}, exchanges ? Attrs{{"to", "expert"}} : Attrs{});
  return graph;
}

class Calibrator {
 public:
  explicit Calibrator(const CalibrateOptions& options) : options_(options) {
    options_.profile.ranks_beside = options.num_ranks;
  }

  Calibration run() {
    Calibration c;
    c.machine = options_.machine(options_.profile);
    for (const int64_t hidden : options_.hidden) measure_step(hidden, c);
    c.gemm.fit = fit_line("GEMMs", points(c.gemm));
    c.memory.fit = fit_line("memory-bound ops", points(c.memory));
    c.device = device_of(c);
    c.roofline = roofline_error(c);
    if (options_.num_ranks > 1) {
      c.all_to_all = table(ops::kAllToAll);
      c.all_reduce = table(ops::kAllReduce);
      c.link = link_of(c.all_to_all.fit);
    }
    if (options_.overlap) {
      options_.progress("compute during transfers");
      c.overlap = options_.overlap(largest_step(), options_.profile);
    }
    std::sort(spreads_.begin(), spreads_.end());
    c.spread = spreads_[spreads_.size() / 2];
    return c;
  }

 private:
  struct Timed {
    const Graph* graph;
    OpId op;
    Nanoseconds ns;
  };

  static std::vector<TimedWork> points(const CalibratedLine& line) {
    std::vector<TimedWork> all;
    for (const Calibrated& row : line.rows) all.push_back({row.x, static_cast<double>(row.ns)});
    return all;
  }

  Calibrated measure(const Graph& graph, OpId op, const std::string& what, double x) {
    options_.progress(what);
    std::vector<Nanoseconds> samples = options_.time_op(graph, op, options_.profile).ns;
    std::sort(samples.begin(), samples.end());
    const size_t n = samples.size();
    const Nanoseconds middle = median(samples);
    const auto quartiles = static_cast<double>(samples[3 * n / 4] - samples[n / 4]);
    const double spread = quartiles / static_cast<double>(middle);
    spreads_.push_back(spread);
    return {what, x, middle, spread, static_cast<int64_t>(n), {}};
  }

  void measure_step(int64_t hidden, Calibration& c) {
    const Graph& graph =
        graphs_.emplace_back(gpt2_step(hidden, options_.dtype, options_.num_ranks));
    std::set<std::string> seen;
    for (const OpId op : graph.op_ids()) {
      const OpDef& def = graph.def(op);
      const bool gemm = def.bound == Bound::kFlops;
      if (def.bound == Bound::kNone) continue;
      const Work work = def.work(graph, graph.op(op), {});
      const std::string size =
          gemm ? op_signature(graph, op) : fmt::format("{} {}", def.name, work.bytes);
      if (!seen.insert(size).second) continue;
      const std::string what = fmt::format("{} hidden={}", def.name, hidden);
      Calibrated row = measure(graph, op, what, gemm ? work.flops : work.bytes);
      row.matrix = work.matrix;
      (gemm ? c.gemm : c.memory).rows.push_back(row);
      timed_.push_back({&graph, op, row.ns});
      if (!gemm) {
        vector_flops_per_s_ =
            std::max(vector_flops_per_s_, work.flops * kNsPerSecond / static_cast<double>(row.ns));
      }
    }
  }

  const Graph& largest_step() const {
    const auto largest = std::max_element(options_.hidden.begin(), options_.hidden.end());
    return graphs_[static_cast<size_t>(largest - options_.hidden.begin())];
  }

  Device device_of(const Calibration& c) const {
    const double launch_ns = std::min(c.gemm.fit.alpha_ns, c.memory.fit.alpha_ns);
    return {.name = c.machine,
            .gemm_flops_per_s = kNsPerSecond / c.gemm.fit.beta_ns,
            .vector_flops_per_s = vector_flops_per_s_,
            .memory_bytes_per_s = kNsPerSecond / c.memory.fit.beta_ns,
            .launch_ns = std::llround(launch_ns)};
  }

  FitError roofline_error(const Calibration& c) const {
    Cluster cluster{.nodes = 1, .devices_per_node = options_.num_ranks, .device = c.device};
    cluster.intra = cluster.nic = {.bytes_per_s = c.device.memory_bytes_per_s};
    const RooflineCost cost(cluster, {});
    std::vector<TimedWork> measured;
    std::vector<double> predicted;
    for (const Timed& t : timed_) {
      measured.push_back({0, static_cast<double>(t.ns)});
      predicted.push_back(static_cast<double>(cost.op_ns(*t.graph, t.op)));
    }
    return fit_error(measured, predicted);
  }

  CalibratedTable table(const OpDef& def) {
    const Bytes most = std::min(options_.max_payload, kMostMemory / (2 * options_.num_ranks));
    CalibratedTable table;
    for (Bytes payload = kMinPayload; payload <= most; payload *= 2) {
      const Graph graph = collective_graph(def, payload, options_.num_ranks);
      const double bytes = payload_bytes(graph, OpId(0), {});
      table.rows.push_back(measure(graph, OpId(0), def.name, bytes));
    }
    table.fit = fit_line(def.name, points(table));
    table.interpolation = interpolation_error(points(table));
    return table;
  }

  /// Returns the link whose ports give the fitted line of the all-to-all. A port carries the
  /// payload of a rank without the part that stays on the rank, and a transfer has the latency of
  /// two ports.
  LinkSpec link_of(const LineFit& fit) const {
    const auto ranks = static_cast<double>(options_.num_ranks);
    return {.bytes_per_s = (ranks - 1) / ranks * kNsPerSecond / fit.beta_ns,
            .latency_ns = std::llround(fit.alpha_ns / 2)};
  }

  CalibrateOptions options_;
  std::deque<Graph> graphs_;
  std::vector<Timed> timed_;
  std::vector<double> spreads_;
  double vector_flops_per_s_ = 0;
};

}  // namespace

Calibration calibrate(const CalibrateOptions& options) {
  if (options.num_ranks < 1) {
    throw user_error("calibrate: ranks = {}, but it must be at least 1", options.num_ranks);
  }
  return Calibrator(options).run();
}

}  // namespace moe
