-- exit: 1
-- line: 5
-- says: scope
local moe = require "moe"
local g = moe.policy.gate { name = "x", route = function() end }
return g
