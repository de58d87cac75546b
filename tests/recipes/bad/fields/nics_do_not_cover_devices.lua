-- exit: 1
-- says: cluster.nics_per_node = 3: must divide devices_per_node = 8 or be a multiple of it
local moe = require "moe"
moe.collectives {
  cluster = moe.cluster.p4de { nodes = 2, nics_per_node = 3 },
  ops = { { kind = "all_to_all", bytes_per_pair = 1 } },
}
