-- Exercise 3. How much of the backward's all-to-alls can weight gradients hide?
-- build/release/moebench run recipes/course/03_weight_gradients.lua --set guess=50  (a second)
local moe = require "moe"
local ask = require "ask"
local set = ask.settings { nodes = { 2, 1, 4, 8 }, hidden = { 768, 2048 } }
local plan = ask.gpt2(set.nodes, moe.system "lancet_dw" {}, { hidden = set.hidden })
local o, forward_ms, a2a, dw, dw_ms = plan:overlap(), plan:simulate().forward_ms, {}, {}, 0
for _, op in ipairs(plan:spans()) do
  op.ms = op.end_ms - op.begin_ms
  if op.kind == "all_to_all" and op.begin_ms >= forward_ms then a2a[#a2a + 1] = op end
  if op.op:find "%.dw$" then dw[#dw + 1], dw_ms = op, dw_ms + op.ms end
end
if not ask.guess(ask.words .. ([[
Only rows of tokens travel. A weight's gradient is needed by the optimizer alone: it can run under
any all-to-all that comes later in the backward. The %d weight gradients (head.dw is the output
layer's, vocabulary 50,257) take %.1f ms, the %d all-to-alls of the backward %.1f. How much of these
is hidden?]]):format(#dw, dw_ms, #a2a, o.a2a_ms), "% of the backward's all-to-alls") then return end

local hidden, over, longest = 0, 0, dw[1]
for _, w in ipairs(dw) do
  local own = 0
  for _, a in ipairs(a2a) do
    own = own + math.max(0, math.min(a.end_ms, w.end_ms) - math.max(a.begin_ms, w.begin_ms))
  end
  hidden, over = hidden + own, over + (own > 0 and w.ms - own or 0)
  longest = w.ms > longest.ms and w or longest
end
local others = -hidden  -- ms hidden under other compute
for _, c in ipairs(plan:explain().collectives) do
  for _, a in ipairs(a2a) do others = others + (a.op == c.op and c.hidden_ms or 0) end
end
ask.answer(100 * (hidden + others) / o.a2a_ms, ([[
%d gradients, of %.1f ms, have an all-to-all behind them; the other %d, of the embedding and the
lowest blocks, come too late. So %.0f%% is the most. Lancet gives each all-to-all in turn the
gradients whose time is nearest to what is open of it: %.1f ms hide, %.1f ms outlast their
all-to-all, and %.1f ms find none open; %.1f ms hide under other compute. The longest gradient, %s,
takes %.2f ms, and an all-to-all %.2f ms.]]):format(o.num_dw, o.dw_ms, #dw - o.num_dw,
  100 * o.bound_ms / o.a2a_ms, hidden, over, math.max(0, o.dw_ms - hidden - over), others,
  longest.op, longest.ms, o.a2a_ms / #a2a), {},
  { "nodes=8: what is short now, gradients or all-to-alls?", "nodes=1: and now?" })
