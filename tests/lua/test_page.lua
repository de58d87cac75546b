-- The page that `moebench report` makes of result folders.
local expect = require "expect"
local test = require "test"
local world = require "world"

local TITLE = [[<script>alert("1")</script> & 'it' http://else.where/x]]

local RECIPE = expect.HEAD .. [[
local E = moe.experiment { name = "x", title = TITLE, over = { nodes = { 2, 4 } },
  case = function(p) return { model = m, cluster = moe.cluster.p4de { nodes = p.nodes },
    systems = { moe.system "raf" {}, moe.system "deepspeed" {}, moe.system "lancet_dw" {} } } end,
  run = { "simulate", { "cpu", ranks = 2, steps = 3 } },
  claims = { moe.claim { id = "lancet-034", not_comparable = "a <gate> of its own",
    value = function(R) return R:where { executor = "simulate" }:ratio({ "iteration_ms",
      of = "lancet_dw", to = "raf" }):mean() end } } }
moe.run(E)
]]

local function named(pid, tid, what, name)
  return { ph = "M", name = what .. "_name", pid = pid, tid = tid, args = { name = name } }
end

-- Two lanes; an all-to-all of 1 MiB from 1 to 3 ms.
local TRACE = world.encode { traceEvents = {
  named(1, 0, "process", "simulated rank 0"), named(1, 1, "thread", "compute"),
  named(1, 2, "thread", "comm"),
  { ph = "X", name = "qkv", cat = "attn", ts = 0, dur = 1000, pid = 1, tid = 1,
    args = { op = "linear", phase = "forward", wait_us = 0 } },
  { ph = "X", name = "a2a", cat = "<dispatch>", ts = 1000, dur = 2000, pid = 1, tid = 2,
    args = { op = "all_to_all", phase = "forward", wait_us = 250, bytes = 2 ^ 20 } } } }

local function file_text(name)
  local file = assert(io.open(name))
  local text = file:read "*a"
  file:close()
  return text
end

-- The files of a folder "old" as a run with the recipe leaves it; step_ms and the like of its world
-- in `setup`.
local function folder(setup, recipe)
  local text = (recipe or RECIPE):gsub("TITLE", ("%q"):format(TITLE))
  local files = {}
  for name, content in pairs(world.run(text, {}, "run", setup).files) do
    files[name:gsub("^out/", "old/")] = name:find "trace%-" and TRACE or content
  end
  assert(files["old/results.json"], "the recipe did not run")
  return files
end

-- The page of folders, or nil and the error.
local function page_of(files, folders)
  local w = world.run("", {}, "run", function(w, core)
    for _, name in ipairs { "page.css", "page.js" } do
      local path = ("%s/moe/page/%s"):format(world.scripts_dir, name)
      w.files[path] = file_text(path)
    end
    for name, text in pairs(files) do w.files[name] = text end
    core.args.folders, core.recipe = folders or { "old" }, nil
  end)
  local ok, err = pcall(w.moe._main, "report", "page.html")
  return ok and w.files["out/page.html"] or nil, err
end

local function has(page, ...)
  for _, part in ipairs { ... } do assert(page:find(part, 1, true), "not in the page: " .. part) end
end

local function count(page, part)
  return select(2, page:gsub(part:gsub("%p", "%%%0"), ""))
end

-- Every element is closed, in order; "<" stands for nothing but a tag.
local function check_elements(page)
  local open = {}
  page = page:gsub("<(style)>.-</style>", ""):gsub("<(script)>.-</script>", "")
  page = page:gsub("^<!DOCTYPE html>", "")
  for tag in page:gmatch "<([^<]*)" do
    local close, name, rest = tag:match "^(/?)(%w+)(.*)$"
    assert(name, "no tag: <" .. tag:sub(1, 60))
    local attributes = rest:match "^([^>]*)>"
    assert(attributes, "not closed: <" .. tag:sub(1, 60))
    local left = attributes:gsub("/$", ""):gsub(' [%w-]+="[^"]*"', "")
    expect.equal(left, "", "attributes of " .. name)
    if close == "/" then
      expect.equal(name, table.remove(open), "end tag")
    elseif attributes:sub(-1) ~= "/" then
      open[#open + 1] = name
    end
  end
  expect.equal(#open, 0, "open elements")
end

test("the page has the numbers, the claim and where they are from", function()
  local page = assert(page_of(folder()))
  has(page, "recipe.lua, hash 00", "2025-01-31T12:00:00Z", ">none, ", "1.25x", "+10.0%",
    "Median prediction error over 3 runs: 10.0%", "880..880", "lancet-034", "not comparable",
    "predicted (simulated) above, executed (measured)", "4.9000", ">raf = deepspeed = lancet_dw<")
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

test("what is long is folded", function()
  local function folds(nodes)
    local page = assert(page_of(folder(nil, RECIPE:gsub("{ 2, 4 }", nodes))))
    check_elements(page)
    return count(page, "<summary>Steps, ") .. count(page, "<summary>Charts, ")
  end
  expect.equal(folds "{ 2, 4 }", "00")
  expect.equal(folds "{ 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 }", "11")
end)

test("a timeline has a row per lane, and every span says op, time and bytes", function()
  local page = assert(page_of(folder()))
  has(page, "<b>comm</b> simulated rank 0",
    "a2a: 2.000 ms from 1.000; all_to_all forward &lt;dispatch&gt;; 1.00 MiB; waited 0.250 ms",
    'class="s-attn"', 'class="s-other"', "qkv: 1.000 ms from 0.000; linear forward attn")
  expect.equal(count(page, '<figure class="timeline">'), 6)
  has(page, "Not shown here", "trace-008-deepspeed-executed.json")
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
  expect.equal(count(page, "16 devices, simulated</figcaption>"), 0)
  expect.equal(count(page, "32 devices, simulated</figcaption>"), 1)
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
  refused(results, '{"schema":', results)
  refused(results, with(function(d) d.machine = nil end), results, "machine: is missing")
  refused(results, with(function(d) d.runs[2].iteration_ms = "<b>" end), results,
    "runs[2].iteration_ms: is a string, but must be a number")
  refused(results, with(function(d) d.runs[7].losses = {} end), results,
      "runs[7].losses: has 0 entries")
  refused(results, with(function(d) d.claims[1].lo = nil end), results, "claims[1].lo: is missing")
  refused(trace, nil, "cannot read " .. trace)
  refused(trace, "[", trace)
  refused(trace, "{}", trace, "traceEvents: is missing")
  refused(trace, TRACE:gsub('"dur":1000', '"dur":"x"'), trace, "traceEvents[4].dur: is a string")
end)

test("ticks are round and no more than asked for", function()
  world.run ""
  local charts = require "moe.results.page.charts"
  for i = -40, 40 do
    local span = 1.7 ^ i
    local step = charts.tick_step(span, 6)
    local digit = tonumber(("%.6e"):format(step):match "^[%d.]+")
    assert(digit == 1 or digit == 2 or digit == 5, ("%g of %g"):format(step, span))
    assert(span / step <= 6 and span / step > 2, ("%g of %g"):format(step, span))
  end
end)
