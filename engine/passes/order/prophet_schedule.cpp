// Pro-Prophet's block-wise scheduler (arXiv 2411.10003, section V and algorithm 2) for placed MoE
// layers: it decides when the planner runs, and during which compute the copies of experts and
// their gradients are transferred. Invariant: it only adds order edges and priorities and moves no
// op to another lane. Which experts are copied is decided in placement/prophet.h.
#include <algorithm>
#include <map>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/order/growing_order.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

/// The ops of a block's MoE layer that this scheduler orders, in program order; the lists of
/// all-to-alls contain all parts.
struct Block {
  OpId plan;
  std::vector<OpId> trans, agg;
  std::vector<OpId> there, back;            // all-to-alls of rows to the experts, and back
  std::vector<OpId> grad_there, grad_back;  // the same two in the backward
};

/// Returns the blocks with placed experts, by ascending layer.
std::vector<Block> placed_blocks(const Graph& graph) {
  std::map<int32_t, Block> blocks;
  for (const OpId id : graph.op_ids()) {
    const Op& op = graph.op(id);
    if (is(graph, id, MoeOp::kPlace)) blocks[op.layer].plan = id;
    const bool again = op.phase == Phase::kRecompute;
    if (carries(graph, id, Payload::kShadows) && !again) blocks[op.layer].trans.push_back(id);
    if (carries(graph, id, Payload::kShadowGradients)) blocks[op.layer].agg.push_back(id);
    if (!carries(graph, id, Payload::kRows) || again) continue;
    Block& block = blocks[op.layer];
    const bool forward = op.phase == Phase::kForward;
    if (op.rows.to_expert()) {
      (forward ? block.there : block.grad_there).push_back(id);
    } else {
      (forward ? block.back : block.grad_back).push_back(id);
    }
  }
  std::vector<Block> all;
  for (auto& [layer, block] : blocks) all.push_back(std::move(block));
  return all;
}

/// An interval between all-to-alls: after all ops of `open` and before all ops of `close`.
struct Gap {
  std::vector<OpId> open, close;
  std::string beside;  // for the log
};

/// Returns the gaps of a step in the order of time. Forward: the gap before block 1, then for every
/// block the gap during its experts and the gap after it. Backward: the same two gaps of every
/// block, from the last block to the first.
std::vector<Gap> gaps_of(const std::vector<Block>& blocks) {
  std::vector<Gap> gaps = {{{}, blocks[0].there, "at the start of the step"}};
  const size_t l = blocks.size();
  for (size_t i = 0; i < l; ++i) {
    const Block& b = blocks[i];
    gaps.push_back({b.there, b.back, fmt::format("beside FEC({})", i + 1)});
    gaps.push_back({b.back, i + 1 < l ? blocks[i + 1].there : blocks[i].grad_there,
                    fmt::format("beside FNEC({})", i + 1)});
  }
  for (size_t i = l; i-- > 0;) {
    const Block& b = blocks[i];
    gaps.push_back({b.grad_there, b.grad_back, fmt::format("beside BEC({})", i + 1)});
    gaps.push_back({b.grad_back, i > 0 ? blocks[i - 1].grad_there : std::vector<OpId>{},
                    i > 0 ? fmt::format("beside BNEC({})", i) : "behind the last all-to-all"});
  }
  return gaps;
}

class Scheduler {
 public:
  Scheduler(const Graph& graph, Schedule& schedule, const PassContext& context)
      : graph_(graph),
        schedule_(schedule),
        context_(context),
        blocks_(placed_blocks(graph)),
        gaps_(gaps_of(blocks_)),
        order_(graph, schedule) {}

  void run() {
    const size_t l = blocks_.size();
    for (size_t i = 0; i < l; ++i) {
      for (const OpId trans : blocks_[i].trans) {
        put(trans, i == 0 ? 0 : 2 * i - (beside_experts(trans) ? 1 : 0), -1);
      }
    }
    for (size_t i = l; i-- > 0;) {
      // Number of the gap after the backward of block i; in the next gap the experts of block i - 1
      // run their backward.
      const size_t behind = gaps_.size() - 1 - 2 * i;
      for (const OpId agg : blocks_[i].agg) {
        put(agg, behind + (i > 0 && beside_experts(agg) ? 1 : 0), 1);
      }
    }
    for (const Block& block : blocks_) plan_under(block);
  }

 private:
  bool beside_experts(OpId op) const { return attr_string(graph_.op(op), "beside") == "experts"; }

  void before(OpId from, OpId to, const std::string& why) {
    schedule_.before(from, to, context_.stage, why);
    order_.add(from, to);
  }

  void log(OpId op, const std::string& why) {
    context_.log->push_back({graph_.op(op).name, context_.stage, why});
  }

  /// Puts the transfer into the gap number `first` or, when it does not fit there, into the next
  /// gap in the direction `step` for which it fits. Throws UserError when it fits into no gap.
  void put(OpId transfer, size_t first, int step) {
    schedule_.set_priority(transfer, 1);
    for (size_t g = first; g < gaps_.size(); g += static_cast<size_t>(step)) {
      const Gap& gap = gaps_[g];
      if (!fits(transfer, gap)) continue;
      for (const OpId op : gap.open) {
        ready_before(transfer, op);
        before(op, transfer, gap.beside);
      }
      for (const OpId op : gap.close) {
        used_after(transfer, gap, op);
        before(transfer, op, gap.beside);
      }
      pass_all_reduces(transfer, gap);
      return log(transfer, gap.beside);
    }
    throw user_error(
        "op '{}': it fits between no two all-to-alls, because of order edges that earlier stages "
        "added; leave these stages out",
        graph_.op(transfer).name);
  }

  /// Puts the transfer before the all-reduces that the program has inside the gap and that share
  /// its lane, so that they do not run first.
  void pass_all_reduces(OpId transfer, const Gap& gap) {
    const OpId from = gap.open.empty() ? OpId(0) : gap.open.back();
    const OpId to = gap.close.empty() ? OpId(static_cast<int64_t>(graph_.num_ops())) : gap.close[0];
    for (int64_t i = from.value; i < to.value; ++i) {
      const OpId op(i);
      if (!is_sync(graph_.def(op).payload)) continue;
      if (schedule_.lane_of[op.index()] != schedule_.lane_of[transfer.index()]) continue;
      if (!order_.path(op, transfer)) before(transfer, op, "before all-reduces of " + gap.beside);
    }
  }

  /// Makes the inputs of the transfer ready before the compute during which it shall run. (The
  /// views that split the gradients of slots come last in the program.)
  void ready_before(OpId transfer, OpId open) {
    const std::vector<OpId> read = order_.preds(transfer), behind = order_.succs(open);
    for (const OpId op : read) {
      if (graph_.def(op).lane != LaneKind::kCompute || order_.path(op, open)) continue;
      for (const OpId next : behind) {
        const bool computes = graph_.def(next).lane == LaneKind::kCompute;
        if (computes && next != op && !order_.path(next, op)) {
          before(op, next, "ready for " + graph_.op(transfer).name);
        }
      }
    }
  }

  /// Puts the readers of the transfer's result after the compute during which it shall run. (The
  /// views that join residents and shadows come first in the program.)
  void used_after(OpId transfer, const Gap& gap, OpId end) {
    const std::vector<OpId> readers = order_.succs(transfer), awaited = order_.preds(end);
    for (const OpId reader : readers) {
      if (graph_.def(reader).lane != LaneKind::kCompute) continue;
      for (const OpId op : awaited) {
        const bool computes = graph_.def(op).lane == LaneKind::kCompute && inside(gap, op);
        if (computes && op != reader && !order_.path(reader, op)) {
          before(op, reader, "not yet for " + graph_.op(transfer).name);
        }
      }
    }
  }

  bool inside(const Gap& gap, OpId op) const {
    return gap.open.empty() || std::any_of(gap.open.begin(), gap.open.end(),
                                           [&](OpId open) { return order_.path(open, op); });
  }

  /// Returns whether the transfer can run inside the gap: it must not have to wait for an op at the
  /// end of the gap, and no compute inside the gap that the end waits for may depend on it (the
  /// transfer would then delay that compute instead of running during it).
  bool fits(OpId transfer, const Gap& gap) const {
    for (const OpId op : gap.open) {
      if (order_.path(transfer, op)) return false;
    }
    return std::none_of(gap.close.begin(), gap.close.end(), [&](OpId end) {
      const std::vector<OpId>& awaited = order_.preds(end);
      return order_.path(end, transfer) ||
             std::any_of(awaited.begin(), awaited.end(), [&](OpId op) {
               return op != transfer && inside(gap, op) && order_.path(op, transfer);
             });
    });
  }

  /// Lets the planner run during an all-to-all of its layer. Tries the all-to-all to the experts,
  /// then the one back; of each the last part first, because most of the layer's loads are known by
  /// then. If none fits, the planner stays unordered.
  void plan_under(const Block& block) {
    for (const auto* all_to_alls : {&block.there, &block.back}) {
      for (size_t i = all_to_alls->size(); i-- > 0;) {
        if (bind_under(block.plan, (*all_to_alls)[i])) return;
      }
    }
    log(block.plan, "free: it fits under neither all-to-all of its layer");
  }

  bool bind_under(OpId plan, OpId a2a) {
    if (order_.path(a2a, plan) || order_.path(plan, a2a)) return false;
    const std::vector<OpId> succs = order_.succs(a2a), &preds = order_.preds(a2a);
    for (const OpId p : preds) {
      if (order_.path(plan, p)) return false;
    }
    for (const OpId s : succs) {
      if (s == plan || order_.path(s, plan)) return false;
    }
    const std::string why = "under " + graph_.op(a2a).name;
    for (const OpId p : preds) before(p, plan, why);
    for (const OpId s : succs) {
      if (graph_.def(s).lane == LaneKind::kCompute) before(plan, s, why);
    }
    log(plan, why);
    return true;
  }

  const Graph& graph_;
  Schedule& schedule_;
  const PassContext& context_;
  std::vector<Block> blocks_;
  std::vector<Gap> gaps_;
  GrowingOrder order_;
};

/// Returns whether the graph exchanges rows at all. Throws UserError when experts are not placed or
/// their placements are made too late.
bool check_placed(const Graph& graph, const std::string& stage) {
  bool exchanges = false, placed = false;
  for (const OpId op : graph.op_ids()) {
    exchanges = exchanges || carries(graph, op, Payload::kRows);
    if (!is(graph, op, MoeOp::kPlace)) continue;
    placed = true;
    if (attr_string(graph.op(op), "use") == "next") continue;
    throw user_error(
        "stage '{}': stage '{}' has use = 'now', so no expert can be sent before the layer's own "
        "gate; allowed: 'next'",
        stage, attr_string(graph.op(op), "stage"));
  }
  if (exchanges && !placed) {
    throw user_error(
        "stage '{}': the experts are not placed; list a stage that places them, such as 'prophet'",
        stage);
  }
  return exchanges;
}

}  // namespace

/// Blocks are numbered i = 1..l; a block is an MoE layer and the compute up to the all-to-all of
/// the next one. In names of the paper:
///   Plan (op place)              of the next step: runs during the first all-to-all of its own
///                                layer or, where that is impossible, during the second
///   Trans (op copy_experts)      of block i+1: runs while block i computes, sub-Trans A between
///                                the two all-to-alls of block i (FEC), sub-Trans B between the
///                                second one and the first of block i+1 (FNEC);
///                                of block 1: before its first all-to-all
///   Agg (op return_gradients)    of block i+1: runs during the backward of block i, sub-Agg B
///                                before the first all-to-all of this backward (BNEC), sub-Agg A
///                                between its two all-to-alls (BEC);
///                                of block 1: after the last all-to-all
/// The attr `beside` of an op states whether it is A or B; a placement without `split` has only A.
/// A transfer that takes longer than the compute delays the all-to-all after it: T_PTrans and
/// T_PAgg of equation (8). Every transfer of experts is ordered against every all-to-all, so that
/// two of them never use the network at once, whatever their lanes are. A transfer of experts has
/// the priority of an all-to-all, because an all-to-all waits for it. Where the order edges of
/// another stage leave no room (dw_schedule may have moved weight gradients back), the gradients
/// take the next gap that fits.
/// Changes nothing when no rows are exchanged. Throws UserError when no stage has placed the
/// experts, or when placements are made in the layer that they are for (use = 'now').
Schedule prophet_schedule(const Graph& graph, Schedule schedule, const PassContext& context) {
  if (check_placed(graph, context.stage)) Scheduler(graph, schedule, context).run();
  return schedule;
}

}  // namespace moe
