#include "engine/network/transfers.h"

#include <algorithm>
#include <cmath>

namespace moe {

void stretch(Step& step, double factor) {
  for (Flow& flow : step.flows) flow.bytes *= factor;
  for (Wave& wave : step.waves) wave.delay_ns *= factor;
}

bool is_even(const AllToAll& a2a, int64_t num_devices) {
  if (a2a.bytes.empty() || num_devices == 1) return true;
  const auto n = static_cast<size_t>(num_devices);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      if (i != j && a2a.bytes[i * n + j] != a2a.bytes[1]) return false;
    }
  }
  return true;
}

bool is_alike(const NetworkOp& op, int64_t num_devices) {
  if (!op.rank_start_ns.empty()) return false;
  const auto* a2a = std::get_if<AllToAll>(&op.what);
  return a2a == nullptr || is_even(*a2a, num_devices);
}

Collective::Collective(const Cluster& cluster, const Fabric& fabric, const NetworkOp& op,
                       Share share)
    : fabric_(fabric),
      op_(op),
      a2a_(std::get_if<AllToAll>(&op.what)),
      by_channel_(share == Share::kPerChannel) {
  const int64_t n = fabric.num_devices();
  const auto latest = std::max_element(op.rank_start_ns.begin(), op.rank_start_ns.end());
  if (latest != op.rank_start_ns.end()) latest_ns_ = static_cast<double>(*latest);
  // Rounds and steps wait for all ranks.
  if (!is_direct()) start_up_ns_ = latest_ns_;
  if (a2a_ != nullptr) {
    even_ = is_even(*a2a_, n);
    num_steps_ = n == 1 ? 0 : is_direct() ? 1 : n - 1;
    if (n > 1) {
      start_up_ns_ += static_cast<double>(cluster.a2a_base_ns + cluster.a2a_per_peer_ns * (n - 1));
    }
    return;
  }
  const AllReduce& reduce = std::get<AllReduce>(op.what);
  num_steps_ = reduce.bytes > 0 ? 2 * (n - 1) : 0;
  ring_groups_ = cluster.nodes > 1 ? node_ports(cluster).groups : 1;
  num_rings_ = reduce.rings > 0 ? reduce.rings : ring_groups_;
}

bool Collective::is_direct() const {
  return a2a_ != nullptr && a2a_->algorithm == AllToAllAlgorithm::kDirect;
}

double Collective::pair_bytes(int64_t i, int64_t j) const {
  if (a2a_->bytes.empty()) return a2a_->bytes_per_pair;
  return even_ ? a2a_->bytes[1] : a2a_->bytes[static_cast<size_t>(i * fabric_.num_devices() + j)];
}

double Collective::delay_of(int64_t i, int64_t j) const {
  const auto& starts = op_.rank_start_ns;
  if (starts.empty()) return 0;
  return static_cast<double>(
      std::max(starts[static_cast<size_t>(i)], starts[static_cast<size_t>(j)]));
}

void Collective::add_pair(std::vector<Transfer>& all, int64_t i, int64_t j, int64_t count) const {
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

void Collective::add_sends(std::vector<Transfer>& all, int64_t i) const {
  if (!fabric_.nodes_alike()) {
    for (int64_t j = 0; j < fabric_.num_devices(); ++j) {
      if (j != i) add_pair(all, i, j, 1);
    }
    return;
  }
  const int64_t per_node = fabric_.devices_per_node();
  for (int64_t j = 0; j < per_node; ++j) {
    if (j != i) add_pair(all, i, j, 1);
    if (fabric_.nodes() > 1) add_pair(all, i, per_node + j, fabric_.nodes() - 1);
  }
}

std::vector<Collective::Transfer> Collective::direct() const {
  std::vector<Transfer> all;
  for (int64_t i = 0; i < fabric_.devices_seen(); ++i) {
    const size_t first = all.size();
    add_sends(all, i);
    if (!by_channel_) continue;
    double sends = 0;
    for (size_t t = first; t < all.size(); ++t) sends += all[t].flow.count;
    for (size_t t = first; t < all.size(); ++t) {
      all[t].weight = static_cast<double>(a2a_->channels) / sends;
    }
  }
  return all;
}

std::vector<Collective::Transfer> Collective::round(int64_t k) const {
  std::vector<Transfer> all;
  for (int64_t i = 0; i < fabric_.devices_seen(); ++i) {
    add_pair(all, i, (i + k) % fabric_.num_devices(), 1);
  }
  for (Transfer& t : all) {
    if (by_channel_) t.weight = static_cast<double>(a2a_->channels);
  }
  return all;
}

void Collective::add_to_other_nodes(std::vector<Transfer>& all, int64_t node, double chunk) const {
  const int64_t per_node = fabric_.devices_per_node();
  const int64_t to_node = (node + 1) % fabric_.nodes();
  for (int64_t g = 0; g < std::min(ring_groups_, num_rings_); ++g) {
    const int64_t rings = num_rings_ / ring_groups_ + (g < num_rings_ % ring_groups_ ? 1 : 0);
    const Fabric::Path path = fabric_.nic_path(node, g, to_node);
    all.push_back({fabric_.latency_ns(true),
                   path.out,
                   path.in,
                   1,
                   {chunk, static_cast<double>(rings),
                    static_cast<int32_t>(fabric_.seen((node + 1) * per_node - 1)),
                    static_cast<int32_t>(fabric_.seen(to_node * per_node))}});
  }
}

std::vector<Collective::Transfer> Collective::ring_step() const {
  const int64_t per_node = fabric_.devices_per_node();
  const double cuts = static_cast<double>(fabric_.num_devices() * num_rings_);
  const double chunk = std::floor(std::get<AllReduce>(op_.what).bytes / cuts);
  std::vector<Transfer> all;
  for (int64_t node = 0; node < fabric_.nodes_seen(); ++node) {
    const int64_t first = node * per_node;
    for (int64_t i = 0; i < per_node; ++i) {
      if (i + 1 == per_node && fabric_.nodes() > 1) continue;
      const int64_t from = first + i, to = first + (i + 1) % per_node;
      const Fabric::Path path = fabric_.path(from, to);
      all.push_back({fabric_.latency_ns(false),
                     path.out,
                     path.in,
                     1,
                     {chunk, static_cast<double>(num_rings_), static_cast<int32_t>(from),
                      static_cast<int32_t>(to)}});
    }
    if (fabric_.nodes() > 1) add_to_other_nodes(all, node, chunk);
  }
  return all;
}

void Collective::sort_into(std::vector<Transfer> all, Step& step) {
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
    if (step.waves.empty() || step.waves.back().delay_ns != t.delay_ns) {
      step.waves.push_back({t.delay_ns, step.streams.size(), step.streams.size()});
    }
    step.streams.push_back({t.out, t.in, t.weight, {step.flows.data() + first, last - first}});
    ++step.waves.back().last;
  }
}

bool Collective::make_step(int64_t k, bool alone, Step& step) const {
  if (a2a_ == nullptr) {
    if (k == 0) sort_into(ring_step(), step);
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
