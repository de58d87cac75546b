-- exit: 1
-- says: io
local moe = require "moe"
io.open("/etc/passwd")
