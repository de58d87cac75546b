-- The arguments of Megatron-LM's pretrain scripts: a command line, a shell script that has them in
-- variables and arrays, or YAML with a line `--name: value` per argument (below MODEL_ARGS, as in
-- Megatron-LM's functional tests, or on its own).
local files = require "moe.formats.files"

local M = {}

local MOST_WORDS = 100000  -- of a script after its variables are replaced

-- Returns the words of shell text as { text =, bare = whether no quote is in it, line = }; a line
-- end is the word "\n". Comments and continued lines are left out.
local function words_of(text, name)
  local words, at, line, word = {}, 1, 1, nil
  local function add(piece, quoted)
    word = word or { text = "", bare = true, line = line }
    word.text, word.bare = word.text .. piece, word.bare and not quoted
  end
  local function close()
    words[#words + 1], word = word, nil
  end
  while at <= #text do
    local c = text:sub(at, at)
    if c == "\\" then
      local n = text:sub(at + 1, at + 1)
      if n == "\n" then line = line + 1 else add(n) end
      at = at + 2
    elseif c == "'" or c == '"' then
      local stop = text:find(c, at + 1, true)
      if not stop then files.fail_at(name, line, "a quote (%s) is not closed", c) end
      local inside = text:sub(at + 1, stop - 1)
      add(inside, true)
      line, at = line + select(2, inside:gsub("\n", "")), stop + 1
    elseif c == "$" and text:find("^%${", at) then
      local stop = text:find("}", at, true)
      if not stop then files.fail_at(name, line, "${ is not closed") end
      add(text:sub(at, stop))
      at = stop + 1
    elseif c:find "[%s();]" then
      close()
      local mark = c == ";" and "\n" or c
      if mark:find "[\n()]" then words[#words + 1] = { text = mark, bare = true, line = line } end
      if c == "\n" then line = line + 1 end
      at = at + 1
    elseif c == "#" and not word then
      at = text:find("\n", at, true) or #text + 1
    else
      add(c)
      at = at + 1
    end
  end
  close()
  return words
end

-- Appends the words of a word whose variables are replaced. An array, and a variable that is not
-- quoted, become several words; a variable without a value stays as it is.
local function expand(word, variables, out, name, depth)
  if depth > 20 or #out > MOST_WORDS then
    files.fail_at(name, word.line, "variables refer to each other without end")
  end
  local whole = word.text:match "^%${?([%a_][%w_]*)%[?[@*]?%]?}?$"
  local values = whole and variables[whole]
  if values and word.text:sub(1, 1) == "$" then
    for _, w in ipairs(values) do expand(w, variables, out, name, depth + 1) end
    return
  end
  local text = word.text:gsub("%${?([%a_][%w_]*)([^}]-)}", function(key, rest)
    local list = variables[key]
    if list and (rest == "" or rest:find "^%[") then
      local parts = {}
      for i, w in ipairs(list) do parts[i] = w.text end
      return table.concat(parts, " ")
    end
    return rest:match "^:?%-(.*)$"
  end):gsub("%$([%a_][%w_]*)", function(key)
    return variables[key] and variables[key][1] and variables[key][1].text
  end)
  if text ~= word.text and word.bare and text:find "%s" then
    for part in text:gmatch "%S+" do
      expand({ text = part, bare = true, line = word.line }, variables, out, name, depth + 1)
    end
  else
    out[#out + 1] = { text = text, bare = word.bare, line = word.line }
  end
end

-- Returns the words behind the Python file of the last command that has one, and of a text without
-- such a command all words that are no assignments.
local function of_script(text, name)
  local variables, words, found, all = {}, words_of(text, name), nil, {}
  local i = 1
  while i <= #words do
    local key, plus, value = words[i].text:match "^([%a_][%w_]*)(%+?)=(.*)$"
    local list = {}
    if key and value == "" and words[i + 1] and words[i + 1].text == "(" then
      i = i + 2
      while words[i] and words[i].text ~= ")" do
        if words[i].text ~= "\n" then list[#list + 1] = words[i] end
        i = i + 1
      end
    elseif key then
      for part in value:gmatch(words[i].bare and ".+" or "%S+") do
        list[#list + 1] = { text = part, bare = true, line = words[i].line }
      end
    end
    if key then
      local old = plus == "+" and variables[key] or {}
      variables[key] = {}
      for _, from in ipairs { old, list } do
        for _, w in ipairs(from) do table.insert(variables[key], w) end
      end
      i = i + 1
    else
      local command, script = {}, nil
      while words[i] and words[i].text ~= "\n" do
        expand(words[i], variables, command, name, 0)
        i = i + 1
      end
      i = i + 1
      for n, w in ipairs(command) do
        if w.text:find "%.py$" then script = n end
        all[#all + 1] = w
      end
      if script then found = { unpack(command, script + 1) } end
    end
  end
  return found or all
end

-- Returns the arguments of a list of words.
local function arguments_of(words, name)
  local out = {}
  for _, w in ipairs(words) do
    if w.text:find "^%-%-[%a]" then
      local key, value = w.text:match "^%-%-([^=]+)=?(.*)$"
      out[#out + 1] = { name = key, values = {}, line = w.line }
      if value ~= "" then out[#out].values[1] = value end
    elseif #out == 0 then
      if w.text:find "^%-" then
        files.fail_at(name, w.line, "'%s' is not an argument, which begins with --", w.text)
      end
    elseif not w.text:find "^[()|&<>]" then
      table.insert(out[#out].values, w.text)
    end
  end
  return out
end

-- Returns a value of YAML without its comment and quotes.
local function scalar(text)
  local _, quoted = text:match "^%s*(['\"])(.-)%1"
  if quoted then return quoted end
  return (text:gsub("%s+#.*$", ""):gsub("^%s*#.*$", ""):gsub("^%s+", ""):gsub("%s+$", ""))
end

-- Returns the arguments of YAML: those below MODEL_ARGS if it is there.
local function of_yaml(text, name)
  local out, inside, last = {}, not text:find "\nMODEL_ARGS:" and not text:find "^MODEL_ARGS:", nil
  for line, number in files.lines(text) do
    local top = line:match "^([%w_]+):"
    local key, value = line:match "^%s*%-%-([%w_-]+):(.*)$"
    if not key and inside then key, value = line:match "^%s*([%a][%w_-]*):(.*)$" end
    if top and not line:find "^%s" and text:find "MODEL_ARGS:" then
      inside, last = top == "MODEL_ARGS", nil
    elseif inside and key then
      last = { name = key, values = {}, line = number }
      out[#out + 1] = last
      value = scalar(value)
      if value ~= "" then last.values[1] = value end
    elseif inside and last and #last.values == 0 and not line:find "^%s*#" then
      last.values[1] = scalar(line)  -- a value on the line below
    elseif inside and not line:find "^%s*#" and line:find "%S" then
      files.fail_at(name, number, "'%s' is not a line 'name: value'", line)
    end
  end
  return out
end

--- Returns the arguments in a text: a list of { name = with dashes and without those in front,
--- values = list of words, line }. name: of the text, in errors, which name a line.
function M.parse(text, name)
  local yaml = text:find "MODEL_ARGS:" or ("\n" .. text):find "\n%s*%-%-[%w_-]+:%s"
    or not text:find "%-%-" and text:find "^%s*[%w_-]+:%s"
  local list = yaml and of_yaml(text, name) or arguments_of(of_script(text, name), name)
  if #list == 0 then files.fail(name, "it has no arguments of Megatron-LM (--name value)") end
  for _, a in ipairs(list) do a.name = a.name:gsub("_", "-") end
  return list
end

return M
