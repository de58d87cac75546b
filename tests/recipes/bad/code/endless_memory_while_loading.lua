-- exit: 1
-- says: memory
local moe = require "moe"
local t, s = {}, "x"
while true do s = s .. s t[#t + 1] = s end
