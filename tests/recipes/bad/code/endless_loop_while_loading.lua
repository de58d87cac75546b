-- exit: 1
-- says: is still being loaded
local moe = require "moe"
local n = 0
while true do n = n + 1 end
