-- Megatron-LM with its router fused (moe_router_fusion; Transformer Engine's pytorch/router.py and
-- common/fused_router): one kernel for scores and the choice, which is the gate's own, one for the
-- scores of the balance loss, one for the loss, and as many backward. The rest is as in `megatron`,
-- whose permutation is fused, too.
return function(assumed)
  local stack = require "moe.stacks.megatron"(assumed)
  stack.doc = "megatron with the router's kernels fused by Transformer Engine"
  -- Logits are read, scores and map written for the loss; both are read for it. The map is summed
  -- into counts of tokens per expert (moe/token_dispatcher.py).
  stack.ops.gate = { { of = "probs", kernels = 3, moves = 5 } }
  stack.ops.gate_dlogits = { { of = "probs", kernels = 2, moves = 4 } }
  stack.host_us.gate, stack.host_us.gate_dlogits = nil, nil  -- by these kernels
  return stack
end
