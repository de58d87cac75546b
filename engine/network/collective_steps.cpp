#include "engine/network/collective_steps.h"

#include <algorithm>

namespace moe {

void stretch(Step& step, double factor) {
  for (Flow& flow : step.flows) flow.bytes *= factor;
  for (TransferBatch& batch : step.batches) batch.delay_ns *= factor;
}

bool is_even(const AllToAll& a2a, const Group& group, int64_t num_devices) {
  if (a2a.bytes.empty() || group.size == 1) return true;
  if (a2a.rank >= 0) {
    for (size_t k = 0; k < a2a.bytes.size(); ++k) {
      const bool own = k % static_cast<size_t>(group.size + 1) == 0;  // on the diagonal
      if (!own && a2a.bytes[k] != a2a.bytes[1]) return false;
    }
    return true;
  }
  for (int64_t i = 0; i < num_devices; ++i) {
    for (int64_t place = 0; place < group.size; ++place) {
      const int64_t j = group.member(i, place);
      const double bytes = a2a.bytes[static_cast<size_t>(i * num_devices + j)];
      if (i != j && bytes != a2a.bytes[static_cast<size_t>(group.stride)]) return false;
    }
  }
  return true;
}

bool is_alike(const NetworkOp& op, const Cluster& cluster) {
  const Group group = resolve(op.group, cluster.num_devices(), "group");
  const auto* a2a = std::get_if<AllToAll>(&op.what);
  const Round round = a2a == nullptr ? Round() : a2a->round;
  if (!op.rank_start_ns.empty() || !nodes_alike(group, cluster.devices_per_node, round)) {
    return false;
  }
  if ((a2a == nullptr ? std::get<AllReduce>(op.what).rank : a2a->rank) >= 0) return false;
  return a2a == nullptr || is_even(*a2a, group, cluster.num_devices());
}

CollectiveSteps::CollectiveSteps(const Cluster& cluster, const Fabric& fabric, const NetworkOp& op,
                                 Share share)
    : fabric_(fabric),
      op_(op),
      a2a_(std::get_if<AllToAll>(&op.what)),
      group_(resolve(op.group, fabric.num_devices(), "group")),
      by_channel_(share == Share::kPerChannel) {
  const int64_t n = group_.size;
  const auto latest = std::max_element(op.rank_start_ns.begin(), op.rank_start_ns.end());
  if (latest != op.rank_start_ns.end()) latest_ns_ = static_cast<double>(*latest);
  // Pairwise rounds and the steps of an all-reduce begin only when all ranks have begun.
  if (!is_direct()) start_up_ns_ = latest_ns_;
  if (a2a_ != nullptr) {
    even_ = is_even(*a2a_, group_, fabric.num_devices());
    const int64_t peers = a2a_->round.peers(group_);
    num_steps_ = peers == 0 ? 0 : is_direct() ? 1 : n - 1;
    start_up_ns_ += static_cast<double>(a2a_start_up_ns(cluster, peers));
    return;
  }
  AllReduce reduce = std::get<AllReduce>(op.what);
  reduce.algorithm = algorithm_of(cluster, reduce, group_);
  phases_ = reduce_phases(
      cluster, {fabric.num_devices(), fabric.devices_per_node(), fabric.devices_per_nic()}, reduce,
      group_, fabric.devices_seen());
  for (const ReducePhase& phase : phases_) num_steps_ += phase.steps;
  if (num_steps_ > 0) start_up_ns_ += static_cast<double>(cluster.all_reduce_base_ns);
}

bool CollectiveSteps::is_direct() const {
  return a2a_ != nullptr && a2a_->algorithm == AllToAllAlgorithm::kDirect;
}

double CollectiveSteps::pair_bytes(int64_t i, int64_t j) const {
  if (a2a_->bytes.empty()) return a2a_->bytes_per_pair;
  if (a2a_->rank >= 0) {
    return a2a_->bytes[static_cast<size_t>(group_.place(i) * group_.size + group_.place(j))];
  }
  return even_ ? a2a_->bytes[static_cast<size_t>(group_.stride)]
               : a2a_->bytes[static_cast<size_t>(i * fabric_.num_devices() + j)];
}

double CollectiveSteps::delay_of(int64_t i, int64_t j) const {
  const auto& starts = op_.rank_start_ns;
  if (starts.empty()) return 0;
  return static_cast<double>(
      std::max(starts[static_cast<size_t>(i)], starts[static_cast<size_t>(j)]));
}

void CollectiveSteps::add_pair(std::vector<Transfer>& all, int64_t i, int64_t j,
                               int64_t count) const {
  const double bytes = pair_bytes(i, j);
  if (bytes == 0) return;
  const Fabric::Path path = fabric_.path(i, j);
  const double wait_ns = is_direct() ? delay_of(i, j) : 0;
  all.push_back({wait_ns + fabric_.latency_ns(path.far),
                 path.out,
                 path.in,
                 1,
                 {bytes, static_cast<double>(count), static_cast<int32_t>(fabric_.seen(i)),
                  static_cast<int32_t>(fabric_.seen(j))}});
}

void CollectiveSteps::add_sends(std::vector<Transfer>& all, int64_t i) const {
  const int64_t per_node = fabric_.devices_per_node(), node = i / per_node;
  // Where all nodes have the same transfers, sends to the same place in different nodes use the
  // same links, so they are counted and added as one.
  std::vector<int64_t> far(fabric_.nodes_alike() ? static_cast<size_t>(per_node) : 0);
  const int64_t first = a2a_->round.sends_to(group_, group_.place(i));
  for (int64_t place = first; place < first + a2a_->round.members(group_); ++place) {
    const int64_t j = group_.member(i, place);
    if (j == i) continue;
    if (j / per_node == node || far.empty()) {
      add_pair(all, i, j, 1);
    } else {
      ++far[static_cast<size_t>(j % per_node)];
    }
  }
  const int64_t other_node = (node + 1) % fabric_.nodes() * per_node;
  for (size_t j = 0; j < far.size(); ++j) {
    if (far[j] > 0) add_pair(all, i, other_node + static_cast<int64_t>(j), far[j]);
  }
}

std::vector<CollectiveSteps::Transfer> CollectiveSteps::direct() const {
  std::vector<Transfer> all;
  for (int64_t i = 0; i < fabric_.devices_seen(); ++i) {
    const size_t first = all.size();
    if (takes_part(i)) add_sends(all, i);
    if (!by_channel_) continue;
    double sends = 0;
    for (size_t t = first; t < all.size(); ++t) sends += all[t].flow.count;
    for (size_t t = first; t < all.size(); ++t) {
      all[t].weight = static_cast<double>(a2a_->channels) / sends;
    }
  }
  return all;
}

std::vector<CollectiveSteps::Transfer> CollectiveSteps::round(int64_t k) const {
  std::vector<Transfer> all;
  for (int64_t i = 0; i < fabric_.devices_seen(); ++i) {
    const int64_t place = (group_.place(i) + k) % group_.size;
    const int64_t first = a2a_->round.sends_to(group_, group_.place(i));
    if (place < first || place >= first + a2a_->round.members(group_)) continue;
    if (!takes_part(i)) continue;
    add_pair(all, i, group_.member(i, place), 1);
  }
  for (Transfer& t : all) {
    if (by_channel_) t.weight = static_cast<double>(a2a_->channels);
  }
  return all;
}

std::vector<CollectiveSteps::Transfer> CollectiveSteps::reduce_step(
    const ReducePhase& phase) const {
  const int64_t per_node = fabric_.devices_per_node();
  std::vector<Transfer> all;
  for (const RingHop& hop : phase.hops) {
    const Fabric::Path path = hop.nic_out < 0 ? fabric_.path(hop.from, hop.to)
                                              : fabric_.nic_path(hop.from / per_node, hop.nic_out,
                                                                 hop.to / per_node, hop.nic_in);
    all.push_back({phase.wait_ns + fabric_.latency_ns(path.far),
                   path.out,
                   path.in,
                   1,
                   {hop.nic_out < 0 ? phase.near_bytes : phase.far_bytes,
                    static_cast<double>(hop.rings), static_cast<int32_t>(fabric_.seen(hop.from)),
                    static_cast<int32_t>(fabric_.seen(hop.to))}});
  }
  return all;
}

void CollectiveSteps::sort_into(std::vector<Transfer> all, Step& step) {
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.key() < b.key(); });
  step = {};
  step.flows.reserve(all.size());
  for (const Transfer& t : all) step.flows.push_back(t.flow);
  for (size_t first = 0, last = 0; first < all.size(); first = last) {
    const Transfer& t = all[first];
    while (last < all.size() && all[last].delay_ns == t.delay_ns && all[last].out == t.out &&
           all[last].in == t.in && all[last].weight == t.weight) {
      ++last;
    }
    if (step.batches.empty() || step.batches.back().delay_ns != t.delay_ns) {
      step.batches.push_back({t.delay_ns, step.streams.size(), step.streams.size()});
    }
    step.streams.push_back({t.out, t.in, t.weight, {step.flows.data() + first, last - first}});
    ++step.batches.back().last;
  }
}

bool CollectiveSteps::make_step(int64_t k, bool alone, Step& step) const {
  if (a2a_ == nullptr) {
    const auto* phase = phases_.data();
    for (; k >= phase->steps; ++phase) k -= phase->steps;
    if (k == 0) sort_into(reduce_step(*phase), step);
    return k == 0;
  }
  std::vector<Transfer> all = is_direct() ? direct() : round(k + 1);
  const bool by_bytes = alone && is_direct() && op_.rank_start_ns.empty();
  for (Transfer& t : all) {
    if (!by_bytes) break;
    t.weight = 1;
    t.flow.count *= t.flow.bytes;
    t.flow.bytes = 1;
  }
  sort_into(std::move(all), step);
  for (Stream& stream : step.streams) stream.by_bytes = by_bytes;
  return true;
}

}  // namespace moe
