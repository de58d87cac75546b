-- exit: 1
-- line: 8
-- says: moe.op_time.dtype: 'tf32' has no rate on device (custom), whose one rate is taken for f16,
-- says: give a type that it has or, as gemm_flops_per_s = { tf32 = ... }, the device a rate of it
local moe = require "moe"
local c = moe.cluster.custom { nodes = 1, devices_per_node = 1,
  device = { gemm_flops_per_s = 1e14, memory_bytes_per_s = 1e12 } }
moe.op_time { cluster = c, op = "gemm", m = 8, n = 8, k = 8, dtype = "tf32" }
