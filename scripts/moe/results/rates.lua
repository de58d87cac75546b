-- Rates of a training step as people report them.
local model_lib = require "moe.spec.model"

local M = {}

--- Fields of a run and of a simulation: { name, type, doc } each.
M.ROWS = {
  { "tokens_per_s", "number?", "tokens that a device trains on per second" },
  { "model_tflops", "number?", "model TFLOP/s of a device: tokens_per_s times 3 times the "
    .. "operations of the forward per token (m:flops: causal attention counts once, and nothing "
    .. "that is recomputed)" },
  { "mfu", "number?", "model_tflops over the dense peak in the device's data sheet, where the "
    .. "cluster gives one, of the type in which the model's linears and experts multiply: fp8 or "
    .. "that of its activations" },
}

local flops = setmetatable({}, { __mode = "k" })  -- model -> its forward's operations per token

--- Returns the rates of a step of `ms`. spec: the plan's specification; cluster: as moe.cluster
--- makes it, or nil.
function M.of(model, spec, cluster, ms)
  if ms <= 0 then return {} end
  local m = spec.model
  if flops[model] == nil then
    local counted, counts = pcall(model_lib.counts, model)
    flops[model] = counted and counts.flops_per_token  -- an architecture of the recipe may refuse
  end
  local tokens = m.batch_per_device * m.micro_batches * m.seq / m.pp / (m.tp * m.cp) / ms * 1e3
  local peak = cluster and cluster.peak_gemm
  local narrow = (m.dtypes.products or "plain") ~= "plain"
  if type(peak) == "table" then peak = peak[narrow and "fp8" or m.dtype] end
  if not flops[model] then return { tokens_per_s = tokens } end
  local tflops = 3 * tokens * flops[model] / 1e12
  return { tokens_per_s = tokens, model_tflops = tflops, mfu = peak and tflops * 1e12 / peak }
end

return M
