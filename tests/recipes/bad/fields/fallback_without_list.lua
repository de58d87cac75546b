-- exit: 1
-- line: 6
-- says: moe.fallback: give one option a list of values
local moe = require "moe"
local p = moe.pass.capacity_pipeline
local f = moe.fallback(p, { degree = 8 })
return f
