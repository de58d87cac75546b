-- A number in its band beside the paper's number, drawn in a cell of a table.
local html = require "moe.results.page.html"
local svg = require "moe.results.charts.svg"

local M = {}

local num = svg.num

--- Returns a drawing of our number in its band [t.lo, t.hi] and of the paper's number; `range`: the
--- ends { from, to } of the axis.
function M.band(t, range)
  local function x_of(v) return 8 + (v - range[1]) / (range[2] - range[1]) * 184 end
  local out, paper = { svg.line(0, 12, 200, 12, "rule") }, x_of(t.paper)
  if t.lo and t.lo < t.hi then
    out[#out + 1] = svg.line(x_of(t.lo), 12, x_of(t.hi), 12, "error")
    for _, v in ipairs { t.lo, t.hi } do
      out[#out + 1] = svg.line(x_of(v), 6, x_of(v), 18, "error")
    end
  end
  out[#out + 1] = html.path { d = ("M%s 5l6 7l-6 7l-6 -7z"):format(num(paper)), class = "paper",
    html.title { ("paper %g"):format(t.paper) } }
  if t.ours then
    out[#out + 1] = html.circle { cx = num(x_of(t.ours)), cy = 12, r = 4, class = "ours",
      html.title { ("ours %.3g"):format(t.ours) } }
  end
  return html.svg { viewBox = "0 0 200 24", class = "band", role = "img",
    ["aria-label"] = ("paper %g, ours %s"):format(t.paper,
      t.ours and ("%.3g in %.3g to %.3g"):format(t.ours, t.lo, t.hi) or "none"), out }
end

M.LEGEND = {
  { mark = html.path { d = "M11 0l6 6l-6 6l-6 -6z", class = "paper" }, doc = "the paper's number" },
  { mark = html.circle { cx = 11, cy = 6, r = 4, class = "ours" }, doc = "ours" },
  { mark = { svg.line(1, 6, 21, 6, "error"), svg.line(1, 1, 1, 11, "error"),
    svg.line(21, 1, 21, 11, "error") }, doc = "ours over the bands of the assumed constants" },
}

return M
