-- exit: 1
-- line: 12
-- says: moe.collectives.ops[1].bytes[2]: has 1 numbers; give 2, one per device of the cluster
local moe = require "moe"
moe.collectives {
  cluster = moe.cluster.custom { nodes = 2, devices_per_node = 1, nic = { bytes_per_s = 1e9 } },
  ops = {
    {
      kind = "all_to_all",
      bytes = {
        { 0, 1 },
        { 1 },
      },
    },
  },
}
