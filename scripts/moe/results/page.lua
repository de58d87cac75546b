-- `moebench report`: writes one HTML page of the results in one or several folders. The page loads
-- no other file, and strings that come from recipes are escaped, so they are only text in it.
local assumed_routing = require "moe.results.assumed_routing"
local charts = require "moe.results.page.charts"
local core = require "moe.core"
local effects = require "moe.base.effects"
local html = require "moe.results.page.html"
local report = require "moe.results.report"
local results = require "moe.results.results"
local timeline = require "moe.results.page.timeline"

local M = {}

local MAX_TIMELINES = 6  -- largest number of timelines for a folder
local MAX_OPEN = 40      -- with more runs than this, tables and charts are folded

local PROVENANCE = {
  { "simulated", "computed by the event engine with a cost model; nothing ran" },
  { "emulated", "executed with real tensors, gating and gradients; times of transfers come from a "
    .. "link model" },
  { "measured", "executed, with nothing modelled" },
}

local function load(dir)
  local data = results.load(dir)
  data.dir = dir
  return data
end

local function badge(provenance)
  return html.span { class = "badge " .. provenance, provenance }
end

local function paragraphs(lines)
  local out = {}
  for i, line in ipairs(lines) do out[i] = html.p { line } end
  return out
end

-- Returns the values of --set, which are the same for all experiments of a folder.
local function settings_of(data)
  return data.experiments[1] and data.experiments[1].set or {}
end

local function facts(data)
  local out = {}
  local function fact(name, value)
    out[#out + 1] = html.dt { name }
    out[#out + 1] = html.dd { value }
  end
  local m = data.machine
  if data.recipe then fact("recipe", ("%s, hash %s"):format(data.recipe.name, data.recipe.hash)) end
  fact("date", data.date or "not recorded")
  fact("machine", ("%s, %d threads"):format(m.cpu, m.cores))
  fact("kernel set", m.kernel_set)
  fact("moebench", data.version .. ((m.git or "") ~= "" and ", git " .. m.git or ""))
  fact("seed", ("%d"):format(data.seed))
  for key, value in pairs(settings_of(data)) do
    fact("--set", ("%s=%s"):format(key, tostring(value)))
  end
  return html.dl { out }
end

-- Returns the point of a simulated run as text: "p4de, 16 devices; gate = top2".
local function point_text(run, names)
  local parts = { ("%s, %d devices"):format(run.cluster, run.devices) }
  for _, name in ipairs(names) do
    local value = report.coordinate(run, name)
    if value ~= run.cluster then parts[#parts + 1] = ("%s = %s"):format(name, value) end
  end
  return table.concat(parts, "; ")
end

local function assumed_table(R)
  local rows, said = { { "constant", "value", "least", "most", "why" } }, {}
  for run in R:each() do
    for path, c in pairs(run.assumed or {}) do
      if not said[path] then
        rows[#rows + 1] = { path, ("%g"):format(c.value), ("%g"):format(c.lo),
          ("%g"):format(c.hi), c.why }
      end
      said[path] = true
    end
  end
  return html.details {
    html.summary { ("The cost model rests on %d assumed constants"):format(#rows - 1) },
    html.grid(rows) }
end

-- Returns the content, folded behind a title if it has many runs. A click opens it, and printing
-- does too (page.js).
local function folded(what, R, content)
  if #R.runs <= MAX_OPEN then return content end
  return html.details { html.summary { ("%s, %d runs"):format(what, #R.runs) }, content }
end

local function simulated_section(R)
  local groups, names, figures = R:groups(results.case_of), report.coordinates(R), {}
  for _, group in ipairs(groups) do
    local bars, fits = {}, false
    for i, run in ipairs(group) do
      local bar = { label = report.system_text(run), provenance = run.provenance, times = run,
        oom = run.oom, samples = {} }
      bars[i] = { bound = not run.oom and run.lower_bound_ms or nil, bars = { bar } }
      fits = fits or not run.oom
    end
    if fits then
      figures[#figures + 1] = charts.bars(point_text(group[1], names) .. ", simulated", bars)
    end
  end
  local speedups = ""
  if #groups > 1 and #groups[1] > 1 then
    local rows, base = report.rows.speedup(groups, names, R)
    local what = "Speed-up over " .. base .. ", simulated"
    speedups = folded(what, R, html.grid(rows, what))
  end
  return { html.h4 { "Simulated ", badge "simulated" },
    folded("Steps", R, html.grid(report.rows.simulated(groups, names))),
    paragraphs(assumed_routing.lines(R.runs)), paragraphs(report.lines.out_of_memory(R)),
    paragraphs(effects.lines(R.runs)), speedups,
    assumed_table(R), charts.BAR_LEGEND,
    folded("Charts", R, html.div { class = "charts", figures, "" }) }
end

-- Returns the times of the steps after the first, over which medians are taken too.
local function samples_of(run)
  local out = {}
  for i = 2, #run.samples_ms do out[i - 1] = run.samples_ms[i] end
  return out
end

local function executed_bars(runs)
  local groups = {}
  for i, run in ipairs(runs) do
    groups[i] = { bound = run.lower_bound_ms, bars = {
      { label = report.system_text(run), provenance = "simulated", times = run.prediction,
        samples = {} },
      { label = ("  executed, %+.1f%%%s"):format(100 * run.prediction.error,
        run.disturbed and ", disturbed" or ""),
        provenance = run.provenance, times = run, samples = samples_of(run) } } }
  end
  return charts.bars(("Of each system: predicted (simulated) above, executed (%s) and its error "
    .. "below"):format(runs[1].provenance), groups)
end

-- Returns the curves of a field that has a value per step. Runs with equal digests and values share
-- a curve.
local function curves(runs, key)
  local series = {}
  for i, group in ipairs(results.new(runs):groups(function(run)
    return { run.digest or run.system, run[key] }
  end)) do
    local names = {}
    for k, run in ipairs(group) do names[k] = run.system end
    series[i] = { label = ("%s, digest %s"):format(table.concat(names, " = "),
      group[1].digest or "-"),
      ys = group[1][key] }
  end
  return series
end

-- Returns the table of losses with the systems in the first column and without the digests, which
-- are in the legend below the curves.
local function losses_grid(runs)
  local rows = report.rows.losses(runs)
  for _, row in ipairs(rows) do
    local systems = table.remove(row)
    row[#row] = nil
    table.insert(row, 1, systems)
  end
  return html.grid(rows)
end

local function executed_section(runs, differs)
  local provenance = runs[1].provenance
  return { html.h4 { "Executed ", badge(provenance) },
    paragraphs(report.lines.executed(runs, differs)), html.p { report.MEDIANS },
    html.grid(report.rows.times(runs)), paragraphs(report.lines.errors(runs)),
    charts.BAR_LEGEND, executed_bars(runs),
    html.p { "Each part of a bar is a median over steps, so the parts need not add up to the "
      .. "median step, which is printed to the right." },
    losses_grid(runs), paragraphs(report.lines.closing(runs)),
    html.div { class = "charts",
      charts.lines("Loss by step, " .. provenance, curves(runs, "losses")),
      charts.lines("Dropped choices by step, " .. provenance, curves(runs, "drops"), true) } }
end

-- Returns a list of { run, group, place, rank } for the runs that have a trace, sorted by rank (0
-- to 3) and place (their order in R): first the first and the fastest system of each point, then
-- the others; in both, executed runs before simulated ones.
local function traced(R)
  local list = {}
  for g, group in ipairs(R:groups(results.case_of)) do
    local best
    for _, run in ipairs(group) do
      if run.trace and (not best or run.iteration_ms < best.iteration_ms) then best = run end
    end
    for i, run in ipairs(group) do
      local rank = (i == 1 or run == best) and 0 or 2
      if run.trace then
        list[#list + 1] = { run = run, group = g, place = #list,
          rank = rank + (run.provenance == "simulated" and 1 or 0) }
      end
    end
  end
  table.sort(list, function(a, b)
    if a.rank ~= b.rank then return a.rank < b.rank end
    return a.place < b.place
  end)
  return list
end

-- Returns the captions of timelines: run -> text.
local function captions(R)
  local executed = R:where { provenance = { "emulated", "measured" } }:groups(results.case_of)
  local names, out = report.coordinates(R:where { provenance = "simulated" }, true), {}
  for g, lines in ipairs(report.differences(executed)) do
    for _, run in ipairs(executed[g]) do
      local what = ("predicted (simulated) and executed (%s)"):format(run.provenance)
      out[run] = table.concat({ what, unpack(lines) }, "; ")
    end
  end
  for run in R:where { provenance = "simulated" }:each() do
    out[run] = point_text(run, names) .. ", simulated"
  end
  return out
end

local function timelines_section(data, R)
  local shown, left_out, longest, caption = {}, {}, {}, captions(R)
  for _, item in ipairs(traced(R)) do
    local trace = #shown < MAX_TIMELINES and timeline.read(data.dir, item.run)
    local why = not trace and "" or timeline.too_large(trace)
    if why then
      left_out[#left_out + 1] = item.run.trace .. (why ~= "" and (" (%s)"):format(why) or "")
    else
      item.trace, shown[#shown + 1] = trace, item
      longest[item.group] = math.max(longest[item.group] or 0, trace.end_us)
    end
  end
  if #shown + #left_out == 0 then return "" end
  table.sort(shown, function(a, b) return a.place < b.place end)
  local figures = {}
  for i, item in ipairs(shown) do
    figures[i] = timeline.draw(("%s; %s"):format(report.system_text(item.run), caption[item.run]),
      item.trace, longest[item.group])
  end
  return { html.h3 { "Timelines" },
    html.p { "One row per lane of a rank; runs of the same point have axes of equal length. Zoom "
      .. "by Ctrl + wheel, the buttons, or the keys + - 0." },
    timeline.legend(), figures,
    #left_out > 0 and html.p { "Not shown here; open in Perfetto or chrome://tracing: ",
      table.concat(left_out, ", ") } or "" }
end

-- Returns the ends of an axis that contains all numbers of a claim, including those at the ends of
-- its constants' bands.
local function axis_of(claim)
  local list = { claim.paper, claim.ours, claim.lo, claim.hi }
  local lo, hi = claim.paper, claim.paper
  local function hold(v) if v then lo, hi = math.min(lo, v), math.max(hi, v) end end
  for i = 1, 4 do hold(list[i]) end
  for _, s in ipairs(claim.sensitivity) do hold(s.at_lo) hold(s.at_hi) end
  return { lo, hi > lo and hi or lo + 1 }
end

local function sensitivity_table(claim)
  local rows = { { "constant", "from", "to", "ours from", "ours to", "" } }
  local function text(v) return v and ("%.3g"):format(v) or "none" end
  for i, s in ipairs(claim.sensitivity) do
    local from, to = s.at_lo or claim.ours, s.at_hi or claim.ours
    rows[i + 1] = { s.constant, ("%g"):format(s.lo), ("%g"):format(s.hi), text(s.at_lo),
      text(s.at_hi), charts.band({ paper = claim.paper, ours = claim.ours,
        lo = from and math.min(from, to), hi = from and math.max(from, to) }, axis_of(claim)) }
  end
  return html.grid(rows)
end

local function claims_section(data)
  local claims = data.claims
  if #claims == 0 then return "" end
  local rows, notes = report.rows.claims(claims), {}
  table.insert(rows[1], "paper and ours")
  for i, claim in ipairs(claims) do
    table.insert(rows[i + 1], charts.band(claim, axis_of(claim)))
    notes[#notes + 1] = html.dt { rows[i + 1][1] }
    notes[#notes + 1] = html.dd { html.b { claim.verdict }, ": ", claim.text,
      claim.reason and html.p { claim.reason } or "", claim.note and html.p { claim.note } or "",
      #claim.sensitivity > 0 and html.details {
        html.summary { ("what moves it: %d constants"):format(#claim.sensitivity) },
        sensitivity_table(claim) } or "" }
  end
  return { html.h3 { "Claims" },
    html.p { "Our numbers over the bands of the assumed constants",
      next(settings_of(data)) and "; only for the points that --set leaves" or "",
      "; each row has its own axis" },
    charts.BAND_LEGEND, html.grid(rows), html.dl { notes } }
end

local function experiment_section(e, all, id)
  local unfinished, runs = {}, {}
  for _, run in ipairs(all) do
    if run.experiment == e.name then
      runs[#runs + 1] = run
      if not run.iteration_ms then unfinished[#unfinished + 1] = run.system end
    end
  end
  local R, out = results.ended(runs), {}
  local simulated = R:where { provenance = "simulated" }
  if #simulated.runs > 0 then out[1] = simulated_section(simulated) end
  local executed = R:where { provenance = { "emulated", "measured" } }:groups(results.case_of)
  local differs = report.differences(executed)
  for g, group in ipairs(executed) do out[#out + 1] = executed_section(group, differs[g]) end
  if #unfinished > 0 then
    out[#out + 1] = html.p { "Not finished: ", table.concat(unfinished, ", ") }
  end
  return { html.h3 { id = id, e.name, (e.title or "") ~= "" and ": " .. e.title or "" }, out }
end

-- Returns the section of a folder, the links to it and its experiments, and the number of the links
-- to experiments.
local function folder_section(data, id)
  local experiments, links, said = {}, {}, {}
  for i, e in ipairs(data.experiments) do
    if not said[e.name] then
      local place = ("%s-%d"):format(id, i)
      experiments[#experiments + 1] = experiment_section(e, data.runs, place)
      links[#links + 1] = html.li { html.a { href = "#" .. place, e.name } }
    end
    said[e.name] = true
  end
  return html.section { html.h2 { id = id, data.dir }, facts(data), experiments,
      claims_section(data), timelines_section(data, results.ended(data.runs)) },
    html.li { html.a { href = "#" .. id, data.dir }, html.ul { links, "" } }, #links
end

local function provenance_list()
  local items = {}
  for i, p in ipairs(PROVENANCE) do items[i] = html.p { badge(p[1]), " ", p[2] } end
  return items
end

local function resource(name)
  return html.raw(core.read_file(("%s/moe/page/%s"):format(core.scripts_dir, name)))
end

local function page_of(folders)
  local sections, links, count = {}, {}, 0
  for i, data in ipairs(folders) do
    local n
    sections[i], links[i], n = folder_section(data, "folder" .. i)
    count = count + n
  end
  return html.html { lang = "en",
    html.head { html.meta { charset = "utf-8" },
      html.meta { ["http-equiv"] = "Content-Security-Policy",
        content = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'" },
      html.meta { name = "viewport", content = "width=device-width, initial-scale=1" },
      html.title { "moebench: ", folders[1].recipe and folders[1].recipe.name or folders[1].dir },
      html.style { resource "page.css" } },
    html.body { charts.PATTERNS, html.h1 { "moebench report" }, provenance_list(),
      count > 1 and html.nav { html.ul { links } } or "",
      sections, html.script { resource "page.js" } } }
end

--- Writes the page for the folders of the command line to the file `name` in the output folder.
function M.report(name)
  local folders = {}
  for i, dir in ipairs(core.args.folders) do folders[i] = load(dir) end
  core.say(core.write_output(name, "<!DOCTYPE html>\n" .. tostring(page_of(folders)) .. "\n"))
end

return M
