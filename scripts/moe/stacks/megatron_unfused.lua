-- Megatron-LM without fused permutation (moe_permute_fusion false): permute() and unpermute() of
-- megatron/core/transformer/moe/moe_utils.py, with the kernels of PyTorch 2 (aten/src/ATen/native).
-- Chunks of rows are sorted by split and cat, which move as many bytes as the fused kernel. The
-- host's time for their views is not counted.
return function(assumed)
  local stack = require "moe.stacks.megatron"(assumed)
  stack.doc = "megatron without fused permutation"
  local ops = stack.ops
  -- The map and the probabilities are transposed, token numbers and probabilities taken by
  -- masked_select, which counts, selects and writes indices (6 kernels), and for which the host
  -- waits to learn how many there are (nonzero). Backward zeros, a copy, a sum of the mask in
  -- int64, and the copy transposed.
  ops.gate = { { of = "probs", kernels = 16 + 15, moves = 12 + 3.5 } }
  ops.gate_dlogits = { { of = "probs", kernels = 8 + 6, moves = 8 + 10.75 } }
  stack.waits = { "exchange_counts", "gate" }
  -- Rows are added to zeros by atomics (scatter_add_, and index_add_ in the backward of
  -- index_select), which read and write the sum once per row. Behind the backward's exchange rows
  -- are sorted, too.
  ops.combine[1] = { of = "slots", kernels = 3, moves = 2 + 2 }
  table.insert(ops.dispatch_dx, { of = "dslots", kernels = 2, moves = 2 + 2 })
  return stack
end
