-- exit: 1
-- line: 6
-- says: unknown cluster 'p4d'
-- says: p4de
local moe = require "moe"
local c = moe.cluster.p4d { nodes = 2 }
return c
