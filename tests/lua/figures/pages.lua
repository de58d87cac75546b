-- Folders with results as a recipe leaves them, and what `moebench report` and `moebench export`
-- make of them.
local expect = require "expect"
local world = require "world"

local M = {}

M.TITLE = [[<script>alert("1")</script> & 'it' http://else.where/x]]

M.RECIPE = expect.HEAD .. [[
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

-- Two lanes; an all-to-all of 1 MiB from 1 to 3 ms, which an op of compute reads.
M.TRACE = world.encode { traceEvents = {
  named(1, 0, "process", "simulated rank 0"), named(1, 1, "thread", "compute"),
  named(1, 2, "thread", "comm"),
  { ph = "X", name = "qkv", cat = "attn", ts = 0, dur = 1000, pid = 1, tid = 1,
    args = { op = "linear", phase = "forward", wait_us = 0 } },
  { ph = "X", name = "a2a", cat = "<dispatch>", ts = 1000, dur = 2000, pid = 1, tid = 2,
    args = { op = "all_to_all", phase = "forward", wait_us = 250, bytes = 2 ^ 20,
      waits_for = "data of qkv" } },
  { ph = "X", name = "fc1", cat = "expert", ts = 3000, dur = 500, pid = 1, tid = 1 },
  { ph = "C", name = "nic_out 0.0", ts = 0, pid = 1, args = { percent = 50 } },
  { ph = "C", name = "memory", ts = 0, pid = 1, args = { GiB = 0.5 } },
  { ph = "C", name = "memory", ts = 1000, pid = 1, args = { GiB = 1.25 } },
  { ph = "s", name = "data", cat = "data", id = 1, ts = 2999.999, pid = 1, tid = 2 },
  { ph = "f", name = "data", cat = "data", id = 1, ts = 3000, pid = 1, tid = 1, bp = "e" } },
  otherData = { graph = "g", left_out = "of simulated ranks 1 to 3" } }

local function file_text(name)
  local file = assert(io.open(name))
  local text = file:read "*a"
  file:close()
  return text
end

-- The files of a folder "old" as a run with the recipe leaves it; step_ms and the like of its world
-- in `setup`.
function M.folder(setup, recipe)
  local text = (recipe or M.RECIPE):gsub("TITLE", ("%q"):format(M.TITLE))
  local files = world.left(text, "old", setup)
  for name in pairs(files) do
    if name:find "trace%-" then files[name] = M.TRACE end
  end
  assert(files["old/results.json"], "the recipe did not run")
  return files
end

-- Calls a command that reads folders, in a world with these files; returns the world, or nil and
-- the error.
local function command(mode, argument, files, folders)
  local w = world.run("", {}, "run", function(w, core)
    for _, name in ipairs { "page.css", "chart.css", "page.js" } do
      local path = ("%s/moe/page/%s"):format(world.scripts_dir, name)
      w.files[path] = file_text(path)
    end
    for name, text in pairs(files) do w.files[name] = text end
    core.args.folders, core.recipe = folders or { "old" }, nil
  end)
  local ok, err = pcall(w.moe._main, mode, argument)
  return ok and w or nil, err
end

-- The page of folders, or nil and the error.
function M.page_of(files, folders)
  local w, err = command("report", "page.html", files, folders)
  return w and w.files["out/page.html"], err
end

-- The files that an export of the folder "old" writes: name -> text.
function M.export_of(files)
  local w, out = assert(command("export", nil, files)), {}
  for name, text in pairs(w.files) do
    if name:match "^out/" then out[name:gsub("^out/", "")] = text end
  end
  return out
end

function M.has(page, ...)
  for _, part in ipairs { ... } do assert(page:find(part, 1, true), "not in the page: " .. part) end
end

function M.count(page, part)
  return select(2, page:gsub(part:gsub("%p", "%%%0"), ""))
end

-- Every element is closed, in order; "<" stands for nothing but a tag.
function M.check_elements(page)
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

return M
