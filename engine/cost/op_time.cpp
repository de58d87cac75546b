#include "engine/cost/op_time.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/cost/expert_table.h"
#include "engine/cost/op_table.h"
#include "engine/cost/product_time.h"
#include "engine/network/closed_form.h"

namespace moe {
namespace {

OpTimeAnswer answer(const OpTime& time, const std::string& gpu, const GridSource& source) {
  return {time.ns,
          time.lo_ns,
          time.hi_ns,
          source.kernel.empty() ? fmt::format("measurements in {}", gpu)
                                : fmt::format("measured on {}{}: {}, {} {}", gpu,
                                              source.in_step ? " inside a training step" : "",
                                              source.kernel, source.framework, source.version),
          time.extrapolated,
          true};
}

/// Requires: an op of tables that are grids.
const MeasuredOp& measured_op(std::string_view name) {
  const auto ops = measured_ops();
  return *std::find_if(ops.begin(), ops.end(),
                       [&](const MeasuredOp& op) { return name == op.name; });
}

/// The cluster's nodes that `ranks` devices fill.
Cluster part_of(Cluster cluster, double ranks) {
  const auto devices = static_cast<int64_t>(ranks);
  if (devices > cluster.num_devices()) {
    throw user_error("ranks = {}: the cluster has {} devices; give it more nodes", devices,
                     cluster.num_devices());
  }
  cluster.nodes = (devices + cluster.devices_per_node - 1) / cluster.devices_per_node;
  if (cluster.nodes == 1) {
    cluster.devices_per_node = devices;
    cluster.nics_per_node = 1;
  } else if (devices % cluster.devices_per_node != 0) {
    throw user_error("ranks = {}: give whole nodes of {} devices", devices,
                     cluster.devices_per_node);
  }
  return cluster;
}

/// A dispatch or combine, of which only tables know the time.
OpTimeAnswer rows_exchange(const Cluster& cluster, const OpTimeQuery& query,
                           const OpTables* tables) {
  const OpGrid* const grid = tables == nullptr ? nullptr : tables->find(query.op, query.dtype);
  if (grid == nullptr) {
    throw user_error(
        "op '{}': collective_times of {} {} no '{}' of {}, and no rates give its time; give a "
        "cluster whose collective_times have it",
        query.op, cluster.name, tables == nullptr ? "is not given, so there is" : "has", query.op,
        query.dtype);
  }
  const double nodes = query.sizes[0];
  const std::vector<double>& measured = grid->axes()[0].values;
  if (std::find(measured.begin(), measured.end(), nodes) == measured.end()) {
    throw user_error("nodes = {}: {} has measured '{}' for {} nodes only", nodes, tables->gpu(),
                     query.op, fmt::join(measured, ", "));
  }
  if (nodes > static_cast<double>(cluster.nodes) ||
      grid->peak().node_ranks > static_cast<double>(cluster.devices_per_node)) {
    throw user_error("nodes = {} of {} devices: the cluster has {} of {}", nodes,
                     grid->peak().node_ranks, cluster.nodes, cluster.devices_per_node);
  }
  return answer(grid->at(query.sizes), tables->gpu(), grid->source());
}

/// The kind of a collective between ranks; kNone: the op is none.
Collective collective_of(const std::string& op) {
  for (const auto& [name, kind] : {std::pair(measured::kAllToAll, Collective::kAllToAll),
                                   {measured::kAllReduce, Collective::kAllReduce},
                                   {measured::kAllGather, Collective::kAllGather},
                                   {measured::kReduceScatter, Collective::kReduceScatter}}) {
    if (op == name) return kind;
  }
  return Collective::kNone;
}

OpTimeAnswer by_links(const Cluster& cluster, Collective kind, double ranks, double bytes) {
  const Cluster part = part_of(cluster, ranks);
  std::string by;
  double ns = 0;
  if (kind == Collective::kAllToAll) {
    ns = static_cast<double>(all_to_all_ns(part, bytes / ranks));
  } else {
    AllReduce op = {.bytes = bytes, .algorithm = part.all_reduce};
    if (kind == Collective::kReduceScatter) op.part = ReducePart::kReduceScatter;
    if (kind == Collective::kAllGather) op.part = ReducePart::kAllGather;
    op.algorithm = algorithm_of(part, op, {});
    by = fmt::format(" by '{}'", name_of(op.algorithm));
    ns = static_cast<double>(all_reduce_ns(part, op));
  }
  return {ns, ns, ns, fmt::format("closed form{} over the links of {}", by, cluster.name), false};
}

/// A collective, by what RooflineCost takes for it.
OpTimeAnswer collective_time(const Cluster& cluster, const OpTimeQuery& query, Collective kind,
                             const OpTables* tables) {
  const double ranks = query.sizes[0], bytes = query.sizes[1];
  const auto own = query.collectives.find(is_half(kind) ? Collective::kAllReduce : kind);
  if (own != query.collectives.end() && ranks == static_cast<double>(cluster.num_devices())) {
    const bool half = own->first != kind;
    const double ns = static_cast<double>(own->second.at(bytes)) / (half ? 2 : 1);
    return {
        ns,
        ns,
        ns,
        fmt::format("{}collectives.{} of {}, from {}", half ? "half of " : "",
                    half ? measured::kAllReduce : query.op, cluster.name, query.collectives_from),
        half || !own->second.covers(bytes),
        true};
  }
  const OpGrid* const grid = tables == nullptr ? nullptr : tables->find(query.op, "bf16");
  const bool in_node = ranks <= static_cast<double>(cluster.devices_per_node);
  return grid != nullptr && in_node ? answer(grid->at(query.sizes), tables->gpu(), grid->source())
                                    : by_links(cluster, kind, ranks, bytes);
}

/// The op's flops and bytes by the rates of a device.
OpTimeAnswer by_rates(const Cluster& cluster, const OpTimeQuery& query) {
  const Device& d = cluster.device;
  if (!(d.gemm_flops_per_s > 0)) {
    throw user_error("dtype '{}': {} has neither measured times of '{}' in it nor a rate of it",
                     query.dtype, d.name, query.op);
  }
  const PeakRates rates = {
      .flops_per_s = d.gemm_flops_per_s,
      .memory_bytes_per_s = d.memory_bytes_per_s,
      .element_bytes = query.dtype == "f16" ? 2 : element_bytes_of(query.dtype),
      .shortest_s = 0};
  const std::vector<double>& s = query.sizes;
  double seconds = 0;
  if (query.op == measured::kExperts) {
    const double rows = s[0] * s[4] / s[5], weights = 3 * s[1] * s[2];
    const double elements = std::min(s[3] / s[5], rows) * weights + rows * (2 * s[1] + 3 * s[2]);
    seconds = std::max(2 * rows * weights / rates.flops_per_s,
                       elements * rates.element_bytes / rates.memory_bytes_per_s);
  } else {
    seconds = measured_op(query.op).peak_s(s, rates);
  }
  const double ns = 1e9 * seconds;
  return {ns, ns, ns,
          fmt::format("rates of {}: {:g} flops per s in {}, {:g} bytes per s", d.name,
                      d.gemm_flops_per_s, query.dtype, d.memory_bytes_per_s),
          false};
}

/// A product as a plan takes it: its time in tables, but no less than its bytes take by the rate of
/// the device. nullopt: no table has it.
std::optional<OpTimeAnswer> planned_product(const Device& device, const MatrixWork& work,
                                            const std::string& dtype) {
  const std::optional<ProductTime> found = ProductTimes(device).at(work, dtype);
  if (!found) return std::nullopt;
  const OpGrid& grid = *found->grid;
  OpTimeAnswer time = answer(found->time, found->tables->gpu(), grid.source());
  if (found->factor != 1) {
    time.source += fmt::format("; '{}' times {:g}", found->op, found->factor);
    time.extrapolated = true;
  }
  const ProductPoint point = product_point(work);
  const PeakRates bytes_alone = {.flops_per_s = 1e300,
                                 .memory_bytes_per_s = device.memory_bytes_per_s,
                                 .element_bytes = grid.peak().element_bytes,
                                 .shortest_s = 0};
  const double least = 1e9 * measured_op(point.op).peak_s(point.sizes, bytes_alone);
  for (double* const ns : {&time.ns, &time.lo_ns, &time.hi_ns}) *ns = std::max(*ns, least);
  return time;
}

/// Both products of a rank's experts and the activation between them as a plan has them.
std::optional<OpTimeAnswer> planned_experts(const Device& device, const ExpertLayer& l,
                                            double tokens, const std::string& dtype) {
  const double experts = l.experts / l.ep, rows = tokens * l.k / l.experts;
  const double activation = experts * rows * (l.gates + 1) * l.inner * element_bytes_of(dtype);
  OpTimeAnswer sum{.source = "as a plan", .extrapolated = true, .measured = true};
  sum.ns = sum.lo_ns = sum.hi_ns = 1e9 * activation / device.memory_bytes_per_s;
  for (const auto& [n, k] : {std::pair(l.gates * l.inner, l.hidden), {l.hidden, l.inner}}) {
    const auto product = planned_product(
        device, product_of(measured::kGrouped, std::array{experts, rows, n, k}), dtype);
    if (!product) return std::nullopt;
    sum.ns += product->ns, sum.lo_ns += product->lo_ns, sum.hi_ns += product->hi_ns;
    if (sum.source == "as a plan") sum.source += ": " + product->source;
  }
  return sum;
}

std::optional<OpTimeAnswer> experts_time(const Cluster& cluster, const OpTimeQuery& query,
                                         const OpTables& tables, const ExpertTable& table) {
  const std::vector<double>& s = query.sizes;
  const ExpertLayer layer{.hidden = s[1], .inner = s[2], .experts = s[3], .k = s[4], .ep = s[5]};
  const auto found = std::find(table.loads().begin(), table.loads().end(), query.load);
  if (found == table.loads().end()) {
    throw user_error("load '{}': give one of: {}", query.load, fmt::join(table.loads(), ", "));
  }
  const auto load = static_cast<size_t>(found - table.loads().begin());
  if (layer.ep > 1 && query.load == "balanced" && !table.has(layer, load)) {
    return planned_experts(cluster.device, layer, s[0], table.dtype());
  }
  OpTimeAnswer time = answer(table.at(layer, s[0], load), tables.gpu(), table.source());
  if (table.moves_all() && layer.ep > 1) {
    time.source += fmt::format("; one kernel, which also moves the rows of all {} ranks", layer.ep);
  }
  return time;
}

/// The measured time of an op in `dtype`; nullopt: there is none.
std::optional<OpTimeAnswer> measured_time(const Cluster& cluster, const OpTimeQuery& query,
                                          const std::string& dtype) {
  if (query.in_step) {
    return planned_product(cluster.device, product_of(query.op, query.sizes), dtype);
  }
  if (cluster.device.op_times.empty()) return std::nullopt;
  const auto tables = OpTables::open(cluster.device.op_times);
  if (query.op == measured::kExperts) {
    const ExpertTable* const table = tables->experts(dtype);
    if (table == nullptr) return std::nullopt;
    return experts_time(cluster, query, *tables, *table);
  }
  const OpGrid* const grid = tables->find(query.op, dtype);
  if (grid == nullptr) return std::nullopt;
  return answer(grid->at(query.sizes), tables->gpu(), grid->source());
}

/// As op_time(), also times beyond the clock.
OpTimeAnswer any_time(const Cluster& cluster, const OpTimeQuery& query) {
  const Collective kind = collective_of(query.op);
  const bool rows = query.op == measured::kDispatch || query.op == measured::kCombine;
  if (rows || kind != Collective::kNone) {
    const std::string& file = cluster.collective_times;
    const auto tables = file.empty() ? nullptr : OpTables::open(file);
    return rows ? rows_exchange(cluster, query, tables.get())
                : collective_time(cluster, query, kind, tables.get());
  }
  auto measured = measured_time(cluster, query, query.dtype == "f16" ? "bf16" : query.dtype);
  const double ratio = cluster.device.op_times_ratio;
  if (!measured && ratio > 0) measured = measured_time(cluster, query, "bf16");
  if (measured && ratio > 0) {
    for (double* const ns : {&measured->ns, &measured->lo_ns, &measured->hi_ns}) *ns *= ratio;
    measured->source += fmt::format("; times op_times_ratio = {:g}", ratio);
    measured->extrapolated = true;
  }
  if (measured) return *measured;
  if (query.load != "balanced") {
    throw user_error("load '{}': {} has no measured '{}' of it in {}; give 'balanced'", query.load,
                     cluster.device.name, query.op, query.dtype);
  }
  OpTimeAnswer time = by_rates(cluster, query);
  if (query.dtype == "f32" || query.dtype == "tf32") {
    const auto narrow = measured_time(cluster, query, "bf16");
    if (narrow && narrow->ns > time.ns) {
      time = *narrow;
      time.source = fmt::format("no less than in bf16, {}", narrow->source);
      time.extrapolated = true;
    }
  }
  return time;
}

}  // namespace

OpTimeAnswer op_time(const Cluster& cluster, const OpTimeQuery& query) {
  check(cluster);
  OpTimeAnswer time = any_time(cluster, query);
  for (const double ns : {time.ns, time.lo_ns, time.hi_ns}) {
    checked_ns(ns, [&] { return fmt::format("'{}' of these sizes", query.op); });
  }
  return time;
}

}  // namespace moe
