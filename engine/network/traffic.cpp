#include "engine/network/traffic.h"

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/network/fair_share.h"

namespace moe {

Order::Order(const Cluster& cluster, const Fabric& fabric, NetworkOp network_op, Share share,
             double begin, double stretch)
    : op(std::move(network_op)),
      collective(cluster, fabric, op, share),
      begin_ns(begin),
      scale(stretch),
      first_step_ns(begin + stretch * collective.start_up_ns()) {}

Traffic::Traffic(const Fabric& fabric, const NetworkOptions& options)
    : fabric_(fabric), clock_(fabric, options.share, options.efficiency, options.keep_use) {}

void Traffic::begin(size_t op, const Order& order, bool alone) {
  Running& r = running_.emplace(op, Running{&order, alone}).first->second;
  r.rank_end_ns.resize(static_cast<size_t>(fabric_.devices_seen()), order.first_step_ns);
  const std::vector<Nanoseconds>& starts = order.op.rank_start_ns;
  for (size_t rank = 0; rank < starts.size(); ++rank) {
    r.rank_end_ns[rank] =
        std::max(order.first_step_ns, order.begin_ns + static_cast<double>(starts[rank]));
  }
  begins_.push({order.first_step_ns, op, kNextStep});
}

bool Traffic::is_at_last_step(size_t op) const {
  const auto r = running_.find(op);
  return r != running_.end() && r->second.next_step == r->second.order->collective.num_steps();
}

double Traffic::next_ns() {
  const double begin_ns = begins_.empty() ? kInfinity : begins_.top().at_ns;
  return std::min(clock_.next_end_ns(), begin_ns);
}

void Traffic::step(std::vector<FinishedCollective>& ended) {
  const double next_end = clock_.next_end_ns();
  const double next_begin = begins_.empty() ? kInfinity : begins_.top().at_ns;
  flows_.clear();
  clock_.advance(std::max(clock_.now_ns(), std::min(next_end, next_begin)), flows_);
  for (const FinishedFlow& flow : flows_) take_end(flow, ended);
  if (next_begin <= next_end) take_begin(ended);
}

void Traffic::take_begin(std::vector<FinishedCollective>& ended) {
  const Begin b = begins_.top();
  begins_.pop();
  if (b.batch == kNextStep) return next_step(b.op, b.at_ns, ended);
  const Running& r = running_.at(b.op);
  const TransferBatch& batch = r.step.batches[static_cast<size_t>(b.batch)];
  const std::span<const Stream> streams = r.step.streams;
  clock_.add(static_cast<uint32_t>(b.op), r.order->op.priority,
             streams.subspan(batch.first, batch.last - batch.first));
}

void Traffic::next_step(size_t op, double at_ns, std::vector<FinishedCollective>& ended) {
  Running& r = running_.at(op);
  const CollectiveSteps& collective = r.order->collective;
  while (r.next_step < collective.num_steps()) {
    if (collective.make_step(r.next_step++, r.alone, r.step)) stretch(r.step, r.order->scale);
    r.unfinished = r.step.flows.size();
    for (size_t w = 0; w < r.step.batches.size(); ++w) {
      begins_.push({at_ns + r.step.batches[w].delay_ns, op, static_cast<int64_t>(w)});
    }
    if (r.unfinished > 0) return;
  }
  const double end_ns = *std::max_element(r.rank_end_ns.begin(), r.rank_end_ns.end());
  ended.push_back({op, end_ns, std::move(r.rank_end_ns)});
  running_.erase(op);
}

void Traffic::take_end(const FinishedFlow& flow, std::vector<FinishedCollective>& ended) {
  Running& r = running_.at(flow.owner);
  r.rank_end_ns[static_cast<size_t>(flow.flow->source)] = clock_.now_ns();
  r.rank_end_ns[static_cast<size_t>(flow.flow->destination)] = clock_.now_ns();
  if (--r.unfinished == 0) next_step(flow.owner, clock_.now_ns(), ended);
}

std::vector<LinkUse> Traffic::take_use() {
  clock_.next_end_ns();  // records the use of links by flows that ended at this moment
  return clock_.take_use();
}

}  // namespace moe
