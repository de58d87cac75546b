-- exit: 1
-- line: 7
-- says: .why: was assigned after the assumed was made, so its value is not checked
local moe = require "moe"
local a = moe.assumed { value = 1, lo = 1, hi = 2, why = "a guess" }
a.why = "\255"
moe.cluster.p4de { nodes = 2, a2a_base_us = a }
