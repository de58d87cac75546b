#include "engine/cost/dispatch_cost.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/base/rng.h"

namespace moe {

using dispatch::TokenRows;
using dispatch::Way;

bool Dispatcher::runs(const Graph& graph, const Op& op) {
  return graph.def(op).payload == Payload::kRows && op.rows.irregular && op.rows.round.of == 1 &&
         !rides(graph, op);
}

bool Dispatcher::rides(const Graph& graph, const Op& op) {
  return graph.def(op).payload == Payload::kRows && graph.tensor(op.inputs[0]).shape.back() == 1;
}

void Dispatcher::expect(const dispatch::Choices& choices) {
  logical_rows = dispatch::logical_rows(route, exchange, choices);
  for (const Way way : {Way::kDispatch, Way::kCombine}) {
    const auto i = static_cast<size_t>(way);
    expected[i] = token_rows(route, exchange, choices, way);
    if (!by_links) continue;
    for (const std::vector<int64_t>& rows : hop_rows(route, exchange, choices, way)) {
      std::vector<double>& of_hop = hops[i].emplace_back(rows.begin(), rows.end());
      for (double& share : of_hop) share /= static_cast<double>(choices.first[1]);
    }
  }
}

std::vector<int32_t> Dispatcher::choices_with(std::span<const int64_t> counts, int64_t tokens,
                                              int64_t topk, uint64_t seed) {
  std::vector<int32_t> choices(static_cast<size_t>(tokens * topk), -1), order(counts.size());
  std::iota(order.begin(), order.end(), 0);
  Rng rng(seed);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<size_t>(rng.below(static_cast<int64_t>(i)))]);
  }
  // An expert goes to successive tokens, so that none gets it twice; the slots of all tokens are
  // filled in turns.
  int64_t next = 0;
  for (const int32_t e : order) {
    for (int64_t n = 0; n < counts[static_cast<size_t>(e)] && next < tokens * topk; ++n, ++next) {
      choices[static_cast<size_t>(next % tokens * topk + next / tokens)] = e;
    }
  }
  return choices;
}

double Dispatcher::tokens(const Graph& graph, OpId op, const WorkContext& work) const {
  const Tensor& slots = graph.tensor(graph.op(op).inputs[0]);
  const double row = static_cast<double>(slots.shape.back() * dtype_bytes(slots.dtype));
  return payload_bytes(graph, op, work) / row / static_cast<double>(exchange.topk);
}

Bytes Dispatcher::sent(const Graph& graph, OpId op, const WorkContext& work) const {
  const Way to = way(graph.op(op));
  const TokenRows& rows = expected[static_cast<size_t>(to)];
  return std::llround(tokens(graph, op, work) * (rows.nic + rows.nvlink) *
                      static_cast<double>(route.row_bytes(to)));
}

dispatch::Call Dispatcher::call_of(const Op& op, double tokens) const {
  dispatch::Call made = call;
  made.tokens = tokens;
  made.row_bytes = static_cast<double>(route.row_bytes(way(op)));
  return made;
}

DispatchUse Dispatcher::use(const Graph& graph, OpId id, const WorkContext& work) const {
  const Op& op = graph.op(id);
  const auto to = static_cast<size_t>(way(op));
  const TokenRows& rows = expected[to];
  const dispatch::Call of_rank = call_of(op, tokens(graph, id, work));
  const double of_node =
      static_cast<double>(exchange.ranks_per_node) * of_rank.tokens * of_rank.row_bytes;
  return {.parts = by_links ? dispatch::Parts{} : parts_us(laws[to], rows, of_rank),
          .logical_bytes = of_node * logical_rows,
          .nic_bytes = of_node * rows.nic,
          .nvlink_bytes = of_node * rows.nvlink};
}

Nanoseconds DispatchCost::time(const Op& op, const TokenRows& rows, double tokens) const {
  const dispatch::Law& law = dispatcher_->laws[static_cast<size_t>(Dispatcher::way(op))];
  return checked_ns(1e3 * time_us(law, rows, dispatcher_->call_of(op, tokens)),
                    [&] { return fmt::format("op '{}'", op.name); });
}

/// The hops of an exchange, one after the other, as all-to-alls of all groups.
Nanoseconds DispatchCost::links_ns(const Graph& graph, OpId id) const {
  const Op& op = graph.op(id);
  const auto way = static_cast<size_t>(Dispatcher::way(op));
  const Group group = group_of(graph, op);
  const auto ranks = static_cast<size_t>(graph.num_ranks);
  const double bytes =
      tokens_of(graph, id) * static_cast<double>(dispatcher_->route.row_bytes(Dispatcher::way(op)));
  std::vector<std::vector<double>> steps;
  for (const std::vector<double>& rows : dispatcher_->hops[way]) {
    std::vector<double>& step = steps.emplace_back(ranks * ranks);
    for (size_t from = 0; from < ranks; ++from) {
      const auto rank = static_cast<int64_t>(from);
      for (int64_t place = 0; place < group.size; ++place) {
        const auto pair = static_cast<size_t>(group.place(rank) * group.size + place);
        step[from * ranks + static_cast<size_t>(group.member(rank, place))] = bytes * rows[pair];
      }
    }
  }
  return below_->routed_ns(graph, id, {.work = work_, .steps = &steps});
}

Nanoseconds DispatchCost::op_ns(const Graph& graph, OpId id) const {
  const Op& op = graph.op(id);
  if (is_free(graph, id)) return 0;
  if (!Dispatcher::runs(graph, op)) return below_->op_ns(graph, id);
  if (dispatcher_->by_links) return links_ns(graph, id);
  return time(op, dispatcher_->expected[static_cast<size_t>(Dispatcher::way(op))],
              tokens_of(graph, id));
}

Nanoseconds DispatchCost::routed_ns(const Graph& graph, OpId id, const RoutedWork& routed) const {
  const Op& op = graph.op(id);
  if (is_free(graph, id)) return 0;
  if (Dispatcher::runs(graph, op) && dispatcher_->by_links) return links_ns(graph, id);
  if (!Dispatcher::runs(graph, op) || routed.bytes == nullptr) {
    return below_->routed_ns(graph, id, routed);
  }
  const Way way = Dispatcher::way(op);
  const double tokens = tokens_of(graph, id);
  const auto ranks = static_cast<size_t>(graph.num_ranks);
  const int64_t node = network()->devices_per_node;
  std::array<std::vector<int64_t>, 2> on;  // NICs, NVLink: bytes from rank to rank
  for (auto& link : on) link.resize(ranks * ranks);
  for (size_t i = 0; i < ranks * ranks; ++i) {
    const auto from = static_cast<int64_t>(i / ranks), to = static_cast<int64_t>(i % ranks);
    const bool inside = from / node == to / node && dispatcher_->route.nvlink;
    if (from != to) on[inside ? 1 : 0][i] = std::llround((*routed.bytes)[i]);
  }
  const double bytes = tokens * static_cast<double>(dispatcher_->route.row_bytes(way));
  const auto most = [&](size_t link) {
    const dispatch::PortRows ports = dispatch::ports_of(on[link], graph.num_ranks);
    return bytes > 0 ? static_cast<double>(ports.max) / bytes : 0;
  };
  const TokenRows& expected = dispatcher_->expected[static_cast<size_t>(way)];
  TokenRows rows{expected.received, expected.moved, most(0), most(1)};
  // Ranks copy more than expected where more arrives than expected.
  const double sum = expected.nic + expected.nvlink;
  const double more = sum > 0 ? (rows.nic + rows.nvlink) / sum : 1;
  rows.received *= more, rows.moved *= more;
  return time(op, rows, tokens);
}

std::optional<NetworkOp> DispatchCost::transfer(const Graph& graph, OpId op) const {
  return is_free(graph, op) ? std::nullopt : below_->transfer(graph, op);
}

CoreSharing DispatchCost::sharing(const Graph& graph, OpId id) const {
  const Op& op = graph.op(id);
  CoreSharing sharing = below_->sharing(graph, id);
  if (!Dispatcher::runs(graph, op) || dispatcher_->by_links) return sharing;
  const auto taken = static_cast<double>(dispatcher_->route.sms);
  const TokenRows& rows = dispatcher_->expected[static_cast<size_t>(Dispatcher::way(op))];
  const double copied = rows.moved * tokens_of(graph, id) *
                        static_cast<double>(dispatcher_->route.row_bytes(Dispatcher::way(op)));
  const double share = 2 * copied * 1e9 / static_cast<double>(op_ns(graph, id)) /
                       std::max(1.0, network()->device.memory_bytes_per_s);
  if (dispatcher_->gpu_sms > taken) {
    sharing.slowdown.gemm = dispatcher_->gpu_sms / (dispatcher_->gpu_sms - taken);
  }
  sharing.slowdown.memory = 1 / (1 - std::min(0.5, share));
  return sharing;
}

TimeSource DispatchCost::time_source(const Graph& graph, OpId op) const {
  return Dispatcher::runs(graph, graph.op(op)) || is_free(graph, op)
             ? TimeSource::kModel
             : below_->time_source(graph, op);
}

std::string DispatchCost::describe() const {
  return fmt::format("{}, exchanges of rows by the dispatcher {} {}", below_->describe(),
                     dispatcher_->route.name,
                     dispatcher_->by_links ? "hop by hop" : "with its fitted law");
}

}  // namespace moe
