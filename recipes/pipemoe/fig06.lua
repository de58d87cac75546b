-- Figure 6 of PipeMoE: the straight lines for the times of GEMMs and all-to-alls. First the
-- published lines with the rates that they imply for the paper's machines (the measured points are
-- not in the paper); then the same two lines fitted to ops measured on this machine, with the
-- errors of the fits.
local moe = require "moe"

local GPUS_PER_NODE, NIC_GBIT = 4, 100

print "Published: an all-to-all of y bytes per GPU"
local rows = { { "GPUs", "alpha_a s", "alpha_a/(P-1)", "beta_a s/byte", "1 MiB ms", "10 MiB ms",
  "100 MiB ms", "Gb/s of a NIC" } }
local function line_row(gpus, reading)
  local l = moe.pipemoe.layers { devices = gpus, alpha_a_16 = reading }[1]
  local function ms(mib) return 1e3 * (l.alpha_a + l.beta_a * mib * 2 ^ 20) end
  -- A share (P - 4) / P of the bytes of a node's four GPUs leaves the node.
  local rate = GPUS_PER_NODE * (gpus - GPUS_PER_NODE) / gpus / l.beta_a * 8 / 1e9
  rows[#rows + 1] = { reading == "printed" and gpus .. " as printed" or gpus, l.alpha_a,
    l.alpha_a / (gpus - 1), l.beta_a, ms(1), ms(10), ms(100),
    ("%.0f of %d"):format(rate, NIC_GBIT) }
end
line_row(16, "printed")
for _, gpus in ipairs { 16, 32, 64 } do line_row(gpus, "likely") end
print(moe.table(rows, { "", "%.3g", "%.3g", "%.3g", "%.2f", "%.2f", "%.2f" }))

local l = moe.pipemoe.layers { devices = 16 }[1]
print(("\nPublished: a GEMM of x multiply-adds takes %.3g s + %.3g s * x: %.1f TFLOP/s at most,")
  :format(l.alpha_gemm, l.beta_gemm, 2e-12 / l.beta_gemm))
print(("half of that at %.2g multiply-adds. alpha_e = 2 alpha_gemm = %.3g s"):format(
  l.alpha_gemm / l.beta_gemm, 2 * l.alpha_gemm))

print "\nMeasured here: an MoE layer's all-to-all, experts, their backward, in chunks, on 2 ranks;"
print "f32, batch 8 per device, capacity factor 1; routing: gate random."
print "With a link, the wire's time is the link model's (emulated)"
local fits = { { "hidden", "ffn", "link", "line", "alpha s", "beta s", "of", "error median",
  "worst" } }
for _, case in ipairs { { 128, 512 }, { 256, 1024 },
  { 256, 1024, { bytes_per_s = 1e8, latency_us = 200 } } } do
  local hidden, ffn, link = unpack(case)
  local fit = moe.pipemoe.fit { ranks = 2, link = link, objective = "step",
    model = moe.model.gpt2_moe { vocab = 256, layers = 1, moe_every = 1, hidden = hidden,
      heads = 4, ffn = ffn, seq = 64, batch_per_device = 8, experts = 2, gate = "random",
      capacity_factor = 1 } }
  local lines = fit.lines
  for i, line in ipairs { { "all-to-all", lines.alpha_a, lines.beta_a, "a byte", "transfer" },
    { "experts", lines.alpha_e, lines.beta_e, "a multiply-add", "experts" },
    { "backward", lines.alpha_b, lines.beta_b, "a multiply-add", "backward" } } do
    local error = fit.error[line[5]]
    fits[#fits + 1] = { i == 1 and hidden or "", i == 1 and ffn or "",
      i == 1 and (link and "100 MB/s, 0.2 ms" or "none") or "", line[1], line[2], line[3], line[4],
      100 * error.median, 100 * error.worst }
  end
end
print(moe.table(fits, { "", "", "", "", "%.2e", "%.2e", "", "%.1f%%", "%.1f%%" }))
