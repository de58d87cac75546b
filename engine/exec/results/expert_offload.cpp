#include "engine/exec/results/expert_offload.h"

#include <numeric>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

/// Returns the record of a block: the last one, or a new one when the last is of another block.
OffloadRecord& record_of(int64_t layer, std::vector<OffloadRecord>& records) {
  if (records.empty() || records.back().layer != layer) records.push_back({.layer = layer});
  return records.back();
}

}  // namespace

bool records_offload(const Plan& plan, OpId op) {
  const MoeOp what = plan.graph.def(op).moe;
  return plan.spec.inference && (what == MoeOp::kFineTune || what == MoeOp::kSlotRows);
}

void add_offload(const Plan& plan, OpId id, const std::function<const void*(TensorId)>& at,
                 std::vector<OffloadRecord>& records) {
  const Op& op = plan.graph.op(id);
  const auto codes = [&](TensorId t) {
    const auto* const x = static_cast<const int32_t*>(at(t));
    return std::vector<int32_t>(x, x + num_elements(plan.graph.tensor(t).shape));
  };
  OffloadRecord& record = record_of(op.layer, records);
  const TensorId placement = input_of(plan.graph, op, Role::kPlacement);
  if (plan.graph.def(id).moe == MoeOp::kFineTune) {
    record.fine_tunes = true;
    if (placement.valid()) record.expected = codes(placement);
    record.again = record.expected != codes(op.outputs[0]);
  } else {
    record.in_force = codes(placement);
    if (!record.fine_tunes) record.expected = record.in_force;
    const std::vector<int32_t> rows = codes(op.outputs[0]);
    record.rows = {std::accumulate(rows.begin(), rows.end(), int64_t{0})};
  }
}

std::vector<OffloadRecord> joined(const std::vector<std::vector<OffloadRecord>>& ranks) {
  std::vector<OffloadRecord> all = ranks.at(0);
  for (size_t layer = 0; layer < all.size(); ++layer) {
    all[layer].rows.clear();
    for (const std::vector<OffloadRecord>& rank : ranks) {
      const OffloadRecord& own = rank.at(layer);
      MOE_CHECK(own.in_force == all[layer].in_force,
                "block {}: ranks have different placements of its experts, but must have the same",
                own.layer);
      all[layer].rows.insert(all[layer].rows.end(), own.rows.begin(), own.rows.end());
    }
  }
  return all;
}

}  // namespace moe
