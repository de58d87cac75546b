-- exit: 1
-- says: while loading
local moe = require "moe"
local n = 0
while true do n = n + 1 end
