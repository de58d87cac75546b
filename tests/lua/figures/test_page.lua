-- The page that `moebench report` makes of result folders.
local expect = require "expect"
local pages = require "figures/pages"
local test = require "test"
local world = require "world"

local folder, page_of, has, count = pages.folder, pages.page_of, pages.has, pages.count
local check_elements, RECIPE, TRACE = pages.check_elements, pages.RECIPE, pages.TRACE

test("the page has the numbers, the claim and where they are from", function()
  local page = assert(page_of(folder()))
  has(page, "recipe.lua, hash 00", "2025-01-31T12:00:00Z", ">none, ", "1.25x", "+10.0%",
    "Median prediction error over 3 runs: 10.0%", "880..880", "lancet-034", "not comparable",
    "predicted (simulated) above, executed (measured)", "4.9000", ">raf = deepspeed = lancet_dw<",
    "<p>Numbers: megatron_bf16, 2 bytes per parameter",
    "<p>Numbers: dtype f32, 4 bytes per parameter")
  for _, word in ipairs { "simulated", "emulated", "measured" } do
    has(page, ('<span class="badge %s">%s</span>'):format(word, word))
  end
end)

test("what comes from a recipe is text, and the page loads nothing", function()
  local page = assert(page_of(folder()))
  has(page, "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp; &#39;it&#39; http://else",
    "a &lt;gate&gt; of its own")
  expect.equal(count(page, "<script"), 1)
  for _, part in ipairs { " src=", "url(h", "@import", "<link", "fetch(", 'href="h' } do
    expect.equal(count(page, part), 0, part)
  end
  has(page, "default-src &#39;none&#39;")
end)

test("elements are closed in order, also of several folders", function()
  local files = folder()
  check_elements(assert(page_of(files)))
  local both = assert(page_of(files, { "old", "old" }))
  check_elements(both)
  expect.equal(count(both, "<section>"), 2)
  has(both, 'href="#folder2-1"', 'id="folder2-1"')
end)

test("long tables are folded, and lines over an axis take the place of bars for many points",
  function()
    local function shown(nodes)
      local page = assert(page_of(folder(nil, RECIPE:gsub("{ 2, 4 }", nodes))))
      check_elements(page)
      return { count(page, "<summary>Steps, "), count(page, 'devices, simulated" class="chart"'),
        count(page, "speedup-by-gpus"), count(page, "speedup-distribution") }
    end
    expect.equal(shown "{ 2, 4 }", { 0, 2, 0, 0 })
    expect.equal(shown "{ 2, 3, 4 }", { 0, 3, 1, 0 })
    expect.equal(shown "{ 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 }", { 1, 0, 1, 1 })
  end)

test("a timeline has a row per lane, and every span says op, time and bytes", function()
  local page = assert(page_of(folder()))
  has(page, "<b>comm</b> simulated rank 0",
    "a2a: 2.000 ms from 1.000; all_to_all forward &lt;dispatch&gt;; 1.00 MiB; waited 0.250 ms; "
      .. "began after data of qkv", "<b>memory</b> up to 1.25 GiB", "memory: 1.250 GiB from 1.000",
    "not in the trace: of simulated ranks 1 to 3",
    'class="s-attn"', 'class="s-other"', "qkv: 1.000 ms from 0.000; linear forward attn")
  expect.equal(count(page, '<figure class="timeline">'), 6)
  expect.equal(count(page, ' class="flow"'), 6 + 1)  -- one in each, and the legend
  has(page, "Not shown here", "trace-008-deepspeed-executed.json")
end)

test("a trace too large for a picture is named, with its size", function()
  local files = folder()
  local name = "old/trace-001-raf-simulated.json"
  files[name] = files[name] .. (" "):rep(9 * 2 ^ 20)
  local page = assert(page_of(files))
  has(page, "Not shown here", "trace-001-raf-simulated.json (9 MiB)")
end)

test("runs of the same bits share a curve", function()
  local page = assert(page_of(folder()))
  expect.equal(count(page, "<polyline"), 2)  -- losses and drops
  local n = 0
  page = assert(page_of(folder(function(_, core)
    local plan = core.plan
    core.plan = function(spec)
      local p = plan(spec)
      local run = p.run
      p.run = function(...)
        local r = run(...)
        n = n + 1
        if n == 2 then r.digest = "ff" end
        return r
      end
      return p
    end
  end)))
  expect.equal(count(page, "<polyline"), 4)
  has(page, "raf = lancet_dw, digest 0011223344556677", "deepspeed, digest ff")
end)

test("a plan that no device holds has no bar, and a run without an end is named", function()
  local page = assert(page_of(folder(function(w)
    w.peak_bytes = function(spec) return spec.ranks == 16 and 2 ^ 40 or 2 ^ 30 end
    w.fails_in = "deepspeed"
  end)))
  has(page, "OOM: gpt2_moe, raf on p4de: 1024.0 GiB do not fit", "Not finished: deepspeed")
  expect.equal(count(page, '16 devices, simulated" class="chart"'), 0)
  expect.equal(count(page, '32 devices, simulated" class="chart"'), 1)
end)

test("a trace that was deleted leaves out its timeline and nothing else", function()
  local files = folder()
  local all = count(assert(page_of(files)), "<svg")
  files["old/trace-001-raf-simulated.json"] = nil
  local page = assert(page_of(files))
  has(page, "their files cannot be read: trace-001-raf-simulated.json", "Timelines")
  assert(count(page, "<svg") >= all - 1, "more than one chart is missing")
  for name in pairs(files) do
    if name:find "trace%-" then files[name] = nil end
  end
  has(assert(page_of(files)), "cannot be read: trace-0", ", trace-0", "1.25x")
end)

test("in CSV no text is a formula, and no control character is in CSV or LaTeX", function()
  local tables = require "moe.results.tables"
  for text, csv in pairs { ["=1+1"] = "'=1+1", ["+cmd"] = "'+cmd", ["@SUM(1)"] = "'@SUM(1)",
    ["-1+1"] = "'-1+1", ["\t=1"] = "' =1", ["\r@x"] = "' @x", ['=a,"b'] = '"\'=a,""b"',
    ["-x"] = "'-x", ["-3.5"] = "-3.5", ["+10.0%"] = "+10.0%", ["-1.5e-07"] = "-1.5e-07",
    ["-"] = "-", ["-0.2x"] = "-0.2x", ["-1..2"] = "-1..2", [-7] = "-7", ["a=b"] = "a=b",
    ["a\27[1m\0"] = "a\\x1b[1m\\x00", ["2.5 ms"] = "2.5 ms" } do
    local t = { title = "t\27", rows = { { "x" }, { text } } }
    expect.equal(tables.csv(t), "x\n" .. csv .. "\n")
    assert(not tables.latex(t):find "[%z\1-\9\11-\31\127]", tables.latex(t))
  end
end)

test("files that cannot be read as results are named, with the field", function()
  local function refused(name, text, ...)
    local files = folder()
    files[name] = text
    local page, err = page_of(files)
    assert(not page, "a page was made")
    assert(type(err) == "table" and err.kind == "user", tostring(err))
    for _, part in ipairs { ... } do
      assert(err.message:find(part, 1, true), ("expected '%s': %s"):format(part, err.message))
    end
  end
  local results, trace = "old/results.json", "old/trace-001-raf-simulated.json"
  local good = folder()[results]
  local function with(change)
    local data = world.decode(good)
    change(data)
    return world.encode(data)
  end
  refused(results, '{"schema":7}', results, "schema version 7", "reads version 1")
  refused(results, '{"schema":{}}', results, "schema version a table, but")
  refused(results, '{"schema":', results)
  local page, err = page_of {}
  assert(not page and err.message == "old: has neither results.json nor runs.jsonl; give a folder "
    .. "that `moebench run` wrote", err.message)
  refused(results, with(function(d) d.machine = nil end), results, "machine: is missing")
  refused(results, with(function(d) d.runs[2].iteration_ms = "<b>" end), results,
    "runs[2].iteration_ms: is a string, but must be a number")
  for _, ms in ipairs { 1e308, 5e-324 } do  -- whose axes would have no end
    refused(results, with(function(d) d.runs[2].compute_ms = ms end), results,
      ("runs[2].compute_ms: is %g, but must be 0 or of a size from 1e-100 to 1e+100"):format(ms))
  end
  refused(results, with(function(d) d.runs[7].losses = {} end), results,
      "runs[7].losses: has 0 entries")
  refused(results, with(function(d) d.runs[2].packing = { n = "2" } end), results,
    "runs[2].packing.n: is a string, but must be a number")
  refused(results, with(function(d) d.runs[2].assumed = 7 end), results,
    "runs[2].assumed: is a number, but must be a table")
  for name, value in pairs { degrees = { 2, "4" }, log = "x",
    without_effect = { { stage = "split" } }, plan_ms = {},
    assumed_routing = { sources = "4" } } do
    refused(results, with(function(d) d.runs[2][name] = value end), results,
      ("runs[2].%s: is not of the type that is written, "):format(name))
  end
  refused(results, with(function(d) d.claims[1].lo = nil end), results, "claims[1].lo: is missing")
  refused(trace, "[", trace)
  refused(trace, "{}", trace, "traceEvents: is missing")
  refused(trace, TRACE:gsub('"dur":1000', '"dur":"x"'), trace, "traceEvents[4].dur: is a string")
  refused(trace, TRACE:gsub('"GiB":0.5', '"GiB":"x"'), trace, "args.GiB: is a string")
end)

test("ticks are round and no more than asked for", function()
  world.run ""
  local axes = require "moe.results.charts.axes"
  for i = -40, 40 do
    local span = 1.7 ^ i
    local step = axes.tick_step(span, 6)
    local digit = tonumber(("%.6e"):format(step):match "^[%d.]+")
    assert(digit == 1 or digit == 2 or digit == 5, ("%g of %g"):format(step, span))
    assert(span / step <= 6 and span / step > 2, ("%g of %g"):format(step, span))
  end
end)

test("a page says which experiment ended early, and there is none of no runs", function()
  local files = pages.folder()
  assert(not pages.page_of(files):find("Incomplete", 1, true))
  local data = world.decode(files["old/results.json"])
  data.experiments[1].planned = 99
  files["old/results.json"] = world.encode(data)
  pages.has(pages.page_of(files), ("Incomplete: %d of 99 runs were done"):format(#data.runs))
  data.runs, data.claims = {}, {}
  files["old/results.json"], files["old/runs.jsonl"] = world.encode(data), nil
  local _, err = pages.page_of(files)
  pages.has(err.message, "old: has no runs")
end)
