#include "engine/analysis/served_batch.h"

#include <algorithm>
#include <limits>
#include <map>

#include "engine/graph/op_def.h"

namespace moe {
namespace {

struct SpanBounds {
  Nanoseconds begin = std::numeric_limits<Nanoseconds>::max(), end = 0;
  void add(const Span& span) {
    begin = std::min(begin, span.begin);
    end = std::max(end, span.end);
  }
  Nanoseconds length() const { return std::max<Nanoseconds>(0, end - begin); }
};

/// First begin and last end of the spans of one MoE layer, per kind of op.
struct Layer {
  SpanBounds gate, loads, placed, tuned, there, combine;
  Nanoseconds a2a_ns = 0;
  std::map<int32_t, SpanBounds> experts;  // key: rank

  ServedTimes times() const {
    ServedTimes t = {.layer_ns = SpanBounds{gate.begin, combine.end}.length(), .a2a_ns = a2a_ns};
    const Nanoseconds known = tuned.end > 0 ? tuned.end : placed.end;
    t.phase2_ns = std::max<Nanoseconds>(0, known - gate.end);
    if (placed.end > 0) t.mapping_wait_ns = std::max<Nanoseconds>(0, placed.end - loads.end);
    Nanoseconds from = there.end;
    if (there.end == 0 && !experts.empty()) {
      from = std::numeric_limits<Nanoseconds>::max();
      for (const auto& [rank, mine] : experts) from = std::min(from, mine.begin);
    }
    Nanoseconds last = from, unhindered = from;
    for (const auto& [rank, mine] : experts) {
      last = std::max(last, mine.end);
      unhindered = std::max(unhindered, from + mine.end - mine.begin);
    }
    t.expert_ns = last - from;
    t.swap_wait_ns = placed.end > 0 || tuned.end > 0 ? last - unhindered : 0;
    return t;
  }
};

class Reader {
 public:
  explicit Reader(const Plan& plan) : graph_(plan.graph), gives_loads_(graph_.num_ops()) {
    const std::vector<OpId> producers = graph_.producers();
    for (const OpId id : graph_.op_ids()) {
      if (is(graph_, id, MoeOp::kGate)) layers_[graph_.op(id).layer];
      if (!is(graph_, id, MoeOp::kSlotRows)) continue;
      const TensorId loads = input_of(graph_, graph_.op(id), Role::kLoads);
      gives_loads_[producers[loads.index()].index()] = true;
    }
  }

  void add(const Span& span) {
    const Op& op = graph_.op(span.op);
    const OpDef& def = graph_.def(span.op);
    if (def.loss != Loss::kModel) answer_ns_ = std::max(answer_ns_, span.end);
    const auto found = layers_.find(op.layer);
    if (found == layers_.end()) return;
    Layer& layer = found->second;
    if (op.segment == Segment::kGate) layer.gate.add(span);
    if (op.segment == Segment::kCombine) layer.combine.add(span);
    if (op.segment == Segment::kExpert && def.lane == LaneKind::kCompute) {
      layer.experts[span.rank].add(span);
    }
    if (gives_loads_[span.op.index()]) layer.loads.add(span);
    if (def.moe == MoeOp::kPlaceExpected) layer.placed.add(span);
    if (def.moe == MoeOp::kFineTune) layer.tuned.add(span);
    if (def.payload != Payload::kRows) return;
    if (op.rows.to_expert()) layer.there.add(span);
    if (span.rank == 0) layer.a2a_ns += span.end - span.begin;
  }

  ServedBatch batch() const {
    ServedBatch batch = {.answer_ns = answer_ns_};
    for (const auto& [block, layer] : layers_) batch.layers.push_back(layer.times());
    return batch;
  }

 private:
  const Graph& graph_;
  std::vector<bool> gives_loads_;    // per op: whether it exchanges the counts of a layer
  std::map<int32_t, Layer> layers_;  // key: block
  Nanoseconds answer_ns_ = 0;
};

}  // namespace

ServedBatch served_batch(const Plan& plan, const Timeline& timeline) {
  Reader reader(plan);
  for (const Span& span : timeline.spans) reader.add(span);
  return reader.batch();
}

}  // namespace moe
