-- `moebench report`: writes one HTML page of the results in one or several folders. The page loads
-- no other file, and strings that come from recipes are escaped, so they are only text in it.
local blocks = require "moe.results.page.blocks"
local core = require "moe.core"
local folder = require "moe.results.page.folder"
local html = require "moe.results.page.html"
local style = require "moe.results.style"
local svg = require "moe.results.charts.svg"

local M = {}

local PROVENANCE = {
  { "simulated", "computed by the event engine with a cost model; nothing ran" },
  { "emulated", "executed with real tensors, gating and gradients; times of transfers come from a "
    .. "link model" },
  { "measured", "executed, with nothing modelled" },
}

local function badge(provenance)
  return html.span { class = "badge " .. provenance, provenance }
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
  for key, value in pairs(folder.settings_of(data)) do
    fact("--set", ("%s=%s"):format(key, tostring(value)))
  end
  for key, value in pairs(core.args.where or {}) do
    fact("only", ("%s = %s"):format(key, value))
  end
  return html.dl { out }
end

-- Returns the section of a folder, the links to it and its experiments, and the number of the links
-- to experiments. used: the names of figures in other folders.
local function folder_section(data, id, used)
  local report, experiments, links = folder.report(data, used), {}, {}
  for i, e in ipairs(report.experiments) do
    local place = ("%s-%d"):format(id, i)
    experiments[i] = { html.h3 { id = place, e.name, e.title ~= "" and ": " .. e.title or "" },
      blocks.show(e.blocks) }
    links[i] = html.li { html.a { href = "#" .. place, e.name } }
  end
  return html.section { html.h2 { id = id, data.dir }, facts(data), experiments,
      blocks.show(report.rest) },
    html.li { html.a { href = "#" .. id, data.dir }, html.ul { links, "" } }, #links
end

local function provenance_list()
  local items = {}
  for i, p in ipairs(PROVENANCE) do items[i] = html.p { badge(p[1]), " ", p[2] } end
  return items
end

local function resource(name) return html.raw(style.resource(name)) end

local function page_of(folders)
  local sections, links, count, used = {}, {}, 0, {}
  for i, data in ipairs(folders) do
    local n
    sections[i], links[i], n = folder_section(data, "folder" .. i, used)
    count = count + n
  end
  return html.html { lang = "en",
    html.head { html.meta { charset = "utf-8" },
      html.meta { ["http-equiv"] = "Content-Security-Policy",
        content = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'" },
      html.meta { name = "viewport", content = "width=device-width, initial-scale=1" },
      html.title { "moebench: ", folders[1].recipe and folders[1].recipe.name or folders[1].dir },
      html.style { resource "page.css", resource "chart.css" } },
    html.body { html.svg { width = 0, height = 0, class = "patterns", ["aria-hidden"] = "true",
        svg.HATCH },
      html.template { id = "chart-rules", style.alone() },
      html.h1 { "moebench report" }, provenance_list(),
      count > 1 and html.nav { html.ul { links } } or "",
      sections, html.script { resource "page.js" } } }
end

--- Writes the page for the folders of the command line to the file `name` in the output folder.
function M.report(name)
  local folders = {}
  for i, dir in ipairs(core.args.folders) do folders[i] = folder.load(dir) end
  core.say(core.write_output(name, "<!DOCTYPE html>\n" .. tostring(page_of(folders)) .. "\n"))
end

return M
