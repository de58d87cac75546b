-- Eager PyTorch of 2021 with Tutel 0.1's MoE layer and one expert per token: rows are moved by
-- index. Counted in tutel/impls/fast_dispatch.py (extract_critical, GatingEncoder, GatingDecoder);
-- the sorts of batch prioritized routing are left out.
return function(assumed)
  local stack = require "moe.stacks.eager_2021"(assumed)
  stack.doc = "eager_2021 with Tutel's kernels, which move rows by index, in place of masks"
  stack.sources.ops = "as eager_2021, and Tutel 0.1's tutel/impls/fast_dispatch.py"
  local ops = stack.ops
  -- On [tokens, experts], with int64 of two passes: topk, the mask, scores by mask and their sum,
  -- the sums of the loss, places (to int32, cumsum, product, sum), casts.
  ops.gate = { { of = "probs", kernels = 21, moves = 25 } }
  ops.gate_dlogits = { { of = "probs", kernels = 1, moves = 4 } }
  -- Slots are zeroed first, those of the gradient, too.
  ops.dispatch = { { of = "slots", kernels = 1, moves = 1 } }
  ops.combine_dx = { { of = "dslots", kernels = 1, moves = 1 } }
  ops.dispatch_dx = { { of = "acc", kernels = 1, moves = 2 } }
  -- The layer has no dropout behind it.
  ops.combine = { { of = "residual", kernels = 1, moves = 2 } }
  ops.combine_dweight = nil
  return stack
end
