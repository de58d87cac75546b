-- exit: 1
-- line: 8
-- says: system 'baseline'.of[2]: unknown system 'tutle'
-- says: Did you mean 'tutel'?
local moe = require "moe"
local best = moe.system "baseline" {
  -- the best of these
  of = { "raf", "tutle" },
}
return best
