-- Charts, tables and their files: whatever the numbers and names are, nothing is cut off or lies on
-- another text, and the files say what the page says.
local expect = require "expect"
local pages = require "figures/pages"
local test = require "test"
local world = require "world"

local ENTITIES = { amp = "&", lt = "<", gt = ">", quot = '"', ["#39"] = "'" }

local function unescaped(text) return (text:gsub("&(#?%w+);", ENTITIES)) end

-- Random numbers of a seed.
local function random(seed)
  local state = seed
  return function(n)
    state = (state * 16807) % 2147483647
    return n and 1 + state % n or state / 2147483647
  end
end

-- The boxes of the texts of a chart, by the width that letters have at least.
local function boxes(svg)
  local list = {}
  for attributes, text in svg:gmatch "<text([^>]*)>([^<]*)</text>" do
    local function number(key) return tonumber(attributes:match(" " .. key .. '="([%d.-]+)"')) end
    local anchor = attributes:match 'text%-anchor="(%w+)"' or "start"
    local _, marks = unescaped(text):gsub("[\128-\191]", "")
    local width = 5 * (#unescaped(text) - marks)
    local x = number "x" - (anchor == "middle" and width / 2 or anchor == "end" and width or 0)
    if not attributes:find "rotate" and text ~= "" then
      list[#list + 1] = { text = text, x = x, y = number "y" - 8, width = width, height = 8 }
    end
  end
  return list
end

local function apart(a, b)
  return a.x + a.width <= b.x or b.x + b.width <= a.x or a.y + a.height <= b.y
    or b.y + b.height <= a.y
end

-- Texts are in the picture and do not overlap; no coordinate is NaN or infinite.
local function check_chart(chart)
  local svg = require "moe.results.charts.svg"
  local text = tostring(svg.inline(chart))
  pages.check_elements(text)
  assert(not text:find '"[^"]*nan' and not text:find '"[^"]*inf[" ]', chart.title)
  local list = boxes(text)
  for i, a in ipairs(list) do
    assert(a.x >= -1 and a.x + a.width <= chart.width + 1 and a.y >= 0
      and a.y + a.height <= chart.height + 1, ("'%s' is cut off in '%s'"):format(a.text,
      chart.title))
    for j = i + 1, #list do
      assert(apart(a, list[j]), ("'%s' lies on '%s' in '%s'"):format(a.text, list[j].text,
        chart.title))
    end
  end
end

local WORDS = { "raf", "deepspeed", "lancet (max_parts=8)", "a system with a very long name indeed",
  "tutel (degree=4)", "größe", "x" }

-- Series of random lengths, sizes and names.
local function series(r)
  local list, scale = {}, 10 ^ (r(9) - 4)
  for i = 1, r(8) do
    local s = { label = WORDS[r(#WORDS)], number = i, xs = {}, ys = {}, lo = {}, hi = {},
      values = {} }
    for k = 1, r(12) do
      s.xs[k], s.ys[k] = 2 ^ k, scale * r()
      s.lo[k], s.hi[k] = 0.9 * s.ys[k], 1.1 * s.ys[k]
      s.values[k] = s.ys[k]
    end
    list[i] = s
  end
  return list
end

test("lines, steps and distributions hold their texts, whatever the numbers", function()
  world.run ""
  local lines = require "moe.results.charts.lines"
  for seed = 1, 60 do
    local r = random(seed)
    local t = { name = "n", title = ("A title of chart %d that is so long that it needs two lines, "
      .. "over all"):format(seed), x_label = "GPUs", y_label = "time, ms" }
    for _, kind in ipairs { "lines", "steps", "distribution" } do
      local copy = { series = series(r) }
      for key, value in pairs(t) do copy[key] = value end
      check_chart(lines[kind](copy))
    end
  end
end)

test("bars and fronts hold their texts", function()
  world.run ""
  local bars = require "moe.results.charts.bars"
  local front = require "moe.results.charts.front"
  for seed = 1, 40 do
    local r = random(seed)
    local list, seen = {}, {}
    for i = 1, r(20) do
      seen[i] = { iteration_ms = 100 * r(), peak_bytes = 2 ^ 30 * r(50), label = "mix" }
      list[i] = { bound = r(2) == 1 and r() or nil, bars = { bars.step(WORDS[r(#WORDS)],
        { iteration_ms = 1, compute_ms = r(), comm_ms = r(), hidden_comm_ms = r(),
          exposed_comm_ms = r(), wait_ms = 9 * r() },
        { provenance = "simulated", samples = { r(), r() } }) } }
    end
    check_chart(bars.steps("b", "Bars", list))
    table.sort(seen, function(a, b) return a.iteration_ms < b.iteration_ms end)
    local chart = front.front { name = "f", title = "Front", seen = seen, best = seen[1],
      front = seen }
    check_chart(chart)
    local text = tostring(require("moe.results.charts.svg").inline(chart))
    expect.equal(pages.count(text, 'class="seen"'), #seen + 1, "mixes and the legend")
  end
end)

test("a bar ends at the step's time, however long transfers wait, and shares are of the step",
  function()
    world.run ""
    local bars = require "moe.results.charts.bars"
    local function times(compute, comm, exposed, hidden, wait)
      return { iteration_ms = 1425, compute_ms = compute, comm_ms = comm,
        exposed_comm_ms = exposed, hidden_comm_ms = hidden, wait_ms = wait }
    end
    for _, case in ipairs {
      -- Times, and the parts: compute alone, hiding, exposed, waiting, idle.
      { times(555, 1200, 870, 330, 4135), 225, 330, 870, 0, 0 },
      { times(555, 700, 870, 330, 4135), 225, 330, 370, 500, 0 },
      { times(1425, 800, 0, 800, 9000), 625, 800, 0, 0, 0 },
      { times(600, 600, 500, 100, 0), 500, 100, 500, 0, 325 },
      { times(1000, 700, 600, 100, 50), 900, 100, 425, 0, 0 },  -- medians of different steps
    } do
      local run = table.remove(case, 1)
      expect.equal(bars.step("x", run, {}).parts, case)
      local chart = tostring(require("moe.results.charts.svg").inline(bars.shares("s", "S",
        { { label = "x", runs = { run, run } } })))
      pages.has(chart, (">%.0f%%<"):format(100 * (case[3] + case[4]) / 1425))
    end
  end)

-- The cells of a line of CSV.
local function csv_cells(line)
  local cells, rest = {}, line .. ","
  while rest ~= "" do
    local quoted, after = rest:match '^"(.-)",(.*)$'
    while quoted and select(2, quoted:gsub('"', "")) % 2 == 1 do
      local more, then_rest = after:match '^(.-)",(.*)$'
      quoted, after = quoted .. '",' .. more, then_rest
    end
    if quoted then
      cells[#cells + 1], rest = quoted:gsub('""', '"'), after
    else
      cells[#cells + 1], rest = rest:match "^([^,]*),(.*)$"
    end
  end
  return cells
end

test("a table as CSV has every cell, and names its point in every row", function()
  world.run ""
  local tables = require "moe.results.tables"
  local t = { title = "T", keys = 1, rows = { { "gpu", "system", "ms" }, { "p4de", "a, b", "1.5" },
    { "", 'say "x"', "" }, {}, { "p3dn", "c", "OOM" } } }
  local lines = {}
  for line in tables.csv(t):gmatch "[^\n]+" do lines[#lines + 1] = csv_cells(line) end
  expect.equal(lines, { { "gpu", "system", "ms" }, { "p4de", "a, b", "1.5" },
    { "p4de", 'say "x"', "" }, { "p3dn", "c", "OOM" } })
end)

test("numbers of a frame are the same doubles in its CSV", function()
  world.run ""
  local tables, r, frame = require "moe.results.tables", random(5), { columns = { "x" }, rows = {} }
  for i = 1, 200 do frame.rows[i] = { (r() - 0.5) * 10 ^ (r(600) - 300) } end
  frame.rows[201], frame.rows[202] = { 2 ^ -1074 }, { 0.1 }
  local i = 0
  for cell in tables.csv_of_frame(frame):gmatch "\n([^\n]+)" do
    i = i + 1
    expect.equal(tonumber(cell), frame.rows[i][1])
  end
  expect.equal(i, 202)
end)

test("a table as LaTeX has a cell per column, and escapes what LaTeX reads", function()
  world.run ""
  local tables = require "moe.results.tables"
  local latex = tables.latex { title = "50% & more", rows = { { "name", "ms" },
    { [[a_b{c}$#%&~^\<>|]], "1.5" }, {}, { "d", "2" } } }
  pages.has(latex, "\\begin{tabular}{lr}", "\\toprule", "\\bottomrule",
    [[a\_b\{c\}\$\#\%\&\textasciitilde{}\textasciicircum{}\textbackslash{}$<$$>$$|$ & 1.5 \\]])
  expect.equal(pages.count(latex, " \\\\\n"), 3)
  expect.equal(pages.count(latex, "\\midrule"), 2)
end)

test("an export has each chart and table of the page, named as there", function()
  local files = pages.folder()
  local page, out = assert(pages.page_of(files)), pages.export_of(files)
  local num = 0
  for kind, name in page:gmatch ' class="(%l+)" data%-name="([^"]+)"' do
    for _, ending in ipairs(kind == "table" and { ".csv", ".tex" } or { ".svg" }) do
      assert(out[name .. ending], "no file " .. name .. ending)
      out[name .. ending], num = nil, num + 1
    end
  end
  assert(num > 10, "few figures: " .. num)
  out["x-runs.csv"] = nil  -- numbers, which the page has rounded
  expect.equal(next(out) or "", "", "a file that the page does not have")
end)

test("an exported figure says the bytes of its numbers", function()
  for name, text in pairs(pages.export_of(pages.folder())) do
    if not name:find "%.csv$" then
      pages.has(text, name:find "%.tex$" and "\n% Numbers: megatron" or "<desc>Numbers: megatron")
    end
  end
end)

test("an exported chart stands alone: it has its size, its rules and no variable", function()
  for name, text in pairs(pages.export_of(pages.folder())) do
    if name:find "%.svg$" then
      pages.check_elements((text:gsub("^<%?xml.-%?>\n", "")))
      pages.has(text, 'xmlns="http://www.w3.org/2000/svg"', 'pt"', ".compute { fill: #3b6ea5; }",
        'id="hatch"')
      assert(not text:find "var%(", name .. " has a variable")
    end
  end
end)

local function run(system, ms, bytes, choice)
  return { system = system, iteration_ms = ms, compute_ms = ms - 3, exposed_comm_ms = 2,
    comm_ms = 2, hidden_comm_ms = 1, wait_ms = 40, peak_bytes = bytes, choice = choice,
    imbalance = 1.25 }
end

local SEARCH = { name = "find it", objective = { "iteration_ms", "peak_bytes" }, simulated = 7,
  space = 9, exhaustive = false,
  best = run("mix", 10, 2 ^ 33), excluded = 1, took_s = 3,
  searched_s = 1, not_allowed = 4, too_large = 5, no_rows = 3, model = "m",
  cluster = "c", devices = 8,
  memory_bytes = 40 * 2 ^ 30, steps = 8, cached = 4, beyond = "packing",
  policies = { { policy = "mine n=2", n = 3, refused = 1, best_ms = 11, techniques = "mine n=2" },
    { policy = "yours", n = 0, refused = 0 } },
  bound_ms = 8, least_bound_ms = 7,
  plain = run("plain", 25, 2 ^ 31),
  top = { run("mix", 10, 2 ^ 33, "dw_schedule") },
  named = { run("lancet", 9, 2 ^ 33), run("raf_rows", 15, 2 ^ 31) },
  order = { { second = "plain", holds = true, changes = {} } },
  refused = { { techniques = "zero", why = "no room", n = 2 } },
  front = { run("small", 20, 2 ^ 31),
    run("mix", 10, 2 ^ 33) },
  seen = { { iteration_ms = 30, peak_bytes = 2 ^ 32, label = "<worst>" },
    { iteration_ms = 20, peak_bytes = 2 ^ 31, label = "small" } },
  contributions = { { technique = "dw_schedule", without_ms = 12, best_ms = 10 },
    { technique = "used_rows", best_ms = 10, why = "no rows" },
    { technique = "recompute", without_ms = 9, best_ms = 10, oom = true } } }

test("a search that took longer than its budget says so and why", function()
  local tables = require "moe.search.tables"
  local function seen(budget_s)
    return tables.seen(setmetatable({ budget_s = budget_s, searched_s = 9, took_s = 9 },
      { __index = SEARCH }))
  end
  assert(seen(5):find("in 9 s (budget_s: 5; a simulation that has begun ends)", 1, true), seen(5))
  assert(not seen(9):find("budget", 1, true) and not seen(nil):find("budget", 1, true))
end)

test("a search is drawn with its front, and says how much of the space was seen", function()
  local files = pages.folder()
  local data = world.decode(files["old/results.json"])
  data.searches = { SEARCH }
  files["old/results.json"] = world.encode(data)
  local page = assert(pages.page_of(files))
  pages.check_elements(page)
  pages.has(page, "Search: find it", "Objective: iteration_ms, peak_bytes",
    "find it: m on c, 8 devices of 40.0 GiB; simulated, mean of 8 steps",
    "7 of 9 mixes planned, 2 of them refused, and 2 known systems in 1 s, then 2 s for "
      .. "contributions and order; 4 simulations were in the cache; 5 of the mixes do not fit in "
      .. "memory, 3 of them since a device gets more rows than model.rows_bound allows; 4 are "
      .. "not allowed, 1 left out because of bounds and earlier refusals", ">2.50x<", ">refused<",
    "Without used_rows the best mix is refused: no rows", "Where the time goes",
    "mine n=2: in 3 mixes, 1 of them refused; the fastest takes 11.0 ms, 10.0% more than the best "
      .. "mix: mine n=2", "yours: in none of the mixes that were tried",
    "known system: no padding, no overlap", ">1.25<",
    "Refused, 2 mixes, such as zero: no room",
    "The known system lancet is faster than the best mix. No mix here has packing.",
    ">of it waiting<",
    "&lt;worst&gt;: 30 ms, 4 GiB",
    "+20.0%", ">dw_schedule<")
  local out = pages.export_of(files)
  expect.equal(out["find-it-front.csv"], "number,iteration ms,peak GiB,mix or known system\n"
    .. "1,10.0,8.0,mix\n2,20.0,2.0,small\n")
  assert(out["find-it-front.svg"] and out["find-it-contributions.svg"])
  data.searches[1].front[1].peak_bytes = "much"
  files["old/results.json"] = world.encode(data)
  local _, err = pages.page_of(files)
  pages.has(err.message, "searches[1].front[1].peak_bytes: is a string")
end)

-- Titles by name of the charts of a sweep over points { GPUs, batch }; system b does not fit at
-- points of `out`.
local function titles_of(points, out)
  world.run ""
  local runs, groups, titles = {}, {}, {}
  for i, p in ipairs(points) do
    groups[i] = {}
    for k, system in ipairs { "a", "b" } do
      local one = { system = system, devices = p[1], point = { batch = p[2] }, iteration_ms = 3 - k,
        compute_ms = 1, comm_ms = 1, exposed_comm_ms = 1, hidden_comm_ms = 0, peak_bytes = 1,
        oom = k == 2 and out[i] or nil }
      groups[i][k], runs[#runs + 1] = one, one
    end
  end
  local R = require("moe.results.results").new(runs)
  local made = require("moe.results.charts.sweep").charts(groups, R, function() return "t" end)
  for _, chart in ipairs(made.overview) do titles[chart.name] = chart.title end
  return titles
end

test("a chart says in what its points differ beside the axis, and where systems are left out",
  function()
    local line, grid = { { 8, 1 }, { 16, 1 }, { 32, 2 } }, {}
    for i = 0, 8 do grid[i + 1] = { 8 * 2 ^ (i % 3), 1 + (i - i % 3) / 3 } end
    local some = "; not every system at every point"
    for _, case in ipairs {
      { { { 8, 1 }, { 16, 1 }, { 32, 1 } }, {}, "", "" },
      { line, {}, "; points differ in batch", ", sums over batch" },
      { line, { true }, "; points differ in batch" .. some, ", sums over batch" .. some },
      { grid, {}, ": median and range over batch", ", sums over batch" },
      { grid, { [5] = true }, ": median and range over batch" .. some,
        ", sums over batch" .. some } } do
      local titles = titles_of(case[1], case[2])
      expect.equal(titles["speedup-by-GPUs"], "Speed-up over a by GPUs" .. case[3])
      expect.equal(titles["shares-by-GPUs"], "Shares of the step by system and GPUs" .. case[4])
    end
  end)

test("a sweep over two axes has lines for each and a chart per further coordinate",
  function()
    local files = pages.folder(nil, pages.RECIPE:gsub("over = { nodes = { 2, 4 } }",
      'over = { nodes = { 2, 4, 8 }, hidden = { 32, 64, 128 }, kind = { "a", "b" } }'):gsub(
      "model = m", "model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = p.hidden, "
      .. "heads = p.kind == 'a' and 4 or 8, seq = 16, batch_per_device = 2, "
      .. "experts_per_device = 2 }"))
    local out = pages.export_of(files)
    for _, name in ipairs { "speedup-by-gpus", "speedup-by-hidden", "step-by-gpus",
      "memory-by-gpus", "step-1", "step-6", "speedup-distribution", "shares", "shares-by-gpus" } do
      assert(out["x-" .. name .. ".svg"], "no chart " .. name)
    end
    assert(not out["x-step-7.svg"] and not out["x-speedup-by-kind.svg"])
  end)
