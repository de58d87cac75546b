-- exit: 1
-- says: unknown workload 'a table'
local moe = require "moe"
moe.workload {}
