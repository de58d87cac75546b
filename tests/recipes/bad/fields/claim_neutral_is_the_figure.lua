-- exit: 1
-- line: 7
-- says: moe.claim.neutral: 1.17 is the paper's number itself
local moe = require "moe"
local c = moe.claim {
  id = "lancet-034",
  neutral = 1.17,
  value = function() end,
}
return c
