#include "engine/sim/step_replay.h"

#include <algorithm>
#include <cmath>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/cost/dispatch_cost.h"
#include "engine/graph/micro_batches.h"
#include "engine/graph/op_def.h"
#include "engine/ops/placed.h"

namespace moe {
namespace {

bool is_collective(const Graph& graph, OpId op) {
  return graph.def(op).collective != Collective::kNone;
}

}  // namespace

StepReplay::StepReplay(const Plan& plan, const RankPlacements& policies,
                       std::shared_ptr<const PathProfile> popularity)
    : plan_(plan),
      micros_(num_micro_batches(plan.graph)),
      popularity_(std::move(popularity)),
      plain_ns_(plan.graph.num_ops()),
      plain_bytes_(plan.graph.num_ops()),
      loaded_(plan.graph.num_ops(), -1) {
  const Graph& graph = plan.graph;
  if (plan.spec.routing != nullptr) {
    routed_ =
        std::make_unique<RoutedStep>(graph, plan.spec.model->grid(graph.num_ranks).over(Axis::kEp),
                                     plan.spec.cost->reads_blocks());
    offloaded_ = std::make_unique<OffloadedExperts>(graph, routed_->holders(), routed_->layers());
    placements_ = next_ = state_ = routed_->first_placements();
    add_policies(policies);
    if (plan.spec.dispatcher) {
      routed_->take_bytes([this](size_t layer, bool to_expert, std::vector<double>& bytes) {
        add_bytes(layer, to_expert, bytes);
      });
    }
    routed_ops_ = routed_->ops();
    routed_ops_.insert(routed_ops_.end(), offloaded_->ops().begin(), offloaded_->ops().end());
    for (size_t i = 0; i < routed_ops_.size(); ++i) {
      loaded_[routed_ops_[i].index()] = static_cast<int32_t>(i);
    }
  }
  for (const OpId op : graph.op_ids()) {
    if (loaded_[op.index()] >= 0) continue;
    plain_ns_[op.index()] = plan.spec.cost->op_ns(graph, op);
    const Dispatcher* const dispatcher = plan.spec.dispatcher.get();
    const bool moves = dispatcher != nullptr && Dispatcher::runs(graph, graph.op(op));
    plain_bytes_[op.index()] =
        moves ? dispatcher->sent(graph, op, plan.spec.work) : wire_bytes(graph, op, plan.spec.work);
  }
  if (!routed_) set_ranks(1);
}

void StepReplay::add_policies(const RankPlacements& policies) {
  const Graph& graph = plan_.graph;
  for (const OpId id : graph.op_ids()) {
    if (graph.def(id).moe != MoeOp::kPlace) continue;
    const Op& op = graph.op(id);
    const std::string name = attr_string(op, "policy");
    PlacementFunction policy;
    if (policies) policy = policies(0, name);
    if (!policy) {
      policy = [&built_in = builtin_policy(name), options = ops::place_options(op)](
                   const PlaceInput& input) { return built_in.place(input, options); };
    }
    placing_.push_back({id, std::move(policy)});
  }
  const auto place = [&](const Placing& p) {
    return std::pair(graph.op(p.op).micro, graph.op(p.op).layer);
  };
  std::sort(placing_.begin(), placing_.end(),
            [&](const Placing& a, const Placing& b) { return place(a) < place(b); });
  MOE_CHECK(placing_.empty() || placing_.size() % layers_per_micro_batch() == 0,
            "the plan has {} ops with a placement policy for {} MoE layers, must be none or one "
            "per layer, or per layer and micro-batch",
            placing_.size(), layers_per_micro_batch());
}

/// Chooses the placements of this step and the next one, as the place, commit and migrate ops do
/// when they are executed.
void StepReplay::place(int64_t step, const std::vector<ExpertCounts>& kept) {
  if (placing_.empty()) return;
  state_ = next_;
  records_.clear();
  LastPlaced last;
  const size_t layers = layers_per_micro_batch();
  for (size_t p = 0; p < placing_.size(); ++p) {
    const Op& op = plan_.graph.op(placing_[p].op);
    const bool now = attr_string(op, "use") == "now";
    // A placement in force at once is of one micro-batch, else of all.
    ExpertCounts loads = kept[p];
    for (size_t i = p + layers; !now && i < kept.size(); i += layers) {
      for (size_t r = 0; r < loads.rows.size(); ++r) loads.rows[r] += kept[i].rows[r];
    }
    Placement made = state_[p];
    if (step % attr_int(op, "every", 1) == 0) {
      made = ask_policy(placing_[p].policy, attr_string(op, "policy"), 0,
                        {.step = step,
                         .layer = static_cast<int64_t>(p % layers),
                         .loads = mean_of_groups(loads, routed_->holders()),
                         .now = state_[p],
                         .rates = ops::placement_rates(op)},
                        last);
    }
    for (size_t i = p; i < (now ? p + 1 : kept.size()); i += layers) {
      placements_[i] = now ? made : state_[i];
      next_[i] = now ? state_[i] : made;
    }
    const auto codes = [](const Placement& of) {
      return std::vector<int32_t>(of.codes().begin(), of.codes().end());
    };
    records_.push_back({.layer = op.layer,
                        .of_micro_batch = now,
                        .micro = op.micro,
                        .bounds = made.bounds(),
                        .in_force = codes(placements_[p]),
                        .next = codes(made)});
    count_rows(records_.back(), loads, routed_->holders());
  }
}

/// Returns the choices of a rank's tokens that found a slot: those of the routing model, or where
/// only their counts are known, tokens that are drawn with these counts.
std::vector<int32_t> StepReplay::choices_of(int64_t rank, size_t l) const {
  const MoeLayer& layer = routed_->layers()[l];
  const auto E = static_cast<size_t>(layer.experts);
  const std::span<const int64_t> counts =
      std::span(kept_[l].rows).subspan(static_cast<size_t>(rank) * E, E);
  if (step_ < 0 || !plan_.spec.routing->route) {
    return Dispatcher::choices_with(counts, layer.tokens, layer.k, static_cast<uint64_t>(rank));
  }
  std::vector<int32_t> choices(static_cast<size_t>(layer.tokens * layer.k));
  plan_.spec.routing->route(query_of(step_, l), rank, choices);
  std::vector<int64_t> left(counts.begin(), counts.end());
  for (int32_t& e : choices) {
    if (e >= 0 && left[static_cast<size_t>(e)]-- <= 0) e = -1;
  }
  return choices;
}

/// Replaces the experts of a rank's choices by the devices to which the placement sends their rows.
void StepReplay::send_to_devices(std::vector<int32_t>& choices, int64_t source, size_t l) const {
  std::vector<int64_t> rows(static_cast<size_t>(routed_->layers()[l].experts)), next(rows.size());
  for (const int32_t e : choices) {
    if (e >= 0) ++rows[static_cast<size_t>(e)];
  }
  std::vector<std::vector<RowRange>> ranges;
  for (size_t e = 0; e < rows.size(); ++e) {
    ranges.push_back(share_rows(placements_[l], static_cast<int64_t>(e), source, rows[e]));
  }
  for (int32_t& e : choices) {
    if (e < 0) continue;
    const int64_t row = next[static_cast<size_t>(e)]++;
    const auto& of = ranges[static_cast<size_t>(e)];
    const auto range =
        std::find_if(of.begin(), of.end(), [&](const RowRange& r) { return row < r.end; });
    e = static_cast<int32_t>(range->device);
  }
}

/// Adds the bytes that the dispatcher moves in a layer from rank to rank, [ranks, ranks].
void StepReplay::add_bytes(size_t l, bool to_expert, std::vector<double>& bytes) const {
  const Dispatcher& dispatcher = *plan_.spec.dispatcher;
  const Group& group = routed_->holders();
  const auto ranks = static_cast<size_t>(plan_.graph.num_ranks);
  const auto way = to_expert ? dispatch::Way::kDispatch : dispatch::Way::kCombine;
  dispatch::Exchange sizes = dispatcher.exchange;
  sizes.experts = sizes.ranks;  // a rank stands for all of its experts
  for (int64_t first = 0; first < plan_.graph.num_ranks; ++first) {
    if (group.place(first) != 0) continue;
    dispatch::Choices choices{{0}, {}};
    for (int64_t place = 0; place < group.size; ++place) {
      std::vector<int32_t> own = choices_of(group.member(first, place), l);
      send_to_devices(own, place, l);
      choices.experts.insert(choices.experts.end(), own.begin(), own.end());
      choices.first.push_back(choices.first.back() + routed_->layers()[l].tokens);
    }
    const dispatch::LinkRows on = rows_on(dispatcher.route, sizes, choices, way);
    for (size_t i = 0; i < on.nic.size(); ++i) {
      const auto from = static_cast<int64_t>(i) / group.size;
      const auto to = static_cast<int64_t>(i) % group.size;
      bytes[static_cast<size_t>(group.member(first, from)) * ranks +
            static_cast<size_t>(group.member(first, to))] +=
          static_cast<double>((on.nic[i] + on.nvlink[i]) * dispatcher.route.row_bytes(way));
    }
  }
}

RoutingQuery StepReplay::query_of(int64_t step, size_t l) const {
  const MoeLayer& layer = routed_->layers()[l];
  return {.step = step * micros_ + layer.micro,
          .layer = static_cast<int64_t>(l % layers_per_micro_batch()),
          .ranks = plan_.graph.num_ranks,
          .tokens = layer.tokens,
          .experts = layer.experts,
          .k = layer.k};
}

void StepReplay::set_step(int64_t step) {
  as_before_ = false;
  if (!routed_) return;
  step_ = step;
  const std::vector<Placement> in_force_before = placements_, next_before = next_;
  std::vector<ExpertCounts> kept;
  const std::vector<MoeLayer>& layers = routed_->layers();
  const RoutingModel& routing = *plan_.spec.routing;
  RoutedBatch batch = {{}, std::vector<Estimate>(layers.size())};
  if (popularity_ && offloaded_->estimates()) {
    batch = routed_batch(routing, query_of(step, 0), *popularity_);
  } else {
    for (size_t l = 0; l < layers.size(); ++l)
      batch.loads.push_back(routing.loads(query_of(step, l)));
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    kept.push_back(routing.runs_gate()
                       ? routing.kept(query_of(step, l))
                       : kept_rows(batch.loads[l], layers[l].routed_capacity, layers[l].together));
  }
  choices_ = std::move(batch.loads);
  place(step, kept);
  offloaded_->place(kept, batch.estimates, placements_);
  as_before_ = engine_ && offloaded_->ops().empty() && !plan_.spec.dispatcher && kept == kept_ &&
               placements_ == in_force_before && next_ == next_before;
  if (!as_before_) take_loads(std::move(kept));
}

void StepReplay::set_placed(const std::vector<ExpertCounts>& kept,
                            const std::vector<Placement>& placements) {
  const bool of_each =
      !placing_.empty() && attr_string(plan_.graph.op(placing_[0].op), "use") == "now";
  std::vector<ExpertCounts> all;
  placements_.clear();
  for (int64_t m = 0; m < micros_; ++m) {
    all.insert(all.end(), kept.begin(), kept.end());
    placements_.insert(placements_.end(), placements.begin(), placements.end());
    if (of_each) continue;
    for (size_t l = all.size() - kept.size(); l < all.size(); ++l) {
      for (int64_t& rows : all[l].rows) rows = rows * (m + 1) / micros_ - rows * m / micros_;
    }
  }
  next_ = placements_;
  step_ = -1;
  take_loads(std::move(all));
}

std::vector<MoeStats> StepReplay::moe() const {
  std::vector<MoeStats> all;
  for (size_t l = 0; l < kept_.size(); ++l) {
    const MoeLayer& layer = routed_->layers()[l];
    MoeStats stats = {.layer = layer.block,
                      .capacity = layer.capacity,
                      .dropped = choices_[l].total() - kept_[l].total(),
                      .counts = kept_[l].rows};
    for (int64_t e = 0; e < layer.experts; ++e) stats.load.push_back(choices_[l].of_expert(e));
    all.push_back(std::move(stats));
  }
  return all;
}

void StepReplay::take_loads(std::vector<ExpertCounts> kept) {
  kept_ = std::move(kept);
  routed_->route(kept_, placements_, next_);
  const bool alike = routed_->alike() && offloaded_->alike();
  const auto ranks = alike ? 1 : static_cast<int32_t>(plan_.graph.num_ranks);
  if (!engine_ || input_->num_ranks != ranks) set_ranks(ranks);
  cost_loads();
}

void StepReplay::set_ranks(int32_t num_ranks) {
  engine_.reset();
  input_ = std::make_unique<ReplayInput>(replay_input(plan_.graph, plan_.schedule, plan_.orders,
                                                      *plan_.spec.cost, routed_work(), num_ranks));
  priced_ns_ = std::move(input_->duration_ns);
  input_->duration_ns = [this](OpId op, int32_t rank) { return duration_ns(op, rank); };
  // Groups with equally many bytes load shared links alike, so their times all at once are a bound.
  input_->busy_ns = [this](OpId op, int32_t rank) {
    return by_group_ns_[op.index()].empty() ? duration_ns(op, rank) : plain_ns_[op.index()];
  };
  input_->bytes = [this](OpId op, int32_t rank) {
    const bool sends = loaded_[op.index()] >= 0 && is_collective(plan_.graph, op);
    return sends ? routed_->sent_bytes(op, rank) : plain_bytes_[op.index()];
  };
  by_group_ns_.assign(plan_.graph.num_ops(), {});
  for (const OpId op : plan_.graph.op_ids()) {
    if (loaded_[op.index()] >= 0 || !is_collective(plan_.graph, op)) continue;
    if (simulated_groups(plan_.graph, op, num_ranks).size == num_ranks) continue;
    std::vector<Nanoseconds>& by_rank = by_group_ns_[op.index()];
    by_rank.resize(static_cast<size_t>(num_ranks));
    price(op, by_rank.data());
  }
  engine_ = std::make_unique<Engine>(*input_);
}

void StepReplay::price(OpId op, Nanoseconds* by_rank) const {
  const int32_t ranks = input_->num_ranks;
  const Group group =
      is_collective(plan_.graph, op) ? simulated_groups(plan_.graph, op, ranks) : Group{1, 1};
  for (int32_t r = 0; r < ranks; ++r) {
    by_rank[r] = group.place(r) == 0 ? priced_ns_(op, r) : by_rank[group.member(r, 0)];
  }
}

RoutedWorkOf StepReplay::routed_work() const {
  if (!routed_) return nullptr;
  return [this](OpId op, int32_t rank) {
    const RoutedWork* const offloaded = offloaded_->routed_work(op, rank);
    return offloaded != nullptr ? offloaded : routed_->routed_work(op, rank);
  };
}

/// Computes the time of each op whose work depends on the routing, on each rank that is simulated.
void StepReplay::cost_loads() {
  const auto ranks = static_cast<size_t>(input_->num_ranks);
  loaded_ns_.resize(routed_ops_.size() * ranks);
  for (size_t i = 0; i < routed_ops_.size(); ++i) price(routed_ops_[i], &loaded_ns_[i * ranks]);
}

Nanoseconds StepReplay::duration_ns(OpId op, int32_t rank) const {
  const auto ranks = static_cast<size_t>(input_->num_ranks);
  // With one simulated rank, its times hold for all ranks.
  const size_t r = ranks == 1 ? 0 : static_cast<size_t>(rank);
  const int32_t at = loaded_[op.index()];
  const std::vector<Nanoseconds>& by_group = by_group_ns_[op.index()];
  const Nanoseconds ns = !by_group.empty() ? by_group[r]
                         : at < 0          ? plain_ns_[op.index()]
                                           : loaded_ns_[static_cast<size_t>(at) * ranks + r];
  return added_ == nullptr ? ns : ns + (*added_)[op.index() * ranks + r];
}

Timeline StepReplay::run(bool keep_links) {
  input_->keep_links = keep_links;
  Timeline timeline = engine_->run();
  const std::vector<Nanoseconds> added = added_beside(timeline);
  if (added.empty()) return timeline;
  added_ = &added;
  timeline = engine_->run();
  added_ = nullptr;
  return timeline;
}

/// Returns, indexed by op * ranks + rank, the time that collectives and compute ops add to each
/// other because they overlap on a rank; empty if no collective slows compute down. A collective
/// takes its share of the compute units (CoreSharing::taken) evenly over its duration.
std::vector<Nanoseconds> StepReplay::added_beside(const Timeline& timeline) const {
  const auto ranks = static_cast<size_t>(input_->num_ranks);
  const CostModel& cost = *plan_.spec.cost;
  std::vector<std::vector<const Span*>> compute(static_cast<size_t>(timeline.num_ranks));
  std::vector<Nanoseconds> added;
  for (const Span& t : timeline.spans) {
    if (plan_.graph.def(t.op).lane == LaneKind::kCompute) {
      compute[static_cast<size_t>(t.rank)].push_back(&t);
    }
  }
  for (const Span& t : timeline.spans) {
    if (!is_collective(plan_.graph, t.op) || t.end == t.begin) continue;
    const CoreSharing sharing = cost.sharing(plan_.graph, t.op);
    if (sharing.none()) continue;
    added.resize(plan_.graph.num_ops() * ranks);
    const double length = static_cast<double>(t.end - t.begin);
    const double share = std::min(1.0, static_cast<double>(sharing.taken) / length);
    const auto r = static_cast<size_t>(t.rank) % ranks;  // of its pipeline rank
    for (const Span* const span : compute[static_cast<size_t>(t.rank)]) {
      const Nanoseconds both = std::min(span->end, t.end) - std::max(span->begin, t.begin);
      if (both <= 0) continue;
      const OverlapSlowdown& slowdown = sharing.slowdown;
      const double factor = is_gemm(plan_.graph, span->op) ? slowdown.gemm : slowdown.memory;
      const double more = share + (factor - 1);
      Nanoseconds& sum = added[span->op.index() * ranks + r];
      sum =
          checked_ns(static_cast<double>(sum) + std::round(more * static_cast<double>(both)), [&] {
            return fmt::format(
                "the time that collectives add to op '{}' (cluster.overlap_slowdown)",
                plan_.graph.op(span->op).name);
          });
      Nanoseconds& longer = added[t.op.index() * ranks + r];
      longer += std::llround((slowdown.transfer - 1) * static_cast<double>(both));
      if (span->begin < t.end && t.end < span->end) longer += sharing.late;
    }
  }
  return added;
}

}  // namespace moe
