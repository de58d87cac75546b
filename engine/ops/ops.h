// The table of all ops. One file per op (or an op with its backward); adding one is a file and a
// line in defs.h.
//
// Names, inputs -> outputs ([x] is optional), T = tokens of this rank, d hidden, E experts in all,
// El experts of this rank, P ranks of a group that holds all experts (attrs group, stride of the
// collectives, base/group.h; all ranks unless given), C capacity an expert and rank, K choices per
// token:
//   embedding         ids[B,S] wte[V,d] wpe[S,d] -> x[B,S,d]
//   embedding_dw      dx ids [acc wte] [acc wpe] -> dwte dwpe; attr vocab
//   layernorm         x gamma beta -> y mean[T] rstd[T]
//   layernorm_dx      dy x mean rstd gamma [acc] -> dx
//   layernorm_dw      dy x mean rstd [acc gamma] [acc beta] -> dgamma dbeta
//   linear            x[..,in] w[out,in] [bias] [residual] -> y[..,out] [z where attr gelu=1: GELU
//                     of y; no residual then]
//   linear_dx         dy w [acc] [sum where attr gelu=1] -> dx; attr seq arranges the rows as
//                     [rows/seq, seq]; gelu=1: times the slope of GELU at sum, and no acc
//   linear_dw         dy x [acc w] [acc b] -> dw [db where attr bias=1]
//   bias_grad         dy [acc] -> db; dy [El,..,n] with attr groups=El gives db [El,n]
//   attention         qkv[B,S,3d] -> ctx[B,S,d] lse[B,nh,S]; attr heads; fused
//   attention_dx      dctx ctx qkv lse -> dqkv
//   attn_score        qkv -> score[B,nh,S,S]; attr heads
//   attn_softmax      score -> prob; attr head_dim
//   attn_context      prob qkv -> ctx; attr heads
//   attn_context_dx   dctx prob qkv -> dprob dqkv
//   attn_softmax_dx   dprob prob -> dscore
//   attn_score_dx     dscore qkv dqkv -> dqkv' (fills the q and k columns, takes v over)
//   gelu              x [bias] [recv_counts] [recv_begin] -> y; bias [n], or [El,n] with
//                     x [El,..,n]; attr rows as expert_linear
//   gelu_dx           dy x [bias] [recv_counts] -> dx
//   gate_logits       x[B,S,d] wg[E,d] -> logits[T,E]; its backward is linear_dx and linear_dw
//   gate              logits ids [used_before[E]] [bias[E]] -> probs[T,E] weight[T,K] expert[T,K]
//                     choice_slot[T,K] slot_choice[E,C] counts[E]; attrs gate, k, columns (K; k
//                     unless given), capacity, scores, weight, scope; counts go on from
//                     used_before; the bias counts for the choice, not for the weights
//   gate_dlogits      dweight probs expert -> dlogits
//   count_part        choice_slot[n,K] [used_before[E]] -> used_after[E]: the places that these
//                     tokens hold, on top of those before; attrs experts, capacity
//   dispatch          x slot_choice [choice_slot] [counts[E]] [begin[E]] -> slots[E,C,d]; attr
//                     k = K; the backward needs choice_slot, a part counts
//   dispatch_dx       dslots choice_slot [acc] -> dx; attr seq as linear_dx
//   all_to_all        to="expert": slots[E,C,d] [counts[E]] [recv_counts[El,P]] [begin[E]]
//                     [recv_begin[El,P]] -> recv[El,P,C,d]
//                     to="source": slots[El,P,C,d] [counts] [recv_counts] ... -> recv[E,C,d]
//                     attr irregular=1: only the rows that the counts (both of them) say; the rest
//                     of recv is zero
//                     rows of S sources that have met already travel together: to="expert"
//                     slots[E,S,C,d] -> recv[El,P*S,C,d]; to="source" with attr sources=S gives
//                     recv[E,S,C,d]; counts[E,S], recv_counts[El,P*S], alike their begins
//                     attrs rounds = n, round = j: block g of P/n neighbours sends to block g+j
//                     alone (to="source": back from there), slots[E/n,C,d] -> recv[El,P/n,C,d]
//   split_peers       slots[E,C,d] -> n of [E/n,C,d], attr rounds = n; part j are the slots that
//                     this rank sends in round j, so its place in its group decides which
//   join_peers        n of [E/n,C,d] -> slots[E,C,d], the inverse
//   exchange_counts   counts[E] -> recv_counts[El,P], or [E,S] -> [El,P*S]; a collective of its
//                     own, needed where a transfer is irregular or rows="used"
//                     attrs experts, devices, residents, shadows, weighted and input 5, placement:
//                     to="expert" slots[E,C,d] -> recv[L,P,C,d], the rows of each expert to the
//                     slots that hold it (L slots per device, placement/placement.h); to="source"
//                     the reverse; recv_counts is slot_rows' [L,P]; with attr loose=1 rows that
//                     are not in use hold anything
//   gather_loads      counts[E] -> loads[P,E]; a collective
//   slot_rows         loads placement -> rows[L,P]
//   copy_experts      placement w[R,..]... -> shadows[S,..]...; attrs first, last (S of the shadow
//                     slots); expected: copies that a device receives, for cost models; a collective
//   return_gradients  placement dshadows[S,..]... dw[R,..]... -> dw...; a collective
//   sum_residents     placement dw[R,..]... -> dw...; a collective
//   place             loads placement -> next; attrs policy, every, layer_number, option_<name>
//                     and the rates of PlacementRates
//   migrate           placement next w[R,..] v[R,..]...; overwrites the tensors; a collective
//   commit            next placement; overwrites the placement
//   expect_experts    expert[T,K]... (of the layers before) -> estimate[2(E+2)]; attrs experts,
//                     layer_number
//   place_expected    estimates[P,2(E+2)] -> placement; attr normalise
//   fine_tune         loads[P,E] estimates placement -> placement'; attrs k, compare, normalise
//   swap_in           placement w[E,..]... -> slots[L,..]...; with attr keep=1 also the placement
//                     before, as input 1, and its slots, behind the weights
//   expert_linear     x[El,P,C,in] (or [El,C,in] where P = 1) w[El,out,in] [bias[El,out]]
//                     [recv_counts[El,P]] [recv_begin[El,P]] -> y[El,P,C,out] [z, as linear]
//                     attr rows = "capacity" | "used" (only rows below recv_counts; the others are
//                     zero)
//   expert_linear_dx  dy w [acc] [recv_counts] [sum where attr gelu=1] -> dx, as linear_dx
//   expert_linear_dw  dy x [acc w] [acc b] [recv_counts] -> dw [db where attr bias=1]
//   combine           slots[E,C,d] weight choice_slot [residual] [slot_choice] -> y[B,S,d]; the
//                     backward needs slot_choice
//   combine_dx        dy weight slot_choice -> dslots
//   combine_dweight   dy slots choice_slot -> dweight
//   cross_entropy     logits[T,V] targets -> loss[1] dlogits; attr scale = 1 / global tokens
//   expert_load       expert[T,K] -> load[E]: choices, before drops; choice_slot[T,K] with attr
//                     capacity = C: kept ones; attrs experts, capacity (1), first=1: column 0 only
//   balance_loss      logits[T,E] load[E] -> loss[1] dlogits; attrs scale, scores; no gradient
//                     flows through the load
//   z_loss            logits[T,E] -> loss[1] dlogits; attr scale
//   balance_bias      bias load; attr rate; overwrites bias
//   all_reduce        g... -> g'... (any number; sums over the group, in place where it may)
//   sgd               w v g; attrs lr, momentum; overwrites w and v
//   adamw             w m v g; attrs lr, beta1, beta2, eps, weight_decay; overwrites w, m and v
//   add               a b -> y
//   round             x (f32) -> y (bf16), as x: what several products take as an operand
//   split             x -> parts...; attrs axis, sizes="4,4"
//   concat            parts... -> x; attr axis
//                     both: attr view=1 where only axes of length 1 stand before axis: the parts
//                     lie in the whole's storage, and nothing moves
//   join_rows         end[E]... part[E,C,..]... (or [El,P] and [El,P,C,..]) -> whole, as each part;
//                     attr parts = k of each. All lie in one storage; part p holds the rows of a
//                     block from end p-1 up to end p; those from the last end on become 0 (-1 in
//                     index tensors), with attr view=1 they stay as they are and nothing is done
//   transpose_blocks  x -> y, as x; attrs rows=R, cols=C: block (i, j) of x [R,C,..] is block
//                     (j, i) of y [C,R,..], where R*C divides the first axis
//
// Attr share (of the batch, in 0..1) makes gate, dispatch, all_to_all, expert_linear, gelu and
// combine one part of a batch: slots and tokens are numbered through the whole batch, rows lie
// where the whole's would, the part begins at token attr first_token and at the begin counts, ends
// at the counts, and leaves all other rows as they are.
//
// Attr store="bf16": an op of f32 inputs (embedding, the gate's linear_dx) makes an activation of
// bf16. Where activations are bf16, parameters and their gradients and states, logits, probs and
// weights of gates, statistics and loads are f32.
#pragma once

#include "engine/graph/op_def.h"

namespace moe {

const OpTable& op_table();

/// The attribute for an op that makes an activation of this type; none where that is the type of
/// its inputs anyway.
Attrs store_attr(DType dtype);

}  // namespace moe
