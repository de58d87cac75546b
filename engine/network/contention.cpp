#include "engine/network/contention.h"

#include <algorithm>
#include <cmath>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/network/closed_form.h"
#include "engine/network/collective_steps.h"
#include "engine/network/wire.h"

namespace moe {
namespace {

void check_bytes(const std::string& field, double bytes) {
  if (!std::isfinite(bytes) || bytes < 0) {
    throw user_error("{} = {}: must be a finite number of at least 0", field, bytes);
  }
}

void check_count(const std::string& field, int64_t count, int64_t least) {
  if (count < least) throw user_error("{} = {}: must be at least {}", field, count, least);
}

void check_matrix(const std::string& field, const std::vector<double>& bytes, int64_t devices,
                  const char* of) {
  const size_t n = static_cast<size_t>(devices);
  if (bytes.size() != n * n) {
    throw user_error("{} has {} entries: must be {} rows of {} (one per device of the {})", field,
                     bytes.size(), n, n, of);
  }
  for (size_t k = 0; k < bytes.size(); ++k) {
    if (std::isfinite(bytes[k]) && bytes[k] >= 0) continue;
    check_bytes(fmt::format("{}[{}][{}]", field, k / n, k % n), bytes[k]);
  }
}

void check_op(const Cluster& cluster, const NetworkOp& op, size_t index) {
  const std::string field = fmt::format("ops[{}]", index);
  if (const auto* a2a = std::get_if<AllToAll>(&op.what)) {
    check_bytes(field + ".bytes_per_pair", a2a->bytes_per_pair);
    const bool all = a2a->rank < 0;
    if (!a2a->bytes.empty()) {
      const Group group = resolve(op.group, cluster.num_devices(), field);
      check_matrix(field + ".bytes", a2a->bytes, all ? cluster.num_devices() : group.size,
                   all ? "cluster" : "group");
    }
    check_count(field + ".channels", a2a->channels, 1);
  } else {
    const AllReduce& reduce = std::get<AllReduce>(op.what);
    check_bytes(field + ".bytes", reduce.bytes);
    check_count(field + ".rings", reduce.rings, 0);
  }
  const Group group = resolve(op.group, cluster.num_devices(), field);
  if (const auto* a2a = std::get_if<AllToAll>(&op.what)) check(a2a->round, group, field);
  check_count(field + ".start_ns", op.start_ns, 0);
  for (const size_t before : op.after) {
    if (before >= index) {
      throw user_error("{}.after = {}: must be an earlier op, with an index below {}", field,
                       before, index);
    }
  }
  const size_t ranks = op.rank_start_ns.size();
  if (ranks != 0 && ranks != static_cast<size_t>(cluster.num_devices())) {
    throw user_error("{}.rank_start_ns has {} entries: must be {} (one per device of the cluster)",
                     field, ranks, cluster.num_devices());
  }
  for (size_t r = 0; r < ranks; ++r) {
    check_count(fmt::format("{}.rank_start_ns[{}]", field, r), op.rank_start_ns[r], 0);
  }
}

/// One call of run_collectives(): begins an op when all ops in its `after` have ended.
class Batch {
 public:
  Batch(const Cluster& cluster, const std::vector<NetworkOp>& ops, const NetworkOptions& options,
        bool alike)
      : ops_(ops), alike_(alike), wire_(cluster, options, alike), waits_(ops.size()) {
    for (size_t i = 0; i < ops.size(); ++i) {
      waits_[i].waits_for = ops[i].after.size();
      for (const size_t before : ops[i].after) waits_[before].releases.push_back(i);
    }
  }

  NetworkRun run() {
    NetworkRun run;
    run.ops.resize(ops_.size());
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (waits_[i].waits_for == 0) begin(i);
    }
    std::vector<Done> ended;
    while (wire_.step(ended)) {
      for (Done& done : ended) {
        run.ops[op_of_[done.op]] = std::move(done.times);
        release(op_of_[done.op], done.end_exact_ns);
      }
      ended.clear();
    }
    run.num_events = wire_.num_events();
    run.nodes_alike = alike_;
    for (uint32_t l = 0; l < wire_.num_links(); ++l) run.links.push_back(wire_.name(l));
    run.use = wire_.take_use();
    return run;
  }

 private:
  struct Waits {
    std::vector<size_t> releases = {};
    size_t waits_for = 0;
    double ready_ns = 0;
  };

  void begin(size_t i) {
    const double at_ns = waits_[i].ready_ns + static_cast<double>(ops_[i].start_ns);
    checked_ns(at_ns, [i] {
      return fmt::format("ops[{}]: waiting for the ops in `after` and for start_ms", i);
    });
    wire_.begin(ops_[i], at_ns);
    op_of_.push_back(i);
  }

  void release(size_t ended, double end_ns) {
    for (const size_t i : waits_[ended].releases) {
      waits_[i].ready_ns = std::max(waits_[i].ready_ns, end_ns);
      if (--waits_[i].waits_for == 0) begin(i);
    }
  }

  const std::vector<NetworkOp>& ops_;
  const bool alike_;
  Wire wire_;
  std::vector<Waits> waits_;
  std::vector<size_t> op_of_;  // index into ops_, for each number that Wire::begin() returned
};

}  // namespace

NetworkRun run_collectives(const Cluster& cluster, const std::vector<NetworkOp>& ops,
                           const NetworkOptions& options) {
  check(cluster);
  for (size_t i = 0; i < ops.size(); ++i) check_op(cluster, ops[i], i);
  const bool alike = std::all_of(ops.begin(), ops.end(),
                                 [&](const NetworkOp& op) { return is_alike(op, cluster); });
  return Batch(cluster, ops, options, alike).run();
}

NetworkOptions network_options(const Cluster& cluster, bool keep_use) {
  return {cluster.share, cluster.sharing_efficiency, keep_use};
}

std::optional<Nanoseconds> closed_form_ns(const Cluster& cluster, const NetworkOp& op) {
  if (!op.rank_start_ns.empty()) return std::nullopt;
  if (const auto* reduce = std::get_if<AllReduce>(&op.what)) {
    return all_reduce_ns(cluster, *reduce, op.group);
  }
  const AllToAll& a2a = std::get<AllToAll>(op.what);
  if (a2a.algorithm != AllToAllAlgorithm::kDirect) return std::nullopt;
  if (a2a.bytes.empty()) {
    return all_to_all_ns(cluster, a2a.bytes_per_pair, op.group, a2a.round, a2a.rank);
  }
  return all_to_all_v_ns(cluster, a2a.bytes, op.group, a2a.round, a2a.rank);
}

std::vector<double> bytes_of_group(std::span<const double> bytes, const Group& group, int64_t rank,
                                   int64_t num_devices) {
  std::vector<double> own;
  own.reserve(static_cast<size_t>(group.size * group.size));
  for (int64_t i = 0; i < group.size; ++i) {
    const int64_t row = group.member(rank, i) * num_devices;
    for (int64_t j = 0; j < group.size; ++j) {
      own.push_back(bytes[static_cast<size_t>(row + group.member(rank, j))]);
    }
  }
  return own;
}

Nanoseconds alone_ns(const Cluster& cluster, const NetworkOp& op) {
  if (const auto closed = closed_form_ns(cluster, op)) return *closed;
  NetworkOp alone = op;
  alone.after.clear();
  alone.start_ns = 0;
  return run_collectives(cluster, {alone}).ops[0].end_ns;
}

}  // namespace moe
