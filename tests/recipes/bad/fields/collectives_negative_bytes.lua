-- exit: 1
-- line: 8
-- says: moe.collectives.ops[2].bytes: -4 is not allowed; give a number from 0 to 1e+18
local moe = require "moe"
moe.collectives {
  cluster = moe.cluster.p4de { nodes = 2 },
  ops = { { kind = "all_to_all", bytes_per_pair = 1 },
    { kind = "all_reduce", bytes = -4 } },
}
