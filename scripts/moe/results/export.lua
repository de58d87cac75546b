-- `moebench export`: writes all charts of a folder with results as SVG, and all tables as CSV and
-- LaTeX.
local blocks = require "moe.results.page.blocks"
local core = require "moe.core"
local folder = require "moe.results.page.folder"
local schema = require "moe.base.schema"
local style = require "moe.results.style"

local M = {}

--- Returns the files of a report (page/folder.lua), a list of { name, text }; o: width and font, as
--- style.OPTIONS says.
function M.files(report, o)
  local rules, files = style.alone(o.font), {}
  local function add(more)
    for _, file in ipairs(blocks.files(more, rules, o.width)) do files[#files + 1] = file end
  end
  for _, e in ipairs(report.experiments) do add(e.blocks) end
  add(report.rest)
  return files
end

function M.export()
  local drawn = core.args.drawn or {}
  local o = schema.check(style.OPTIONS, { font = drawn.font,
    width = drawn.width and (tonumber(drawn.width) or drawn.width) }, "export")
  local report = folder.report(folder.load(core.args.folders[1]), {})
  for _, file in ipairs(M.files(report, o)) do core.say(core.write_output(file[1], file[2])) end
end

return M
