-- This project's own executor on GPUs: the launches of kernels/cuda, in a recorded graph
-- (kernels/cuda/README.md: options of a run, edits of the graph).
return function(assumed)
  return {
    doc = "this project's kernels on a GPU, in recorded graphs",
    host_launch_us = assumed { value = 3.1, lo = 2.9, hi = 3.4,
      why = "host time of a launch on a machine with an H200",
      source = "tests/bench/results/gpu-2026-11-27-h200.json, 'launch host'" },
    host_op_us = 0,
    graphs = "layer",
    ops = {
      -- routing.cu: choices and places after the scores.
      gate = { { of = "probs", kernels = 2, moves = 0 } },
      -- layernorm.cu: sums of columns in parts, then their totals.
      rmsnorm_dw = { { of = "dgamma", kernels = 1, moves = 0 } },
      layernorm_dw = { { of = "dgamma", kernels = 1, moves = 0 } },
      bias_grad = { { of = "db", kernels = 1, moves = 0 } },
      -- attention_dx.cu: the sums of rows, the gradient of queries, those of keys and values.
      attend_dx = { { of = "ctx", kernels = 2, moves = 0 } },
      -- loss.cu: the total of the blocks' sums.
      cross_entropy = { { of = "logits", kernels = 1, moves = 0 } },
    },
  }
end
