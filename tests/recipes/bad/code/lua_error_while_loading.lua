-- exit: 1
-- line: 6
-- says: attempt to index
local moe = require "moe"
local t
local x = t.field
return x
