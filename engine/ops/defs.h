// The list of all ops: declares kName for every X(Name). Each is defined in the .cpp file of its
// family. A new op takes a line here and its definition. What ops read and write is in ops.h.
#pragma once

#include "engine/graph/op_def.h"

namespace moe::ops {

// clang-format off
#define MOE_OPS(X) \
  X(Embedding) X(EmbeddingDw) X(Layernorm) X(LayernormDx) X(LayernormDw) X(Rmsnorm) X(RmsnormDx) \
  X(RmsnormDw) X(Linear) X(LinearDx) X(LinearDw) X(BiasGrad) \
  X(Attend) X(AttendDx) X(AttendDsinks) X(AttnScore) X(AttnSoftmax) X(AttnContext) \
  X(AttnContextDx) X(AttnSoftmaxDx) X(AttnScoreDx) X(Gelu) X(GeluDx) X(SiluMul) X(SiluMulDx) \
  X(Mul) X(RowDot) X(Scale) X(Sigmoid) X(SigmoidDx) X(Relu) X(ReluDx) X(SplitHeads) X(JoinHeads) \
  X(RopeAngles) X(Rope) X(GateLogits) X(Gate) X(GateDlogits) X(CountPart) X(PackSlots) \
  X(Dispatch) X(DispatchDx) X(DispatchWeight) X(DispatchWeightDx) X(AllToAll) X(ExchangeCounts) \
  X(ExpertLinear) X(ExpertLinearDx) X(ExpertLinearDw) X(Combine) X(CombineDx) X(CombineDweight) \
  X(CrossEntropy) X(VocabularySums) X(CrossEntropySplit) X(AllReduce) X(ReduceScatter) \
  X(AllGather) X(GatherRows) X(ScatterRows) X(ShiftRows) X(AttendStep) X(AttendStepDx) \
  X(JoinSteps) X(OwnRows) X(OwnRowsDw) X(OwnVocabulary) X(AddRows) \
  X(AddRowsDw) X(Sgd) X(SquareSum) X(ClipGradients) X(Add) X(Split) X(TransposeBlocks) X(Concat) \
  X(SplitRows) X(ConcatRows) X(ReorderRows) X(JoinRows) X(RepeatRows) X(SumRepeats) \
  X(SplitPeers) X(JoinPeers) X(AddLoads) \
  X(GatherLoads) X(SlotRows) X(Place) X(Commit) X(CopyExperts) X(ReturnGradients) X(SumResidents) \
  X(Migrate) X(ExpectExperts) X(PlaceExpected) X(FineTune) X(SwapIn) X(ExpertLoad) X(BalanceLoss) \
  X(ZLoss) X(BalanceBias) X(Adamw) X(Round) X(Send) X(Receive) X(SumCopies) X(StandIn) \
  X(StandInBack) X(TokensAhead) X(MtpLoss) X(MtpLossSplit)
// clang-format on

#define MOE_DECLARE_OP(name) extern const OpDef k##name;
MOE_OPS(MOE_DECLARE_OP)
#undef MOE_DECLARE_OP

}  // namespace moe::ops
