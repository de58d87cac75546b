#include "engine/cost/op_time.h"

#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/cost/expert_table.h"
#include "engine/cost/op_table.h"
#include "engine/network/closed_form.h"

namespace moe {
namespace {

OpTimeAnswer answer(const OpTime& time, const std::string& gpu, const GridSource& source) {
  return {time.ns,
          time.lo_ns,
          time.hi_ns,
          source.kernel.empty() ? fmt::format("measurements in {}", gpu)
                                : fmt::format("measured on {}: {}, {} {}", gpu, source.kernel,
                                              source.framework, source.version),
          time.extrapolated,
          true};
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

OpTimeAnswer by_links(const Cluster& cluster, const OpTimeQuery& query) {
  const double ranks = query.sizes[0], bytes = query.sizes[1];
  const Cluster part = part_of(cluster, ranks);
  std::string by;
  double ns = 0;
  if (query.op == measured::kAllToAll) {
    ns = static_cast<double>(all_to_all_ns(part, bytes / ranks));
  } else {
    AllReduce op = {.bytes = bytes, .algorithm = part.all_reduce};
    op.algorithm = algorithm_of(part, op, {});
    by = fmt::format(" by '{}'", name_of(op.algorithm));
    ns = static_cast<double>(all_reduce_ns(part, op));
  }
  return {ns, ns, ns, fmt::format("closed form{} over the links of {}", by, cluster.name), false};
}

/// Flops and bytes of an op on a device without tables, by its rates.
OpTimeAnswer by_rates(const Cluster& cluster, const OpTimeQuery& query) {
  const Device& d = cluster.device;
  constexpr double element = 2;
  double flops = 0, elements = 0;
  const std::vector<double>& s = query.sizes;
  if (query.op == measured::kGemm) {
    flops = 2 * s[0] * s[1] * s[2];
    elements = s[0] * s[1] + s[0] * s[2] + s[1] * s[2];
  } else if (query.op == measured::kAttention) {
    flops = 2 * s[0] * s[2] * s[1] * s[1] * s[4];
    elements = 2 * s[0] * s[1] * s[4] * (s[2] + s[3]);
  } else {
    const double rows = s[0] * s[4] / s[5], weights = 3 * s[1] * s[2];
    flops = 2 * rows * weights;
    elements = std::min(s[3] / s[5], rows) * weights + rows * (2 * s[1] + 3 * s[2]);
  }
  const double ns =
      1e9 * std::max(flops / d.gemm_flops_per_s, element * elements / d.memory_bytes_per_s);
  return {ns, ns, ns,
          fmt::format("rates of {}: {:g} flops per s, {:g} bytes per s", d.name, d.gemm_flops_per_s,
                      d.memory_bytes_per_s),
          false};
}

/// As op_time(), also times beyond the clock.
OpTimeAnswer any_time(const Cluster& cluster, const OpTimeQuery& query) {
  const bool collective = query.op == measured::kAllToAll || query.op == measured::kAllReduce;
  const bool rows = query.op == measured::kDispatch || query.op == measured::kCombine;
  const std::string& file = collective || rows ? cluster.collective_times : cluster.device.op_times;
  const auto tables = file.empty() ? nullptr : OpTables::open(file);
  if (rows) return rows_exchange(cluster, query, tables.get());
  if (collective) {
    const OpGrid* const grid = tables == nullptr ? nullptr : tables->find(query.op, "bf16");
    const bool measured =
        grid != nullptr && query.sizes[0] <= static_cast<double>(cluster.devices_per_node);
    return measured ? answer(grid->at(query.sizes), tables->gpu(), grid->source())
                    : by_links(cluster, query);
  }
  if (query.op == measured::kExperts) {
    const ExpertTable* const table = tables == nullptr ? nullptr : tables->experts(query.dtype);
    if (table != nullptr) {
      const auto load = std::find(table->loads().begin(), table->loads().end(), query.load);
      if (load == table->loads().end()) {
        throw user_error("load '{}': give one of: {}", query.load, fmt::join(table->loads(), ", "));
      }
      const std::vector<double>& s = query.sizes;
      const ExpertLayer layer{
          .hidden = s[1], .inner = s[2], .experts = s[3], .k = s[4], .ep = s[5]};
      return answer(table->at(layer, s[0], static_cast<size_t>(load - table->loads().begin())),
                    tables->gpu(), table->source());
    }
  } else if (tables != nullptr) {
    const OpGrid* const grid = tables->find(query.op, query.dtype);
    if (grid != nullptr) return answer(grid->at(query.sizes), tables->gpu(), grid->source());
  }
  // The rates are those of two-byte elements and of even loads.
  if (query.dtype != "bf16" || query.load != "balanced") {
    throw user_error("{} '{}': {} has no measured '{}' of it; give '{}'",
                     query.dtype != "bf16" ? "dtype" : "load",
                     query.dtype != "bf16" ? query.dtype : query.load, cluster.device.name,
                     query.op, query.dtype != "bf16" ? "bf16" : "balanced");
  }
  return by_rates(cluster, query);
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
