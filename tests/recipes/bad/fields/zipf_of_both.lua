-- exit: 1
-- line: 5
-- says: moe.workload.zipf.s: has no effect beside max_over_mean
local moe = require "moe"
moe.workload "zipf" { s = 0.1, max_over_mean = 3 }
