-- exit: 1
-- line: 7
-- says: moe.claim.neutral: 1.17 is equal to the paper's number
local moe = require "moe"
local c = moe.claim {
  id = "lancet-034",
  neutral = 1.17,
  value = function() end,
}
return c
