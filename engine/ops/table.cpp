#include "engine/ops/defs.h"
#include "engine/ops/ops.h"

namespace moe {

const OpTable& op_table() {
  using namespace ops;
  static const OpTable table({
      &kEmbedding,
      &kEmbeddingDw,
      &kLayernorm,
      &kLayernormDx,
      &kLayernormDw,
      &kLinear,
      &kLinearDx,
      &kLinearDw,
      &kBiasGrad,
      &kAttention,
      &kAttentionDx,
      &kAttnScore,
      &kAttnSoftmax,
      &kAttnContext,
      &kAttnContextDx,
      &kAttnSoftmaxDx,
      &kAttnScoreDx,
      &kGelu,
      &kGeluDx,
      &kGateLogits,
      &kGate,
      &kGateDlogits,
      &kCountPart,
      &kDispatch,
      &kDispatchDx,
      &kAllToAll,
      &kExchangeCounts,
      &kExpertLinear,
      &kExpertLinearDx,
      &kExpertLinearDw,
      &kCombine,
      &kCombineDx,
      &kCombineDweight,
      &kCrossEntropy,
      &kAllReduce,
      &kSgd,
      &kAdd,
      &kSplit,
      &kTransposeBlocks,
      &kConcat,
      &kJoinRows,
      &kSplitPeers,
      &kJoinPeers,
      &kGatherLoads,
      &kSlotRows,
      &kPlace,
      &kCommit,
      &kCopyExperts,
      &kReturnGradients,
      &kSumResidents,
      &kMigrate,
      &kExpectExperts,
      &kPlaceExpected,
      &kFineTune,
      &kSwapIn,
      &kExpertLoad,
      &kBalanceLoss,
      &kZLoss,
      &kBalanceBias,
      &kAdamw,
      &kRound,
  });
  return table;
}

Attrs store_attr(DType dtype) {
  if (dtype != DType::kBF16) return {};
  return {{"store", std::string(dtype_name(dtype))}};
}

}  // namespace moe
