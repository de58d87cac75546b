// The built-in passes, one file each. What a pass does and which options it takes stands in its row
// of the table in pipeline.cpp; sources and equations stand here.
#pragma once

#include "engine/passes/pass.h"

namespace moe {

/// All-to-alls carry real rows only (Lancet, section 5.3: counts first, then the rows). Each gets
/// attr irregular=1 and the received counts of one exchange_counts op a gate; the backward reuses
/// them. Nothing to do where no rows are exchanged. Throws UserError for an all-to-all that is cut
/// along the capacity or goes in steps.
Graph irregular_a2a(Graph graph, const PassContext& context);

/// Experts compute the rows in use only: attr rows="used" and the received counts as an input. The
/// gradients of their weights then sum the rows source by source, so they may differ in rounding.
/// Throws UserError for an expert that is cut along the capacity or whose rows come in steps.
Graph used_rows(Graph graph, const PassContext& context);

/// Lina's inference scheduler (USENIX ATC 2023, section 5) in a forward without a backward: the
/// weights of all experts are on every device, in its host memory. From layer `path` on, the
/// popularity of a layer's experts is estimated from the paths of the tokens behind the gate of the
/// layer before, experts are placed by it and their weights copied to slots (phase 1), on a lane of
/// the host beside that layer's exchange and experts; behind the gate, where its counts say
/// otherwise, they are placed again and what is missing is copied (phase 2). Earlier layers stay as
/// expert parallelism has them, unless shorter paths estimate them too. Without estimation every
/// layer is placed by its counts alone, without fine-tuning phase 1 stands. Weights are copied in
/// every batch: slots keep nothing. Throws UserError for layers that are cut, placed or
/// grouped.
Graph lina_inference(Graph graph, const PassContext& context);

/// Cuts all-to-all, experts, all-to-all of every MoE layer along the capacity axis into `degree`
/// parts, so that part i's experts overlap part i+1's transfer (Tutel, Hwang et al. 2023; PipeMoE).
/// Lengths differ by at most one. Works before autodiff, so the backward is cut alike. Throws
/// UserError when the degree is above the capacity or when the rows of a part would have to be
/// counted (after irregular_a2a or used_rows).
Graph capacity_pipeline(Graph graph, const PassContext& context);

/// PipeMoE (INFOCOM 2023): as capacity_pipeline, each MoE layer at the degree that is best by its
/// two straight lines (pipemoe_degree.h), which are given or fitted from the cost model
/// (pipemoe_fit.h). Throws UserError naming the option for lines given in part or negative, and for
/// degrees that are none or above the capacity of a layer.
Graph pipemoe(Graph graph, const PassContext& context);

/// As capacity_pipeline, each MoE layer in as few parts as make the rows that a rank exchanges in a
/// part at most `bytes`, or one slot an expert (Lina, ATC 2023, section 4.3: an expert computes a
/// micro-op's tokens as soon as its first all-to-all is over).
Graph micro_ops(Graph graph, const PassContext& context);

/// FasterMoE's smart scheduling (He et al., PPoPP 2022; FastMoE's smart_schedule.h): the
/// all-to-alls are cut between groups of workers, not along the capacity. In S_j group g sends to
/// group g + j, modulo `groups`, and receives from g - j; C_j are the experts on the rows of S_j,
/// R_j the way back. On the wire S_0..S_n-1, then R_0..R_n-1. Works before autodiff, so that the
/// backward is cut alike, but in the reverse order: round n-1 first, FastMoE's round 0. FastMoE's
/// default is groups of 4 workers (FMOE_FASTER_GROUP_SIZE), and it needs no copies, where
/// split_peers and join_peers make one each. Its shadowed experts are not here. Throws UserError
/// where groups do not divide the ranks, for counted rows, for ops that are cut already and for
/// transfers that are not among all ranks.
Graph fastermoe_pipeline(Graph graph, const PassContext& context);

/// Every all-to-all in two steps: blocks of rows re-ordered in memory by place and node, exchanged
/// inside each node, then exchanged between the devices at the same place of all nodes; the way
/// back is the reverse. Fewer and larger messages: n + m - 2 peers instead of n m - 1 on n nodes of
/// m devices, and as many bytes on the NICs (2DH all-to-all of Tutel, Hwang et al., MLSys 2023;
/// hierarchical all-to-all of DeepSpeed-MoE, Rajbhandari et al., ICML 2022). Their second
/// re-ordering, between the steps, is where the first step puts what it receives. Irregular
/// all-to-alls stay so, their counts take the same steps. Works before autodiff, so the backward
/// follows. Results are the same bits. Throws UserError with the reason where an all-to-all stays
/// in one node, nodes have one device, or its group does not fill nodes.
Graph hierarchical_a2a(Graph graph, const PassContext& context);

/// Lancet's operator partition (MLSys 2024, section 5): ranges of the forward around the MoE layers
/// in parts of the batch, pipelined; which ranges and how many parts by dynamic programming over
/// groups of ops, or as given. The backward stays whole. Gates of batch scope are never cut. Throws
/// UserError naming the op that refuses when a given range cannot be cut.
Graph partition(Graph graph, const PassContext& context);

/// Lancet's dW scheduling (MLSys 2024, algorithm 1); see dw_schedule.h.
Schedule dw_schedule(const Graph& graph, Schedule schedule, const PassContext& context);

/// Every op waits for the one before it in program order: no overlap at all.
Schedule serial(const Graph& graph, Schedule schedule, const PassContext& context);

/// An all-to-all blocks the compute lane: it waits for the compute op before it in program order,
/// and the compute op after it waits for it. So do experts that travel, unless experts = false.
/// All-reduces stay free.
Schedule blocking_a2a(const Graph& graph, Schedule schedule, const PassContext& context);

/// Cuts the transfers of `which` ("all_reduce", "all_to_all" or "both") whose message is longer
/// than `bytes` into as few equal chunks as are not (Lina, section 4.1: micro-ops of 30 MB). Ops
/// stay apart, so a chunk never holds parts of two; what one op holds is the system's bucket_bytes.
/// Throws UserError where an op is cut already.
Schedule chunked(const Graph& graph, Schedule schedule, const PassContext& context);

/// All-to-alls before all-reduces, one transfer at a time, never interrupted (Lina, section 4.2).
/// Where each has a lane of its own, the lanes become exclusive and run in program order each, two
/// queues; a single comm lane picks by priority. hold: the begin of the gradient of a layer's
/// combine announces the all-to-all that follows it, and no all-reduce begins until that is posted.
/// Throws UserError for a lane that has a discipline already.
Schedule priority(const Graph& graph, Schedule schedule, const PassContext& context);

/// All-reduces run between the backward's pairs of all-to-alls only: each after the pair that began
/// before its gradients were complete, and before the next pair, which waits for it (Lina, "Fixed"
/// of figure 14). Those that no pair comes before, or after, are free on that side.
Schedule fixed(const Graph& graph, Schedule schedule, const PassContext& context);

}  // namespace moe
