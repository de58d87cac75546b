// Times of the exchanges of a plan that names a dispatcher, in place of an all-to-all's: by the law
// of engine/dispatch/law.h, or on ranks of the CPU by the links that the rows of each hop cross.
// All other ops take the times of the model below.
#pragma once

#include <memory>

#include "engine/cost/cost_model.h"
#include "engine/dispatch/law.h"
#include "engine/graph/op_def.h"

namespace moe {

/// What one exchange takes and moves, by choices that are drawn. parts: where it goes by a law,
/// else zeros. Bytes are those that the ranks of a node send: what published bandwidths count
/// (dispatch::logical_rows), and what crosses its NICs and its NVLink ports.
struct DispatchUse {
  dispatch::Parts parts;
  double logical_bytes = 0, nic_bytes = 0, nvlink_bytes = 0;
};

/// The dispatcher of a plan. exchange: of one group of ranks that hold all experts. laws: of the
/// dispatch and of the combine, unless by_links; call: its rates and SMs; gpu_sms: of the device,
/// of which the dispatcher's are not there for compute while it runs; expected: rows per token of
/// both ways; hops: the same by hop and pair of ranks, as shares of a rank's tokens.
struct Dispatcher {
  dispatch::Route route;
  dispatch::Exchange exchange;
  bool by_links = false;
  std::array<dispatch::Law, 2> laws;
  dispatch::Call call;
  double gpu_sms = 0;
  std::array<dispatch::TokenRows, 2> expected;
  std::array<std::vector<std::vector<double>>, 2> hops;
  double logical_rows = 0;  // per token

  /// Sets `expected`, `hops` and `logical_rows` to those of these choices.
  void expect(const dispatch::Choices& choices);

  /// The way of an op: an exchange to the experts is a dispatch, also of gradients, else a combine.
  static dispatch::Way way(const Op& op) {
    return op.rows.to_expert() ? dispatch::Way::kDispatch : dispatch::Way::kCombine;
  }
  /// Whether the op exchanges rows as they are in use, which the dispatcher then does.
  static bool runs(const Graph& graph, const Op& op);
  /// Whether the op exchanges the weights of rows, which by a law travel in the rows.
  static bool rides(const Graph& graph, const Op& op);
  /// How many of a rank's tokens the op exchanges: all, or those of a part.
  double tokens(const Graph& graph, OpId op, const WorkContext& work) const;
  /// Bytes that a rank is expected to send to others in the op.
  Bytes sent(const Graph& graph, OpId op, const WorkContext& work) const;
  /// The dispatcher's call for this op.
  dispatch::Call call_of(const Op& op, double tokens) const;
  DispatchUse use(const Graph& graph, OpId op, const WorkContext& work) const;
  /// Returns the choices of a rank whose experts are chosen so often, [experts]; -1 where tokens
  /// have fewer. Experts go to tokens in a random order.
  static std::vector<int32_t> choices_with(std::span<const int64_t> counts, int64_t tokens,
                                           int64_t topk, uint64_t seed);
};

class DispatchCost : public CostModel {
 public:
  DispatchCost(std::shared_ptr<const CostModel> below, std::shared_ptr<const Dispatcher> dispatcher,
               WorkContext work)
      : below_(std::move(below)), dispatcher_(std::move(dispatcher)), work_(work) {}
  Nanoseconds op_ns(const Graph& graph, OpId op) const override;
  /// With RoutedWork::bytes, which are those of the dispatcher's rows, by their fullest links.
  Nanoseconds routed_ns(const Graph& graph, OpId op, const RoutedWork& routed) const override;
  std::optional<NetworkOp> transfer(const Graph& graph, OpId op) const override;
  /// While an exchange runs, products have the other SMs alone, and all else the memory's rate less
  /// the rows that are read and written.
  CoreSharing sharing(const Graph& graph, OpId op) const override;
  std::string describe() const override;

  bool has_times() const override { return below_->has_times(); }
  bool reads_blocks() const override { return below_->reads_blocks(); }
  Nanoseconds handoff_ns() const override { return below_->handoff_ns(); }
  Nanoseconds pick_ns() const override { return below_->pick_ns(); }
  const Cluster* network() const override { return below_->network(); }
  std::string algorithm(const Graph& graph, OpId op) const override {
    return below_->algorithm(graph, op);
  }
  TimeSource time_source(const Graph& graph, OpId op) const override;
  bool has_host() const override { return below_->has_host(); }
  Nanoseconds host_ns(const Graph& graph, OpId op) const override {
    return below_->host_ns(graph, op);
  }
  /// The host waits for counts where the dispatcher says so, whatever its stack does without one.
  bool host_waits(const Graph& graph, OpId op) const override {
    return graph.def(op).payload == Payload::kCounts ? dispatcher_->route.host_sync
                                                     : below_->host_waits(graph, op);
  }

 private:
  double tokens_of(const Graph& graph, OpId op) const {
    return dispatcher_->tokens(graph, op, work_);
  }
  Nanoseconds time(const Op& op, const dispatch::TokenRows& rows, double tokens) const;
  Nanoseconds links_ns(const Graph& graph, OpId op) const;
  /// Whether the op takes no time of its own.
  bool is_free(const Graph& graph, OpId op) const {
    return !dispatcher_->by_links && Dispatcher::rides(graph, graph.op(op));
  }

  std::shared_ptr<const CostModel> below_;
  std::shared_ptr<const Dispatcher> dispatcher_;
  WorkContext work_;
};

}  // namespace moe
