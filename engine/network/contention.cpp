#include "engine/network/contention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/network/closed_form.h"
#include "engine/network/transfers.h"

namespace moe {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void check_bytes(const std::string& field, double bytes) {
  if (!std::isfinite(bytes) || bytes < 0) {
    throw user_error("{} = {}: must be a finite number of at least 0", field, bytes);
  }
}

void check_count(const std::string& field, int64_t count, int64_t least) {
  if (count < least) throw user_error("{} = {}: must be at least {}", field, count, least);
}

void check_matrix(const std::string& field, const std::vector<double>& bytes, int64_t devices) {
  const size_t n = static_cast<size_t>(devices);
  if (bytes.size() != n * n) {
    throw user_error("{}: {} entries, must be {} rows of {} (one a device of the cluster)", field,
                     bytes.size(), n, n);
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
    if (!a2a->bytes.empty()) check_matrix(field + ".bytes", a2a->bytes, cluster.num_devices());
    check_count(field + ".channels", a2a->channels, 1);
  } else {
    const AllReduce& reduce = std::get<AllReduce>(op.what);
    check_bytes(field + ".bytes", reduce.bytes);
    check_count(field + ".rings", reduce.rings, 0);
  }
  check_count(field + ".start_ns", op.start_ns, 0);
  for (const size_t before : op.after) {
    if (before >= index) {
      throw user_error("{}.after = {}: must be an earlier op, below {}", field, before, index);
    }
  }
  const size_t ranks = op.rank_start_ns.size();
  if (ranks != 0 && ranks != static_cast<size_t>(cluster.num_devices())) {
    throw user_error("{}.rank_start_ns: {} entries, must be {} (one a device of the cluster)",
                     field, ranks, cluster.num_devices());
  }
  for (size_t r = 0; r < ranks; ++r) {
    check_count(fmt::format("{}.rank_start_ns[{}]", field, r), op.rank_start_ns[r], 0);
  }
}

Nanoseconds nearest(double ns) {
  if (!(ns < 0x1p62)) throw user_error("ops: they take {:g} s, beyond the clock", ns / 1e9);
  return std::llround(ns);
}

/// Everything about one run of run_collectives().
class Meeting {
 public:
  Meeting(const Cluster& cluster, const std::vector<NetworkOp>& ops, const NetworkOptions& options,
          bool alike)
      : cluster_(cluster),
        fabric_(cluster, alike),
        clock_(fabric_, options.share, options.efficiency, options.keep_use) {
    ops_.reserve(ops.size());
    for (const NetworkOp& op : ops) {
      ops_.push_back({&op, Collective(cluster_, fabric_, op, options.share)});
    }
    for (size_t i = 0; i < ops_.size(); ++i) {
      ops_[i].waits_for = ops[i].after.size();
      for (const size_t before : ops[i].after) ops_[before].releases.push_back(i);
    }
  }

  NetworkRun run() {
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (ops_[i].waits_for == 0) release(i);
    }
    std::vector<Ended> ended;
    for (;; ++num_events_) {
      const double next_end = clock_.next_end_ns();
      const double next_begin = begins_.empty() ? kInfinity : begins_.top().at_ns;
      if (next_end == kInfinity && next_begin == kInfinity) break;
      clock_.advance(std::max(clock_.now_ns(), std::min(next_end, next_begin)), ended);
      for (const Ended& e : ended) take_end(e);
      ended.clear();
      if (next_begin <= next_end) take_begin();
    }
    if (in_flight_ > 0) nearest(kInfinity);  // more bytes than a double can time
    return result();
  }

 private:
  struct Op {
    const NetworkOp* op;
    Collective collective;
    std::vector<size_t> releases = {};
    size_t waits_for = 0;
    double ready_ns = 0, begin_ns = 0, end_ns = 0;
    int64_t next_step = 0;
    size_t unfinished = 0;  // flows of the step
    Step step = {};
    std::vector<double> rank_end_ns = {};  // by seen device
  };
  /// Wave `wave` of an op's step begins; or the next step does.
  struct Begin {
    double at_ns;
    size_t op;
    int64_t wave;
    bool operator>(const Begin& o) const {
      return std::tie(at_ns, op, wave) > std::tie(o.at_ns, o.op, o.wave);
    }
  };
  static constexpr int64_t kNextStep = -1;

  void release(size_t i) {
    Op& o = ops_[i];
    o.begin_ns = o.ready_ns + static_cast<double>(o.op->start_ns);
    const double first_step = o.begin_ns + o.collective.start_up_ns();
    o.rank_end_ns.resize(static_cast<size_t>(fabric_.devices_seen()), first_step);
    for (size_t r = 0; r < o.op->rank_start_ns.size(); ++r) {
      o.rank_end_ns[r] =
          std::max(first_step, o.begin_ns + static_cast<double>(o.op->rank_start_ns[r]));
    }
    begins_.push({first_step, i, kNextStep});
  }

  void take_begin() {
    const Begin b = begins_.top();
    begins_.pop();
    Op& o = ops_[b.op];
    if (b.wave == kNextStep) {
      ++in_flight_;
      next_step(b.op);
      return;
    }
    const Wave& wave = o.step.waves[static_cast<size_t>(b.wave)];
    const std::span<const Stream> streams = o.step.streams;
    clock_.add(static_cast<uint32_t>(b.op), o.op->priority,
               streams.subspan(wave.first, wave.last - wave.first));
  }

  /// Nothing else moves until the op, at its next step, is done.
  bool has_links_alone(const Op& o) const {
    if (in_flight_ > 1) return false;
    const double end_ns = clock_.now_ns() + o.collective.alone_ns();
    return end_ns < kInfinity && (begins_.empty() || begins_.top().at_ns >= end_ns);
  }

  void next_step(size_t i) {
    Op& o = ops_[i];
    while (o.next_step < o.collective.num_steps()) {
      o.collective.make_step(o.next_step++, has_links_alone(o), o.step);
      o.unfinished = o.step.flows.size();
      for (size_t w = 0; w < o.step.waves.size(); ++w) {
        begins_.push({clock_.now_ns() + o.step.waves[w].delay_ns, i, static_cast<int64_t>(w)});
      }
      if (o.unfinished > 0) return;
    }
    o.step = {};
    --in_flight_;
    o.end_ns = *std::max_element(o.rank_end_ns.begin(), o.rank_end_ns.end());
    for (const size_t r : o.releases) {
      ops_[r].ready_ns = std::max(ops_[r].ready_ns, o.end_ns);
      if (--ops_[r].waits_for == 0) release(r);
    }
  }

  void take_end(const Ended& ended) {
    Op& o = ops_[ended.owner];
    o.rank_end_ns[static_cast<size_t>(ended.flow->source)] = clock_.now_ns();
    o.rank_end_ns[static_cast<size_t>(ended.flow->destination)] = clock_.now_ns();
    if (--o.unfinished == 0) next_step(ended.owner);
  }

  NetworkRun result() const {
    NetworkRun run;
    for (const Op& o : ops_) {
      NetworkTimes times{nearest(o.begin_ns), nearest(o.end_ns), {}};
      for (int64_t r = 0; r < fabric_.num_devices(); ++r) {
        times.rank_end_ns.push_back(nearest(o.rank_end_ns[static_cast<size_t>(fabric_.seen(r))]));
      }
      run.ops.push_back(std::move(times));
    }
    run.num_events = num_events_;
    run.nodes_alike = fabric_.nodes_alike();
    for (uint32_t l = 0; l < fabric_.bytes_per_s().size(); ++l)
      run.links.push_back(fabric_.name(l));
    run.use = clock_.use();
    return run;
  }

  const Cluster& cluster_;
  Fabric fabric_;
  LinkClock clock_;
  std::vector<Op> ops_;
  std::priority_queue<Begin, std::vector<Begin>, std::greater<>> begins_;
  int64_t num_events_ = 0;
  int64_t in_flight_ = 0;  // ops at one of their steps
};

}  // namespace

NetworkRun run_collectives(const Cluster& cluster, const std::vector<NetworkOp>& ops,
                           const NetworkOptions& options) {
  check(cluster);
  if (!(options.efficiency > 0 && options.efficiency <= 1)) {
    throw user_error("efficiency = {}: must be above 0 and at most 1", options.efficiency);
  }
  for (size_t i = 0; i < ops.size(); ++i) check_op(cluster, ops[i], i);
  const bool alike = std::all_of(ops.begin(), ops.end(), [&](const NetworkOp& op) {
    return is_alike(op, cluster.num_devices());
  });
  return Meeting(cluster, ops, options, alike).run();
}

NetworkOptions network_options(const Cluster& cluster, bool keep_use) {
  return {cluster.share, cluster.sharing_efficiency, keep_use};
}

std::optional<Nanoseconds> closed_form_ns(const Cluster& cluster, const NetworkOp& op) {
  if (!op.rank_start_ns.empty()) return std::nullopt;
  if (const auto* reduce = std::get_if<AllReduce>(&op.what)) {
    return all_reduce_ns(cluster, reduce->bytes, reduce->rings);
  }
  const AllToAll& a2a = std::get<AllToAll>(op.what);
  if (a2a.algorithm != AllToAllAlgorithm::kDirect) return std::nullopt;
  if (a2a.bytes.empty()) return all_to_all_ns(cluster, a2a.bytes_per_pair);
  return all_to_all_v_ns(cluster, a2a.bytes);
}

Nanoseconds alone_ns(const Cluster& cluster, const NetworkOp& op) {
  if (const auto closed = closed_form_ns(cluster, op)) return *closed;
  NetworkOp alone = op;
  alone.after.clear();
  alone.start_ns = 0;
  return run_collectives(cluster, {alone}).ops[0].end_ns;
}

}  // namespace moe
