#include "engine/sim/routed_step.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/base/index.h"
#include "engine/dispatch/rows.h"
#include "engine/graph/op_def.h"
#include "engine/ops/placed.h"
#include "engine/ops/stored_rows.h"
#include "engine/placement/expert_transfers.h"

namespace moe {
namespace {

bool is_irregular(const Graph& graph, OpId op) {
  return carries(graph, op, Payload::kRows) && graph.op(op).rows.irregular;
}

/// Returns the number of rows in the tensor: the product of all dimensions except the last.
int64_t rows_of(const Tensor& tensor) {
  return num_elements(tensor.shape) / tensor.shape.back();
}

/// Whether the source at a place sends to the device at a place in this round.
bool meet(const Round& round, const Group& group, int64_t source, int64_t device) {
  return device / round.members(group) == round.sends_to(group, source) / round.members(group);
}

/// Whether an op that joins the parts of a batch joins rows at the devices of their experts. Its
/// row ends then have the shape [El, P], for El experts of the device and P source ranks; where
/// rows are at their source rank, row ends have the shape [E].
bool joins_at_experts(const Graph& graph, const Op& op) {
  return graph.tensor(op.inputs[0]).shape.size() == 2;
}

/// Returns whose rows determine the op's work: kExperts if an operand's role is at the experts.
Side side_of(const Graph& graph, const Op& op) {
  const OpDef& def = graph.def(op);
  bool at_source = false;
  for (const std::vector<Operand>* operands : {&def.inputs, &def.outputs}) {
    for (const Operand& operand : *operands) {
      if (lies_at_experts(operand.role)) return Side::kExperts;
      at_source = at_source || lies_at_source(operand.role);
    }
  }
  if (def.joins_parts) return joins_at_experts(graph, op) ? Side::kExperts : Side::kSource;
  MOE_CHECK(
      at_source,
      "the op kind {} must have an operand whose role is at the tokens' source rank or at the "
      "experts, since this determines the op's work",
      def.name);
  return Side::kSource;
}

double ratio(int64_t rows, int64_t places) {
  return static_cast<double>(rows) / static_cast<double>(places);
}

bool all_equal(const std::vector<RoutedWork>& works) {
  return std::all_of(works.begin(), works.end(), [&](const RoutedWork& l) {
    return l.work.slot_occupancy == works[0].work.slot_occupancy &&
           (l.blocks == nullptr || l.blocks->fills == works[0].blocks->fills);
  });
}

}  // namespace

std::vector<MoeLayer> moe_layers(const Graph& graph) {
  std::map<std::pair<int32_t, int32_t>, MoeLayer> layers;  // by micro-batch and block
  for (const OpId id : graph.op_ids()) {
    if (!is(graph, id, MoeOp::kGate)) continue;
    const Op& op = graph.op(id);
    const Shape& logits = graph.tensor(op.inputs[0]).shape;
    const auto [at, fresh] = layers.try_emplace(
        {op.micro, op.layer},
        MoeLayer{op.layer, op.micro, 0, logits[1], attr_int(op, "k", 1), attr_int(op, "capacity")});
    at->second.routed_capacity = attr_int(op, "all_capacity", at->second.capacity);
    if (op.attrs.contains("all_capacity")) {
      at->second.together = graph.tensor(op.inputs.back()).shape[0] / logits[0];
    }
    at->second.tokens += logits[0];  // of each gate of a part of the batch
  }
  std::vector<MoeLayer> all;
  for (const auto& [at, layer] : layers) all.push_back(layer);
  return all;
}

ExpertCounts kept_rows(ExpertCounts choices, int64_t capacity, int64_t together) {
  for (int64_t first = 0; first < choices.sources; first += together) {
    for (int64_t e = 0; e < choices.experts; ++e) {
      int64_t all = 0, before = 0;
      for (int64_t r = 0; r < together; ++r) all += choices.at(first + r, e);
      if (all <= capacity) continue;
      for (int64_t r = 0; r < together; ++r) {
        int64_t& rows = choices.at(first + r, e);
        const int64_t until = before + rows;
        rows = until * capacity / all - before * capacity / all;
        before = until;
      }
    }
  }
  return choices;
}

RoutedStep::RoutedStep(const Graph& graph, const Group& holders, bool by_block)
    : graph_(graph),
      ranks_(index(graph.num_ranks)),
      holders_(resolve(holders, graph.num_ranks, "experts")),
      by_block_(by_block),
      layers_(moe_layers(graph)),
      rows_(layers_.size()),
      entries_(graph.num_ops()) {
  for (size_t l = 0; l < layers_.size(); ++l) {
    number_[{layers_[l].block, layers_[l].micro}] = static_cast<int32_t>(l);
  }
  for (const OpId op : graph.op_ids()) {
    if (!is_view(graph, graph.op(op))) add(op);
  }
}

void RoutedStep::add(OpId op) {
  if (layers_.empty()) return;
  if (is(graph_, op, MoeOp::kPlace)) {
    for (size_t l = 0; l < layers_.size(); ++l) {
      if (layers_[l].block != graph_.op(op).layer) continue;
      rows_[l].static_rows = attr_int(graph_.op(op), "static_rows");
    }
  }
  const bool moves = graph_.def(op).collective == Collective::kExperts;
  if (!moves && !work_follows_occupancy(graph_, op)) return;
  Entry entry;
  entry.layer = layer_of(op);
  if (moves) {
    entry.movement = movement_of(op, index(entry.layer));
    entries_[op.index()] = entry;
    ops_.push_back(op);
    return;
  }
  const size_t layer = index(entry.layer);
  if (is_irregular(graph_, op)) {
    entry.exchange = exchange_of(op, layer);
    rows_[layer].room = std::max(rows_[layer].room, exchanges_[index(entry.exchange)].room);
    if (graph_.op(op).attrs.contains("repeated")) split_ = group_of(graph_, graph_.op(op));
  } else {
    entry.side = side_of(graph_, graph_.op(op));
    if (graph_.op(op).rows.round.of > 1) entry.round = round_of_experts(op, layer);
  }
  if (entry.exchange < 0) {
    (entry.side == Side::kSource ? rows_[layer].source_used : rows_[layer].experts_used) = true;
  }
  entries_[op.index()] = entry;
  ops_.push_back(op);
}

int32_t RoutedStep::layer_of(OpId op) const {
  const auto layer = number_.find({graph_.op(op).layer, graph_.op(op).micro});
  MOE_CHECK(layer != number_.end(), "op '{}' of block {} must have a gate in the same block",
            graph_.op(op).name, graph_.op(op).layer);
  return layer->second;
}

int32_t RoutedStep::exchange_of(OpId id, size_t layer) {
  const Op& op = graph_.op(id);
  const Tensor& slots = graph_.tensor(op.inputs[0]);
  Exchange made{.layer = layer,
                .group = group_of(graph_, op),
                .to_expert = op.rows.to_expert(),
                .round = op.rows.round,
                .share = ops::share_of(op) * static_cast<double>(op.rows.round.of),
                .row_bytes = ops::share_of(op) * static_cast<double>(op.rows.round.of) *
                             static_cast<double>(slots.shape.back() * dtype_bytes(slots.dtype)),
                .places = std::llround(static_cast<double>(rows_of(slots)) * op.rows.occupancy),
                .weights = slots.shape.back() == 1,
                .room = graph_.tensor(graph_.out(id)).stored_rows,
                .repeated = op.attrs.contains("repeated")};
  for (const int32_t known : rows_[layer].exchanges) {
    const Exchange& e = exchanges_[index(known)];
    if (e.group == made.group && e.to_expert == made.to_expert && e.round == made.round &&
        e.row_bytes == made.row_bytes && e.places == made.places && e.room == made.room &&
        e.repeated == made.repeated) {
      return known;
    }
  }
  exchanges_.push_back(std::move(made));
  rows_[layer].exchanges.push_back(static_cast<int32_t>(exchanges_.size() - 1));
  return rows_[layer].exchanges.back();
}

int32_t RoutedStep::round_of_experts(OpId op, size_t layer) {
  const Round round = graph_.op(op).rows.round;
  for (const int32_t known : rows_[layer].rounds) {
    if (rounds_[index(known)].round == round) return known;
  }
  rounds_.push_back({layer, round, {}, {}});
  rows_[layer].rounds.push_back(static_cast<int32_t>(rounds_.size() - 1));
  return rows_[layer].rounds.back();
}

int32_t RoutedStep::movement_of(OpId op, size_t layer) {
  movements_.push_back(
      {.op = op, .layer = layer, .expert_bytes = ops::bytes_moved(graph_, graph_.op(op))});
  return static_cast<int32_t>(movements_.size() - 1);
}

/// Computes which experts `movement` sends between which ranks, and their bytes.
void RoutedStep::move(Movement& movement, const Placement& now, const Placement& next) const {
  const Op& op = graph_.op(movement.op);
  const Payload carried = graph_.def(op).payload;
  const int64_t per_node = attr_int(op, "devices_per_node", 1);
  ExpertSteps steps;
  if (carried == Payload::kShadows) {
    steps = copy_steps(now, ops::shadow_ranges(op), per_node);
  } else if (carried == Payload::kShadowGradients) {
    steps = return_steps(now, ops::shadow_ranges(op), per_node);
  } else if (carried == Payload::kResidentGradients) {
    steps = sum_steps(now);
  } else {
    steps.emplace_back();
    for (const Move& m : resident_moves(now, next)) {
      if (m.from != m.to) steps[0].push_back({.expert = m.expert, .from = m.from, .to = m.to});
    }
  }
  const auto ranks = static_cast<int64_t>(ranks_);
  movement.steps.resize(steps.size());
  movement.routed = {.steps = &movement.steps};
  std::vector<double> sent(ranks_);
  for (size_t i = 0; i < steps.size(); ++i) {
    movement.steps[i].assign(ranks_ * ranks_, 0);
    add_bytes(steps[i], movement.expert_bytes, holders_, ranks, movement.steps[i]);
    const double* bytes = movement.steps[i].data();
    for (double& of_rank : sent) {
      for (size_t to = 0; to < ranks_; ++to) of_rank += *bytes++;
    }
  }
  movement.sent.resize(ranks_);
  for (size_t r = 0; r < ranks_; ++r) movement.sent[r] = std::llround(sent[r]);
}

std::vector<Placement> RoutedStep::first_placements() const {
  std::map<int32_t, PlacementBounds> given;  // by block
  for (const Op& op : graph_.ops()) {
    if (!op.kind.valid()) continue;
    const MoeOp what = graph_.def(op).moe;
    if (what == MoeOp::kPlace || what == MoeOp::kSwapIn) given[op.layer] = ops::bounds_of(op);
  }
  std::vector<Placement> placements;
  for (const MoeLayer& layer : layers_) {
    const int64_t residents = (layer.experts + holders_.size - 1) / holders_.size;
    const auto bounds = given.try_emplace(layer.block, PlacementBounds{.experts = layer.experts,
                                                                       .devices = holders_.size,
                                                                       .residents = residents});
    placements.emplace_back(bounds.first->second);
  }
  return placements;
}

void RoutedStep::route(const std::vector<ExpertCounts>& kept,
                       const std::vector<Placement>& placements,
                       const std::vector<Placement>& next) {
  MOE_CHECK(
      kept.size() == layers_.size() && placements.size() == layers_.size() &&
          next.size() == layers_.size(),
      "the graph has {} MoE layers, but the step has loads of {} layers, placements of {} and "
      "placements for the next step of {}; the numbers must be equal",
      layers_.size(), kept.size(), placements.size(), next.size());
  no_room_.clear();
  for (size_t l = 0; l < layers_.size(); ++l) route_layer(l, kept[l], placements[l]);
  for (Exchange& exchange : exchanges_) fill_matrix(exchange);
  for (RoundRows& rows : rounds_) fill_round(rows);
  for (Movement& movement : movements_) {
    move(movement, placements[movement.layer], next[movement.layer]);
  }
  alike_ = ranks_alike();
}

int64_t RoutedStep::padding(size_t l, const Placement& placement, int64_t slot,
                            int64_t rows) const {
  const int64_t fixed = rows_[l].static_rows;
  if (fixed == 0 || rows == 0 || slot < placement.bounds().residents) return 0;
  if (rows > fixed) {
    throw user_error(
        "placement: a copy of an expert of the MoE layer of block {} gets {} rows, but static_rows "
        "= {}; give copies fewer tokens by p:quota, or raise static_rows",
        layers_[l].block, rows, fixed);
  }
  if (!rounds_.empty()) {
    throw UserError(
        "placement: static_rows is not possible with rounds (fastermoe_pipeline): padding has no "
        "source, so no round would compute it");
  }
  return fixed - rows;
}

void RoutedStep::route_layer(size_t l, const ExpertCounts& kept, const Placement& placement) {
  const MoeLayer& layer = layers_[l];
  if (index(kept.sources) != ranks_ || kept.experts != layer.experts) {
    throw user_error(
        "the routing of MoE layer {} has {} source ranks and {} experts, but the plan has {} ranks "
        "and {} experts",
        l, kept.sources, kept.experts, ranks_, layer.experts);
  }
  Rows& rows = rows_[l];
  rows.sent.assign(ranks_ * ranks_, 0);
  std::vector<int64_t> of_source(ranks_), of_device(ranks_);
  const int64_t n = holders_.size, slots = placement.bounds().slots();
  if (by_block_) rows.blocks.assign(ranks_, {.sources = n, .capacity = layer.capacity});
  for (size_t r = 0; r < ranks_; ++r) {  // the body runs at the first rank of each group
    const auto rank = static_cast<int64_t>(r);
    if (holders_.place(rank) != 0) continue;
    std::vector<size_t> members;
    for (int64_t p = 0; p < n; ++p) members.push_back(index(holders_.member(rank, p)));
    const std::vector<int64_t> by_slot = rows_by_slot(placement, of_group(kept, holders_, rank));
    const int64_t* rows_of = by_slot.data();
    for (const size_t device : members) {
      for (int64_t s = 0; s < slots; ++s) {
        int64_t of_slot = 0;
        for (const size_t source : members) {
          const int64_t count = *rows_of++;
          if (by_block_) rows.blocks[device].fills.push_back(ratio(count, layer.capacity));
          if (count == 0) continue;
          rows.sent[source * ranks_ + device] += count;
          of_source[source] += count;
          of_slot += count;
        }
        const int64_t padded = padding(l, placement, s, of_slot);
        of_device[device] += of_slot + padded;
        for (int64_t p = 0; by_block_ && p < n; ++p) {
          rows.blocks[device].fills[index(s * n + p)] += ratio(padded, n * layer.capacity);
        }
      }
    }
  }
  join_split(l, of_device);
  rows.source.resize(ranks_), rows.experts.resize(ranks_);
  for (size_t r = 0; r < ranks_; ++r) {
    check_room(l, r, of_device[r], rows_[l].room);
    rows.source[r].work.slot_occupancy = ratio(of_source[r], layer.experts * layer.capacity);
    // Relative to the slots that it has without copies of experts: as many as a source rank has.
    rows.experts[r].work.slot_occupancy =
        ratio(of_device[r], layer.experts * layer.capacity * split_.size);
    if (by_block_) rows.experts[r].blocks = &rows.blocks[r];
  }
}

void RoutedStep::join_split(size_t l, std::vector<int64_t>& of_device) {
  Rows& rows = rows_[l];
  rows.got = of_device;
  if (split_.size == 1) return;
  const std::vector<BlockFills> blocks = rows.blocks;
  const int64_t n = holders_.size;
  for (size_t r = 0; r < ranks_; ++r) {
    const auto rank = static_cast<int64_t>(r);
    of_device[r] = 0;
    for (int64_t p = 0; p < split_.size; ++p)
      of_device[r] += rows.got[index(split_.member(rank, p))];
    if (!by_block_) continue;
    BlockFills& own = rows.blocks[r];
    own.sources = n * split_.size;
    own.fills.clear();
    for (size_t slot = 0; slot < blocks[r].fills.size() / index(n); ++slot) {
      for (int64_t p = 0; p < split_.size; ++p) {
        const auto from =
            blocks[index(split_.member(rank, p))].fills.begin() + static_cast<int64_t>(slot) * n;
        own.fills.insert(own.fills.end(), from, from + n);
      }
    }
  }
}

double RoutedStep::imbalance() const {
  double busiest = 0, mean = 0;
  for (size_t l = 0; l < layers_.size(); ++l) {
    const auto slots = static_cast<double>(layers_[l].experts * layers_[l].capacity);
    double most = 0, sum = 0;
    for (const RoutedWork& rank : rows_[l].experts) {
      most = std::max(most, rank.work.slot_occupancy * slots);
      sum += rank.work.slot_occupancy * slots;
    }
    busiest += most;
    mean += sum / static_cast<double>(ranks_);
  }
  return mean > 0 ? busiest / mean : 1;
}

void RoutedStep::check_room(size_t layer, size_t rank, int64_t rows, int64_t room) {
  if (room == 0 || !no_room_.empty()) return;
  no_room_ = ops::no_room(layers_[layer].block, static_cast<int64_t>(rank), rows, room);
}

std::vector<int64_t> RoutedStep::rows_between(const Exchange& exchange) const {
  using dispatch::Forward;
  const std::vector<int64_t>& sent = rows_[exchange.layer].sent;
  const int64_t n = holders_.size;
  if (exchange.repeated) {
    const std::vector<int64_t>& got = rows_[exchange.layer].got;
    std::vector<int64_t> between(ranks_ * ranks_);
    for (size_t r = 0; r < ranks_; ++r) {
      for (int64_t p = 0; p < split_.size; ++p) {
        const size_t other = index(split_.member(static_cast<int64_t>(r), p));
        between[r * ranks_ + other] = got[exchange.to_expert ? r : other];
      }
    }
    return between;
  }
  const dispatch::Exchange sizes{.ranks = n, .ranks_per_node = n, .experts = n};
  // Straight, or where groups are smaller in two steps, inside nodes and between them.
  dispatch::Route route{.there = {{}}};
  const bool inside = exchange.group.stride == holders_.stride;
  if (exchange.group.size < n) {
    const int64_t node = inside ? exchange.group.size : exchange.group.stride / holders_.stride;
    route.there.insert(route.there.begin(), {.forward = Forward::kLocal, .group = node});
  }
  const bool first = inside == exchange.to_expert || exchange.group.size == n;
  const auto way = exchange.to_expert ? dispatch::Way::kDispatch : dispatch::Way::kCombine;
  std::vector<int64_t> between(ranks_ * ranks_), counts(index(n * n));
  for (size_t r = 0; r < ranks_; ++r) {
    const auto rank = static_cast<int64_t>(r);
    if (holders_.place(rank) != 0) continue;
    const auto pair = [&](int64_t from, int64_t to) {
      return index(holders_.member(rank, from)) * ranks_ + index(holders_.member(rank, to));
    };
    for (int64_t i = 0; i < n * n; ++i) {
      const bool meets = meet(exchange.round, holders_, i / n, i % n);
      counts[index(i)] = meets ? sent[pair(i / n, i % n)] : 0;
    }
    const std::vector<int64_t> rows = hop_rows(route, sizes, counts, way, first ? 0 : 1);
    for (int64_t i = 0; i < n * n; ++i) between[pair(i / n, i % n)] = rows[index(i)];
  }
  return between;
}

void RoutedStep::fill_matrix(Exchange& exchange) {
  const std::vector<int64_t> rows_to = rows_between(exchange);
  exchange.matrix.assign(rows_to.begin(), rows_to.end());
  const dispatch::PortRows ports = dispatch::ports_of(rows_to, graph_.num_ranks);
  for (size_t r = 0; r < ranks_; ++r) check_room(exchange.layer, r, ports.in[r], exchange.room);
  for (double& entry : exchange.matrix) entry *= exchange.row_bytes;
  std::vector<int64_t> fullest(ranks_ / index(exchange.group.size));
  for (size_t r = 0; r < ranks_; ++r) {
    int64_t& of_group = fullest[index(exchange.group.number(static_cast<int64_t>(r)))];
    of_group = std::max({of_group, ports.out[r], ports.in[r]});
  }
  // The op's work is its share of the rows in use, of which a round is an even one.
  exchange.routed.clear();
  for (const int64_t rows : fullest) {
    exchange.routed.push_back(
        {{.slot_occupancy = ratio(rows * exchange.round.of, exchange.places)}, &exchange.matrix});
  }
  exchange.sent.resize(ranks_);
  for (size_t r = 0; r < ranks_; ++r) {
    const int64_t rows = ports.out[r] - rows_to[r * ranks_ + r];
    exchange.sent[r] = std::llround(exchange.row_bytes * static_cast<double>(rows));
  }
  if (!bytes_between_ || exchange.round.of > 1 || exchange.weights) return;
  std::fill(exchange.matrix.begin(), exchange.matrix.end(), 0);
  bytes_between_(exchange.layer, exchange.to_expert, exchange.matrix);
  for (double& entry : exchange.matrix) entry *= exchange.share;
  for (size_t r = 0; r < ranks_; ++r) {
    const auto row = exchange.matrix.begin() + static_cast<int64_t>(r * ranks_);
    exchange.sent[r] = std::llround(
        std::accumulate(row, row + static_cast<int64_t>(ranks_), -exchange.matrix[r * ranks_ + r]));
  }
}

BlockFills RoutedStep::blocks_in(const RoundRows& rows, int64_t device) const {
  const BlockFills& all = rows_[rows.layer].blocks[index(device)];
  BlockFills result = {.sources = 0, .capacity = all.capacity, .fills = {}};
  std::vector<bool> sends;
  for (int64_t source = 0; source < all.sources; ++source) {
    sends.push_back(meet(rows.round, holders_, source, holders_.place(device)));
    if (sends.back()) ++result.sources;
  }
  for (size_t b = 0; b < all.fills.size(); ++b) {
    if (sends[b % sends.size()]) result.fills.push_back(all.fills[b]);
  }
  return result;
}

void RoutedStep::fill_round(RoundRows& rows) const {
  const MoeLayer& layer = layers_[rows.layer];
  const std::vector<int64_t>& sent = rows_[rows.layer].sent;
  rows.experts.resize(ranks_);
  rows.blocks.resize(by_block_ ? ranks_ : 0);
  for (size_t r = 0; r < ranks_; ++r) {
    const auto device = static_cast<int64_t>(r);
    int64_t received = 0;
    for (int64_t source = 0; source < holders_.size; ++source) {
      if (!meet(rows.round, holders_, source, holders_.place(device))) continue;
      received += sent[index(holders_.member(device, source)) * ranks_ + r];
    }
    rows.experts[r].work.slot_occupancy =
        ratio(received * rows.round.of, layer.experts * layer.capacity);
    if (by_block_) {
      rows.blocks[r] = blocks_in(rows, device);
      rows.experts[r].blocks = &rows.blocks[r];
    }
  }
}

bool RoutedStep::ranks_alike() const {
  for (const RoundRows& rows : rounds_) {
    if (!all_equal(rows.experts)) return false;
  }
  for (const Rows& rows : rows_) {
    if (rows.source_used && !all_equal(rows.source)) return false;
    if (rows.experts_used && !all_equal(rows.experts)) return false;
  }
  for (const Movement& movement : movements_) {
    if (std::any_of(movement.sent.begin(), movement.sent.end(), [](Bytes b) { return b > 0; })) {
      return false;
    }
  }
  return std::all_of(exchanges_.begin(), exchanges_.end(), [](const Exchange& e) {
    return std::all_of(e.sent.begin(), e.sent.end(), [&](Bytes b) { return b == e.sent[0]; });
  });
}

const RoutedWork* RoutedStep::routed_work(OpId op, int32_t rank) const {
  const Entry& entry = entries_[op.index()];
  if (entry.layer < 0) return nullptr;
  if (entry.exchange >= 0) {
    const Exchange& exchange = exchanges_[index(entry.exchange)];
    return &exchange.routed[index(exchange.group.number(rank))];
  }
  if (entry.movement >= 0) return &movements_[index(entry.movement)].routed;
  if (entry.round >= 0) return &rounds_[index(entry.round)].experts[index(rank)];
  const Rows& rows = rows_[index(entry.layer)];
  return &(entry.side == Side::kSource ? rows.source : rows.experts)[index(rank)];
}

Bytes RoutedStep::sent_bytes(OpId op, int32_t rank) const {
  const Entry& entry = entries_[op.index()];
  return entry.movement >= 0 ? movements_[index(entry.movement)].sent[index(rank)]
                             : exchanges_[index(entry.exchange)].sent[index(rank)];
}

}  // namespace moe
