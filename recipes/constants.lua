-- With which constants are the four papers' recipes simulated, and where does each come from? First
-- those that no paper, artifact or data sheet gives, with the band in which they are assumed to be,
-- or the text that sets them; then the values that are stated, as they are taken. A source "none"
-- says how a value was chosen, "fitted" to which figure, or in sight of what. Nothing is simulated.
local moe = require "moe"

local assumed = { { "recipe", "file", "constant", "value", "band", "what it is", "source" } }
local stated = { { "recipe", "file", "source", "values" } }
local num, known = { none = 0, fitted = 0 }, {}
for _, paper in ipairs { "lancet", "lina", "pipemoe", "proprophet" } do
  for _, c in ipairs(moe.constants(paper)) do
    local key = table.concat({ paper, c.name, c.value, c.source }, "|")
    local kind, rows = c.source:match "^(%l+):", stated
    local row = { paper, c.file, c.source, c.name .. ": " .. c.value }
    if c.why or num[kind] then
      rows = assumed
      row = { paper, c.file, c.name, c.value, c.lo and ("%g..%g"):format(c.lo, c.hi) or "-",
        c.why or "", c.source }
    end
    if known[key] then  -- the same in another file
      known[key][2] = known[key][2] .. ", " .. c.file:match "[^/]*$"
    else
      known[key], rows[#rows + 1] = row, row
      if num[kind] then num[kind] = num[kind] + 1 end
    end
  end
end
print "Constants that no paper, artifact or data sheet gives"
print(moe.table(assumed))
print "\nValues that are stated"
print(moe.table(stated))
print(("\n%d constants are fitted or were chosen in sight of a figure, %d have no source, %d come "
  .. "from elsewhere; %d rows of values are stated"):format(num.fitted, num.none,
  #assumed - 1 - num.fitted - num.none, #stated - 1))
