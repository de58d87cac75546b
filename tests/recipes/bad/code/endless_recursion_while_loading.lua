-- exit: 1
-- says: stack overflow
local moe = require "moe"
local function f() return 1 + f() end
f()
