// The definitions that table.cpp lists, each in the file of its family.
#pragma once

#include "engine/graph/op_def.h"

namespace moe::ops {

extern const OpDef kEmbedding, kEmbeddingDw;
extern const OpDef kLayernorm, kLayernormDx, kLayernormDw;
extern const OpDef kLinear, kLinearDx, kLinearDw, kBiasGrad;
extern const OpDef kAttention, kAttentionDx;
extern const OpDef kAttnScore, kAttnSoftmax, kAttnContext;
extern const OpDef kAttnContextDx, kAttnSoftmaxDx, kAttnScoreDx;
extern const OpDef kGelu, kGeluDx;
extern const OpDef kGateLogits, kGate, kGateDlogits, kCountPart;
extern const OpDef kDispatch, kDispatchDx;
extern const OpDef kAllToAll, kExchangeCounts;
extern const OpDef kSplitPeers, kJoinPeers;
extern const OpDef kGatherLoads, kSlotRows, kPlace, kCommit;
extern const OpDef kExpectExperts, kPlaceExpected, kFineTune, kSwapIn;
extern const OpDef kCopyExperts, kReturnGradients, kSumResidents, kMigrate;
extern const OpDef kExpertLinear, kExpertLinearDx, kExpertLinearDw;
extern const OpDef kCombine, kCombineDx, kCombineDweight;
extern const OpDef kCrossEntropy, kBalanceLoss, kZLoss;
extern const OpDef kExpertLoad, kBalanceBias;
extern const OpDef kAllReduce;
extern const OpDef kSgd, kAdamw;
extern const OpDef kRound;
extern const OpDef kAdd, kSplit, kConcat, kJoinRows, kTransposeBlocks;

}  // namespace moe::ops
