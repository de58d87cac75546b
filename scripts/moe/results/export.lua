-- `moebench export`: writes all charts of a folder with results as SVG, and all tables as CSV and
-- LaTeX.
local blocks = require "moe.results.page.blocks"
local core = require "moe.core"
local folder = require "moe.results.page.folder"
local style = require "moe.results.style"

local M = {}

--- Writes the files for the folder of the command line into the output folder; prints their names.
function M.export()
  local report = folder.report(folder.load(core.args.folders[1]), {})
  local rules, files = style.alone(), {}
  for _, e in ipairs(report.experiments) do
    for _, file in ipairs(blocks.files(e.blocks, rules)) do files[#files + 1] = file end
  end
  for _, file in ipairs(blocks.files(report.rest, rules)) do files[#files + 1] = file end
  for _, file in ipairs(files) do core.say(core.write_output(file[1], file[2])) end
end

return M
