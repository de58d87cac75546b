#include "engine/network/wire.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/network/closed_form.h"
#include "engine/network/collective_steps.h"
#include "engine/network/fair_share.h"

namespace moe {
namespace {

/// A collective that was given to the wire. Not copyable, since `collective` refers to `op`.
struct Order {
  Order(const Cluster& cluster, const Fabric& fabric, NetworkOp network_op, Share share,
        double begin, double stretch)
      : op(std::move(network_op)),
        collective(cluster, fabric, op, share),
        begin_ns(begin),
        scale(stretch),
        first_step_ns(begin + stretch * collective.start_up_ns()) {}
  Order(const Order&) = delete;

  /// `scale` stretches all times, as Wire::begin() says; `first_step_ns`: when step 0 begins.
  const NetworkOp op;
  const CollectiveSteps collective;
  const double begin_ns;
  const double scale;
  const double first_step_ns;
};

/// A collective that has ended.
struct FinishedCollective {
  size_t op;
  double end_ns;
  std::vector<double> rank_end_ns;  // indexed by seen device (Fabric)
};

/// Collectives that move on the links of a fabric at the same time, step after step: the event loop
/// between a LinkClock and the steps of collective_steps.h. Times are not rounded.
class Traffic {
 public:
  /// The fabric must outlive the traffic.
  Traffic(const Fabric& fabric, const NetworkOptions& options)
      : fabric_(fabric), clock_(fabric, options.share, options.efficiency, options.keep_use) {}

  /// Begins an op: its first step is at order.first_step_ns, or now if that time is past. The order
  /// must live until the op ends. `alone`: no other op will move until this one ends.
  void begin(size_t op, const Order& order, bool alone) {
    Running& r = running_.emplace(op, Running{&order, alone}).first->second;
    r.rank_end_ns.resize(static_cast<size_t>(fabric_.devices_seen()), order.first_step_ns);
    const std::vector<Nanoseconds>& starts = order.op.rank_start_ns;
    for (size_t rank = 0; rank < starts.size(); ++rank) {
      r.rank_end_ns[rank] =
          std::max(order.first_step_ns, order.begin_ns + static_cast<double>(starts[rank]));
    }
    begins_.push({order.first_step_ns, op, kNextStep});
  }

  bool empty() const { return running_.empty(); }
  /// Returns the time of the next event; infinity when there is none.
  double next_ns() {
    const double begin_ns = begins_.empty() ? kInfinity : begins_.top().at_ns;
    return std::min(clock_.next_end_ns(), begin_ns);
  }

  /// Returns whether the op has begun its last step; false for an op that is not running.
  bool is_at_last_step(size_t op) const {
    const auto r = running_.find(op);
    return r != running_.end() && r->second.next_step == r->second.order->collective.num_steps();
  }

  /// Advances to next_ns(), which must be finite. Appends the collectives that ended.
  void step(std::vector<FinishedCollective>& ended) {
    const double next_end = clock_.next_end_ns();
    const double next_begin = begins_.empty() ? kInfinity : begins_.top().at_ns;
    flows_.clear();
    clock_.advance(std::max(clock_.now_ns(), std::min(next_end, next_begin)), flows_);
    for (const FinishedFlow& flow : flows_) take_end(flow, ended);
    if (next_begin <= next_end) take_begin(ended);
  }

  /// Returns what links carried, as LinkClock::take_use() does.
  std::vector<LinkUse> take_use() {
    clock_.next_end_ns();  // records the use of links by flows that ended at this moment
    return clock_.take_use();
  }

 private:
  struct Running {
    const Order* order;
    bool alone;
    int64_t next_step = 0;
    size_t unfinished = 0;  // number of unfinished flows of the current step
    Step step = {};
    std::vector<double> rank_end_ns = {};
  };
  /// The time when TransferBatch `batch` of an op's step begins, or, if `batch` is kNextStep, when
  /// the op's next step begins.
  struct Begin {
    double at_ns;
    size_t op;
    int64_t batch;
    bool operator>(const Begin& o) const {
      return std::tie(at_ns, op, batch) > std::tie(o.at_ns, o.op, o.batch);
    }
  };
  static constexpr int64_t kNextStep = -1;

  void take_begin(std::vector<FinishedCollective>& ended) {
    const Begin b = begins_.top();
    begins_.pop();
    if (b.batch == kNextStep) return next_step(b.op, b.at_ns, ended);
    const Running& r = running_.at(b.op);
    const TransferBatch& batch = r.step.batches[static_cast<size_t>(b.batch)];
    const std::span<const Stream> streams = r.step.streams;
    clock_.add(static_cast<uint32_t>(b.op), r.order->op.priority,
               streams.subspan(batch.first, batch.last - batch.first));
  }

  void take_end(const FinishedFlow& flow, std::vector<FinishedCollective>& ended) {
    Running& r = running_.at(flow.owner);
    r.rank_end_ns[static_cast<size_t>(flow.flow->source)] = clock_.now_ns();
    r.rank_end_ns[static_cast<size_t>(flow.flow->destination)] = clock_.now_ns();
    if (--r.unfinished == 0) next_step(flow.owner, clock_.now_ns(), ended);
  }

  void next_step(size_t op, double at_ns, std::vector<FinishedCollective>& ended) {
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

  const Fabric& fabric_;
  LinkClock clock_;
  std::unordered_map<size_t, Running> running_;
  std::priority_queue<Begin, std::vector<Begin>, std::greater<>> begins_;
  std::vector<FinishedFlow> flows_;  // scratch
};

/// Returns `cluster`; throws UserError if the wire cannot be constructed with the arguments.
const Cluster& checked(const Cluster& cluster, const NetworkOptions& options) {
  check(cluster);
  if (!(options.efficiency > 0 && options.efficiency <= 1)) {
    throw user_error("efficiency = {}: must be above 0 and at most 1", options.efficiency);
  }
  return cluster;
}

void append(std::vector<LinkUse>& all, const std::vector<LinkUse>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

struct Wire::Impl {
  /// The only op in progress (or about to begin), as long as no other op overlaps with it. Its end
  /// is computed by closed form or in a Traffic of its own, and only when it is needed. If another
  /// op begins before that end, both are run in `traffic`, this one from its begin.
  struct LoneOp {
    size_t op;
    std::optional<Nanoseconds> closed;  // its closed form
    bool known = false;                 // whether the members below are set
    FinishedCollective finished = {};
    Nanoseconds end = 0;
    std::vector<LinkUse> use = {};
    int64_t num_events = 0;
    /// An op that begins at or after this time does not overlap with this one.
    double until_ns() const { return std::min(finished.end_ns, static_cast<double>(end)); }
  };
  struct Begin {
    double at_ns;
    size_t op;
    bool operator>(const Begin& o) const { return std::tie(at_ns, op) > std::tie(o.at_ns, o.op); }
  };

  Impl(const Cluster& given, const NetworkOptions& given_options, bool nodes_alike, bool ends)
      : cluster(checked(given, given_options)),
        options(given_options),
        rank_ends(ends),
        fabric(cluster, nodes_alike),
        traffic(fabric, options) {}

  /// Rounds to whole nanoseconds, as Wire counts time. Throws UserError for a time beyond
  /// kLongestNs.
  Nanoseconds nearest(double ns) const {
    return checked_ns(ns, [this] { return with_links("a transfer", cluster); });
  }
  size_t pop_begin();
  void settle();
  bool is_joined();
  void go_alone();
  void end_alone(std::vector<Done>& ended);
  bool step(std::vector<Done>& ended);
  Nanoseconds next_ns();
  NetworkTimes times(const Order& order, const FinishedCollective& finished, Nanoseconds end) const;

  const Cluster cluster;
  const NetworkOptions options;
  const bool rank_ends;
  const Fabric fabric;
  Traffic traffic;
  std::unordered_map<size_t, Order> orders;  // ops that have not ended, by number
  std::priority_queue<Begin, std::vector<Begin>, std::greater<>> begins;  // times of first steps
  std::optional<LoneOp> alone;
  std::vector<LinkUse> use;
  std::vector<FinishedCollective> finished;  // scratch
  size_t num_ops = 0;
  int64_t num_events = 0;
  Nanoseconds now = 0;
};

/// Computes when the lone op (LoneOp) ends if no other op begins before that end.
void Wire::Impl::go_alone() {
  LoneOp& a = *alone;
  const Order& order = orders.at(a.op);
  // Where there is a closed form, the end is taken from it: sums over events are rounded
  // differently, and rounding a scaled end differs from rounding the scaled duration.
  const bool closed = a.closed && order.begin_ns == std::floor(order.begin_ns);
  if (closed) {
    const Nanoseconds length = nearest(order.scale * static_cast<double>(*a.closed));
    a.end = nearest(static_cast<double>(nearest(order.begin_ns) + length));
    if (!rank_ends && !options.keep_use) {
      const auto end_ns = static_cast<double>(a.end);
      a.finished = {a.op, end_ns, {}};
      a.finished.rank_end_ns.resize(static_cast<size_t>(fabric.devices_seen()), end_ns);
      a.known = true;
      return;
    }
  }
  Traffic links(fabric, options);
  links.begin(a.op, order, true);
  std::vector<FinishedCollective> ended;
  for (; !links.empty(); ++a.num_events) {
    if (links.next_ns() == kInfinity)
      nearest(kInfinity);  // the bytes are too many for a finite time
    links.step(ended);
  }
  a.finished = std::move(ended[0]);
  a.use = links.take_use();
  if (!closed) a.end = nearest(a.finished.end_ns);
  a.known = true;
}

/// Whether another op takes its first step before the lone op has ended.
bool Wire::Impl::is_joined() {
  if (begins.empty()) return false;
  const double at_ns = begins.top().at_ns;
  if (!alone->known) {
    const Order& order = orders.at(alone->op);
    const double length = alone->closed ? order.scale * static_cast<double>(*alone->closed - 1) : 0;
    if (at_ns < order.begin_ns + length) return true;
    go_alone();
  }
  return at_ns < alone->until_ns();
}

/// Removes and returns the op that takes its first step next.
size_t Wire::Impl::pop_begin() {
  const size_t op = begins.top().op;
  begins.pop();
  return op;
}

/// Makes `alone` hold the op (if any) whose first step is next, unless `traffic` has ops.
void Wire::Impl::settle() {
  if (alone && !begins.empty()) {
    const double first_step_ns = orders.at(alone->op).first_step_ns;
    if (begins.top().at_ns < first_step_ns) {  // begun later, but with an earlier first step
      begins.push({first_step_ns, alone->op});
      alone.reset();
    }
  }
  if (!alone && traffic.empty() && !begins.empty()) {
    const size_t op = pop_begin();
    alone = LoneOp{op, closed_form_ns(cluster, orders.at(op).op)};
  }
}

Nanoseconds Wire::Impl::next_ns() {
  settle();
  if (alone) {
    if (is_joined()) return std::max(now, nearest(orders.at(alone->op).first_step_ns));
    if (!alone->known) go_alone();
    return std::max(now, alone->end);
  }
  const double begin_ns = begins.empty() ? kInfinity : begins.top().at_ns;
  const double next = std::min(traffic.next_ns(), begin_ns);
  if (next == kInfinity && traffic.empty()) return kNever;
  return std::max(now, nearest(next));
}

NetworkTimes Wire::Impl::times(const Order& order, const FinishedCollective& op,
                               Nanoseconds end) const {
  NetworkTimes times{nearest(order.begin_ns), end, {}};
  times.rank_end_ns.reserve(static_cast<size_t>(fabric.num_devices()));
  for (int64_t r = 0; r < fabric.num_devices(); ++r) {
    const double ns = op.rank_end_ns[static_cast<size_t>(fabric.seen(r))];
    times.rank_end_ns.push_back(ns == op.end_ns ? end : std::min(nearest(ns), end));
  }
  return times;
}

void Wire::Impl::end_alone(std::vector<Done>& ended) {
  const LoneOp& a = *alone;
  ended.push_back({a.op, times(orders.at(a.op), a.finished, a.end), a.finished.end_ns});
  append(use, traffic.take_use());
  append(use, a.use);
  num_events += a.num_events;
  orders.erase(a.op);
  alone.reset();
}

bool Wire::Impl::step(std::vector<Done>& ended) {
  settle();
  if (alone) {
    if (is_joined()) {
      traffic.begin(alone->op, orders.at(alone->op), false);
      alone.reset();
    } else {
      if (!alone->known) go_alone();
      end_alone(ended);
    }
    return true;
  }
  const double begin_ns = begins.empty() ? kInfinity : begins.top().at_ns;
  const double next = traffic.next_ns();
  if (next == kInfinity && begin_ns == kInfinity) {
    if (!traffic.empty()) nearest(kInfinity);
    return false;
  }
  ++num_events;
  if (next <= begin_ns) {
    finished.clear();
    traffic.step(finished);
    for (const FinishedCollective& op : finished) {
      ended.push_back({op.op, times(orders.at(op.op), op, nearest(op.end_ns)), op.end_ns});
      orders.erase(op.op);
    }
    return true;
  }
  const size_t op = pop_begin();
  traffic.begin(op, orders.at(op), false);
  return true;
}

Wire::Wire(const Cluster& cluster, const NetworkOptions& options, bool nodes_alike, bool rank_ends)
    : impl_(std::make_unique<Impl>(cluster, options, nodes_alike, rank_ends)) {}

Wire::~Wire() = default;

size_t Wire::begin(NetworkOp op, double at_ns, double scale) {
  Impl& w = *impl_;
  MOE_CHECK(at_ns >= static_cast<double>(w.now) - 1,
            "Wire::begin: at_ns = {}, but must not be before now() = {}", at_ns, w.now);
  MOE_CHECK(
      scale > 0 && (scale == 1 || op.rank_start_ns.empty()),
      "Wire::begin: scale = {}, but must be above 0, and 1 if NetworkOp::rank_start_ns is given",
      scale);
  MOE_CHECK(
      !w.fabric.nodes_alike() || is_alike(op, w.cluster),
      "Wire::begin: the Wire was made with nodes_alike = true, but the transfers of this op differ "
      "between nodes (is_alike() must be true)");
  const size_t number = w.num_ops++;
  const Order& order =
      w.orders
          .try_emplace(number, w.cluster, w.fabric, std::move(op), w.options.share, at_ns, scale)
          .first->second;
  w.begins.push({order.first_step_ns, number});
  return number;
}

Nanoseconds Wire::next_ns() {
  return impl_->next_ns();
}

void Wire::advance(Nanoseconds to, std::vector<Done>& ended) {
  MOE_CHECK(to >= impl_->now && to < kNever,
            "Wire::advance: to = {}, but must be from now() = {} to below kNever", to, impl_->now);
  while (impl_->next_ns() <= to) impl_->step(ended);
  impl_->now = to;
}

bool Wire::step(std::vector<Done>& ended) {
  return impl_->step(ended);
}

Nanoseconds Wire::now() const {
  return impl_->now;
}

bool Wire::may_end_next(size_t op) {
  impl_->settle();
  if (!impl_->alone) return impl_->traffic.is_at_last_step(op);
  return impl_->alone->op == op && !impl_->is_joined();
}

std::vector<LinkUse> Wire::take_use() {
  append(impl_->use, impl_->traffic.take_use());
  return std::exchange(impl_->use, {});
}

LinkName Wire::name(uint32_t link) const {
  return impl_->fabric.name(link);
}

double Wire::bytes_per_s(uint32_t link) const {
  return impl_->fabric.bytes_per_s()[link];
}

uint32_t Wire::num_links() const {
  return static_cast<uint32_t>(impl_->fabric.bytes_per_s().size());
}

int64_t Wire::num_events() const {
  return impl_->num_events;
}

}  // namespace moe
