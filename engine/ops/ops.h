// The table of all ops. There is one file per op or family of ops (an op with its backward, the
// ops of one transfer). Adding an op takes its definition and a line in defs.h. What an OpDef holds
// is in graph/op_def.h; kernels are in kernels/.
//
// Below: names, inputs -> outputs. [x] is optional; x... is one or more tensors. T = tokens of this
// rank, d = hidden size, E = all experts, El = experts of this rank, P = ranks of a group that
// holds all experts (attrs group and stride of collectives, base/group.h; default: all ranks),
// C = capacity (slots per expert and rank), K = choices per token, S = sequence length unless
// stated otherwise:
//   embedding         ids[B,S] wte[V,d] [wpe[S,d]] -> x[B,S,d]
//                     a token of a negative id has no row of wte
//   embedding_dw      dx ids [acc wte] [acc wpe] -> dwte [dwpe]; attr vocab; attr positions=0:
//                     there is no wpe
//   layernorm         x gamma beta -> y mean[T] rstd[T]
//   layernorm_dx      dy x mean rstd gamma [acc] -> dx
//   layernorm_dw      dy x mean rstd [acc gamma] [acc beta] -> dgamma dbeta
//   rmsnorm           x[..,m*n] gamma[n] -> y rstd[T*m]; attr eps. m = 1: norms of rows; m = heads:
//                     norms of the heads in a row
//   rmsnorm_dx        dy x rstd gamma [acc] -> dx
//   rmsnorm_dw        dy x rstd [acc] -> dgamma
//   linear            x[..,in] w[out,in] [bias] [residual] -> y[..,out] [z]; with attr gelu=1 there
//                     is z = GELU(y), and no residual is allowed
//   linear_dx         dy w [acc] [sum] -> dx; attr seq gives dx the shape [rows/seq, seq, in]; with
//                     attr gelu=1, dx is multiplied by the slope of GELU at sum, without acc
//   linear_dw         dy x [acc w] [acc b] -> dw [db where attr bias=1]
//   bias_grad         dy [acc] -> db; dy [El,..,n] with attr groups=El gives db [El,n]
//   rope_angles       ids[B,S] -> angles[S,r] f32; attrs frequencies (r/2 of them, made by
//                     rope_frequencies.h), scale
//   rope              x[..,S,h*head_dim] angles[S,r] -> y; attrs head_dim, form = "halves" |
//                     "interleaved", first: the column of each head at which the r columns begin
//                     that turn; its gradient is itself, with attr inverse=1
//   attend            q[B,S,hq*n] k[B,S,hk*n] v[B,S,hk*m] [sinks[hq]] -> ctx[B,S,hq*m] lse[B,hq,S];
//                     or, with hk = hq and m = n, q[B,S,3*hq*n], which holds k and v;
//                     attrs heads = hq, kv_heads = hk (a divisor of hq; default hq), scale (default
//                     1/sqrt(n)), window: query i sees keys max(0, i-window+1) .. i; fused
//   attend_dx         dctx ctx lse q [k] [v] [sinks] -> dq [dk] [dv]; attrs as in attend
//   attend_dsinks     lse dctx ctx sinks [acc] -> dsinks
//   attn_score        qkv -> score[B,nh,S,S]; attr heads
//   attn_softmax      score -> prob; attr head_dim
//   attn_context      prob qkv -> ctx; attr heads
//   attn_context_dx   dctx prob qkv -> dprob dqkv
//   attn_softmax_dx   dprob prob -> dscore
//   attn_score_dx     dscore qkv dqkv -> dqkv' (computes the q and k columns, copies v from dqkv)
//   gelu              x [bias] [recv_counts] [recv_begin] -> y; bias [n], or [El,n] with
//                     x [El,..,n]; attr rows as in expert_linear
//   gelu_dx           dy x [bias] [recv_counts] -> dx
//   silu_mul          x[..,2n] [recv_counts] [recv_begin] [weight[..,1]] -> y[..,n]; attrs limit,
//                     alpha, offset; attr rows as in expert_linear, with x [El,P,C,2n]
//   silu_mul_dx       dy x [recv_counts] [weight where attr weighted=1] -> dx [dweight]
//   mul               a[..,n] b[..,n] (or [..,1]) [acc] [recv_counts] [recv_begin] -> y[..,n]
//   row_dot           a[..,n] b[..,n] [recv_counts] [recv_begin] -> y[..,1]
//   scale             x [acc] [recv_counts] [recv_begin] -> y = acc + factor x; attr factor
//   sigmoid, relu     x [recv_counts] [recv_begin] -> y
//   sigmoid_dx, relu_dx
//                     dy y [acc] [recv_counts] -> dx, from the value y
//   split_heads       x[..,h*(n+m)] -> first[..,h*n] second[..,h*m]; attrs heads = h, first = n;
//                     attr shared=1: second[..,m], the sum over the heads
//   join_heads        first[..,h*n] second[..,h*m] -> x[..,h*(n+m)]; attr heads = h; attr
//                     shared=1: second[..,m], the same in every head
//   gate_logits       x[B,S,d] wg[E,d] [bias[E]] -> logits[T,E]; its backward is linear_dx,
//                     linear_dw and bias_grad
//   gate              logits ids [used_before[E]] [bias[E]] [all_logits[n*T,E]] -> probs[T,E]
//                     weight[T,K] expert[T,K]
//                     choice_slot[T,K] slot_choice[E,C] counts[E]; attrs gate, k, columns (= K;
//                     default k), capacity, scores, weight, scope, scale, groups, top_groups,
//                     group_score, bias_on = "scores" | "logits", and with all_logits sequences,
//                     all_capacity. counts include used_before. The
//                     bias affects which experts are chosen, not the weights. A token chooses from
//                     its top_groups best of groups (routing/expert_groups.h)
//   gate_dlogits      dweight probs expert -> dlogits; attrs scores, weight, scale
//   count_part        choice_slot[n,K] [used_before[E]] -> used_after[E]: used_before plus the
//                     slots that these n tokens hold; attrs experts, capacity
//   pack_slots        choice_slot counts[E] [begin[E]] -> choice_slot' slot_choice': the numbers of
//                     the slots of packed rows; attrs experts, capacity, stored
//   dispatch          x slot_choice [choice_slot] [counts[E]] [begin[E]] -> slots[E,C,d]; attr
//                     k = K; the backward needs choice_slot, and a part of the batch needs counts
//   dispatch_dx       dslots choice_slot [acc] -> dx; attr seq as in linear_dx
//   all_to_all        to="expert": slots[E,C,d] [counts[E]] [recv_counts[El,P]] [begin[E]]
//                     [recv_begin[El,P]] -> recv[El,P,C,d]
//                     to="source": slots[El,P,C,d] [counts] [recv_counts] ... -> recv[E,C,d]
//                     attr irregular=1: moves only the rows that counts and recv_counts state; the
//                     other rows of recv are zero
//                     hierarchical, where rows of S source ranks are already in one buffer:
//                     to="expert" slots[E,S,C,d] -> recv[El,P*S,C,d]; to="source" with attr
//                     sources=S gives recv[E,S,C,d]; counts and begin are [E,S], recv_counts and
//                     recv_begin are [El,P*S]
//                     attrs rounds = n, round = j: the group is n blocks of P/n neighbours, and
//                     block g sends only to block (g+j) mod n (to="source": back from there),
//                     slots[E/n,C,d] -> recv[El,P/n,C,d]
//                     attrs experts, devices, residents, shadows, weighted, and input 5, placement:
//                     to="expert" slots[E,C,d] -> recv[L,P,C,d] sends the rows of each expert to
//                     the slots that hold it (L slots per device, placement/placement.h);
//                     to="source" is the reverse; recv_counts is the [L,P] of slot_rows; with attr
//                     loose=1, rows that are not in use have undefined values
//                     attr repeated=1: slots are those of a group over etp, [n*El,P,C,d], of which
//                     each member gets a copy of the rows of all others
//   repeat_rows       x[El,P,C,d] [recv_counts[El,P]] -> [n*El,P,C,d]: attr times = n copies, also
//                     of counts; sum_repeats is the sum of the n blocks
//   split_peers       slots[E,C,d] -> n of [E/n,C,d], attr rounds = n; part j holds the slots that
//                     this rank sends in round j, so it depends on the rank's place in its group
//   join_peers        n of [E/n,C,d] -> slots[E,C,d], the inverse
//   exchange_counts   counts[E] -> recv_counts[El,P], or [E,S] -> [El,P*S]; a separate collective,
//                     needed where a transfer is irregular or rows="used"
//   gather_loads      counts[E] -> loads[P,E]; a collective
//   slot_rows         loads placement -> rows[L,P]; with attr of="sent" [X] as in reorder_rows;
//                     with of="in_node" [n*L,P/n] for attr nodes = n: what this rank has between
//                     the two steps
//   copy_experts      placement w[R,..]... -> shadows[S,..]...; R = resident slots; attrs first,
//                     last: which S of the shadow slots; attr expected: copies that a device
//                     receives, for cost models; a collective
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
//   swap_in           placement w[E,..]... -> slots[L,..]...; with attr keep=1 also the previous
//                     placement as input 1, and the slots under it, after the weights
//   expert_linear     x[El,P,C,in] (or [El,C,in] where P = 1) w[El,out,in] [bias[El,out]]
//                     [recv_counts[El,P]] [recv_begin[El,P]] -> y[El,P,C,out] [z, as in linear]
//                     attr rows = "capacity" | "used" (computes only rows below recv_counts; the
//                     others are zero); bias_of = n: of n neighbouring ranks the first adds the
//                     bias, since the results of all are summed
//   expert_linear_dx  dy w [acc] [recv_counts] [sum where attr gelu=1] -> dx, as in linear_dx
//   expert_linear_dw  dy x [acc w] [acc b] [recv_counts] -> dw [db where attr bias=1]
//   combine           slots[E,C,d] [weight] choice_slot [residual] [slot_choice] -> y[B,S,d]; the
//                     backward needs slot_choice
//   combine_dx        dy [weight] slot_choice -> dslots; attr k where weight is absent
//   combine_dweight   dy slots choice_slot -> dweight
//   cross_entropy     logits[T,V] targets -> loss[1] dlogits; attr scale = 1 / global tokens
//   vocabulary_sums   logits[B,S,V/n] targets[B,S] -> sums[B,S,2]; cross_entropy_split  logits
//                     targets sums[B,S,2n] -> loss[1] dlogits; attrs scale, copies = n; a row with
//                     a negative target (split: below -1) has no loss; mtp_loss, mtp_loss_split
//                     the same of MTP layer number attr depth, from 1
//   expert_load       expert[T,K] -> load[E]: choices per expert, dropped ones included. With input
//                     choice_slot[T,K] and attr capacity = C: choices that got a slot; attrs
//                     experts, capacity (1), first=1: count only column 0
//   balance_loss      logits[T,E] load[E] -> loss[1] dlogits; attrs scale, scores; no gradient
//                     flows through the load
//   z_loss            logits[T,E] -> loss[1] dlogits; attr scale
//   balance_bias      bias load; attr rate; overwrites bias
//   all_reduce        g... -> g'...; sums each tensor over the group, in place where allowed
//   reduce_scatter    g... -> slice[n]...; sums each tensor over the group and gives each rank its
//                     slice (slices.h): n = ceil(elements / ranks of the group)
//   all_gather        w...; overwrites in each tensor the other ranks' slices with their values
//   gather_rows       x -> y; attr axis: joins the x of the group's ranks along it; scatter_rows  x
//                     -> y: sums x over the ranks, of which each gets its part along the axis
//                     gather_rows, scatter_rows, attend with attr context = n: parts of sequences
//   own_rows          ids[B,S] -> own[B,S/n], or any x with attr axis; own_rows_dw  dy [acc] -> dx;
//                     attr rows; own_vocabulary  ids -> own; attr vocab; tokens_ahead  ids ->
//                     ids; attrs by, fill: own_part.cpp
//   add_rows          x[..,w's axes] w [residual] -> y; add_rows_dw  dy [acc] -> dw; attr axes
//   sgd               w v g; attrs lr, momentum; overwrites w and v; with attr sliced=1 only this
//                     rank's slice of w, where v and g are slices of the group
//   adamw             w m v g; attrs lr, beta1, beta2, eps, weight_decay, sliced; overwrites w, m
//                     and v
//   add               a b [recv_counts] [recv_begin] -> y
//   round             x (f32) -> y (bf16) of x's shape: an operand that several products read
//   split             x -> parts...; attrs axis, sizes="4,4"
//   concat            parts... -> x; attr axis
//                     split and concat: attr view=1, allowed where all axes before `axis` have
//                     length 1: the parts are inside the whole's storage, and nothing is copied
//   split_rows        counts x -> n tensors in x's storage; attr parts = n: begins a cut along the
//                     rows in use. counts: the first axes of x, such as [E] with x [E,C,d]
//   concat_rows       counts, n parts -> x, in whose storage they are: ends the cut
//   reorder_rows      slots[E,C,d] counts[E] sent[X] [begin[E]] [placement] -> ordered[X,C,d] with
//                     to="expert", the reverse with to="source"; X = slots of all ranks (E without
//                     a placement), by the rank's place in its node, then its node, then the slot;
//                     attrs nodes, per_node, experts, the placement's bounds; moves rows in use
//   join_rows         end[E]... part[E,C,..]... (or [El,P] and [El,P,C,..]) -> whole, of a part's
//                     shape; attr parts = k ends and k parts, all in one storage. In each block,
//                     part p holds the rows from end p-1 to end p. Rows from the last end on become
//                     0 (-1 in index tensors); with attr view=1 they stay, and nothing is done
//   stand_in          x.. parameters.. -> y[B,S,width]: a part that does not exist here (attr
//                     what), simulated only; attrs width, parameters (how many inputs), flops and
//                     bytes per token
//   stand_in_back     dy x.. parameters.. -> dx.., or with attr of_parameters=1 dparameters..
//   send              x ->; receive -> y, or x -> y; sum_copies g... -> sums...: handoff.cpp
//   transpose_blocks  x -> y of the same shape; attrs rows=R, cols=C: block (i, j) of x [R,C,..] is
//                     block (j, i) of y [C,R,..]; R*C must divide the first axis
//
// With attr stored = N, the rows of the op's output are packed (stored_rows.h): only rows in use
// are stored, in at most N rows, and the shape still has all slots. Other ops on rows store their
// output as their input. Counts, also those of received rows, may then have the row ends of several
// parts of the batch, one part after the other.
//
// With attr cut ("p/r", row_cut.h), an op between the two all-to-alls is part p of r along the rows
// in use: it reads and writes only these rows. With attrs rounds = n, round = j, it is round j: the
// rows of sources that send to this rank in round j. Both need the received counts.
//
// With attr share (its share of the batch, in 0..1), a gate, dispatch, all_to_all, combine or an op
// on rows of experts is one part of a batch. Slots and tokens are numbered over the whole batch,
// and rows have the place that they have in the whole batch's buffer. The part begins at token attr
// first_token and at the rows of the begin inputs, ends at the counts, and writes no other row.
//
// With attr store="bf16", an op whose inputs are f32 (embedding, the gate's linear_dx) outputs an
// activation of bf16. Where activations are bf16, these are still f32: parameters, their gradients
// and optimizer states, logits, probs and weights of gates, statistics, and loads.
#pragma once

#include "engine/graph/op_def.h"

namespace moe {

const OpTable& op_table();

/// Returns attr store for an op whose inputs are f32 and that outputs an activation of this type;
/// no attribute unless the type is bf16.
Attrs store_attr(DType dtype);
/// Returns the attributes by which `receive` knows the shape and the type of what it receives.
Attrs like_attrs(const Tensor& tensor);

}  // namespace moe
