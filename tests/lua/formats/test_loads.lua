-- Counts by [step][layer][expert] in three forms, what is dealt to ranks, and EPLB's maps.
local core = require "moe.core"
local loads = require "moe.formats.loads"
local moe = require "moe"
local test = require "test"

local function equal(got, right, what)
  if type(got) == "string" then error(what .. ": " .. got, 0) end
  assert(core.json_encode(got) == core.json_encode(right), what)
end

-- Calls f(..) while files have these texts; returns its result or the message of its error.
local function with(texts, f, ...)
  local real = core.read_file
  core.read_file = function(path) return texts[path] or real(path) end
  local ok, value = pcall(f, ...)
  core.read_file = real
  return ok and value or value.message or tostring(value)
end

local function reads(text) return with({ f = text }, loads.read, "f") end

-- A .npy of the shape "2, 3" with the bytes of its numbers.
local function npy(descr, shape, bytes)
  local head = ("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }"):format(descr, shape)
  return "\147NUMPY\1\0" .. string.char(#head % 256, math.floor(#head / 256)) .. head .. bytes
end

test("counts are read alike from JSON, CSV and npy", function()
  local right = { { { 1, 2, 0 }, { 4, 0, 5 } } }
  equal(reads "[[[1,2,0],[4,0,5]]]", right, "three levels")
  equal(reads '{"name":"x","loads":[[1,2,0],[4,0,5]],"a":[0]}', right, "in an object")
  equal(reads "layer,expert,tokens\n3,0,1\n3,1,2\n7,0,4\n7,2,5\n", right, "csv")
  equal(reads(npy("<i2", "2, 3", "\1\0\2\0\0\0\4\0\0\0\5\0")), right, "i2")
  equal(reads(npy("|u1", "2, 3", "\1\2\0\4\0\5")), right, "u1")
  equal(reads(npy("<f4", "2,3", "\0\0\128\63\0\0\0\64\0\0\0\0\0\0\128\64\0\0\0\0\0\0\160\64")),
    right, "f4")
  equal(reads(npy("<f8", "3,", "\0\0\0\0\0\0\240\63\0\0\0\0\0\0\0\64\0\0\0\0\0\0\0\0")),
    { { { 1, 2, 0 } } }, "f8")
end)

test("what is no table of counts is refused by its place", function()
  for text, why in pairs {
    ['{"loads":[1],"counts":[1]}'] = "which of its lists counts, loads has the counts?",
    ["[]"] = "it has no list of counts", ['{"a":1}'] = "it has no list of counts",
    ["[[1,2],[3]]"] = "step 1, layer 2: it has another number of experts than the first, 2",
    ["[1,-2]"] = "step 1, layer 1: a count is -2", ["[[1],2]"] = "layer 2",
    ["[[[1]],[[1],[2]]]"] = "step 2 has another number of layers",
    ["expert\n1\n"] = "f:1: the header 'expert' lacks the columns",
    ["expert,count\n0,1\n0,2\n"] = "f:3: step 0, layer 0, expert 0 stands twice",
    ["expert,count\n0,x\n"] = "f:2: count 'x' is not allowed",
    [npy("<c8", "1,", "12345678")] = "its numbers are not of a type",
    [npy("<i4", "2,", "1234")] = "4 bytes of numbers, but its shape (2,) needs 8",
    ["\147NUMPY\1\0"] = "its header is cut off",
    ["\147NUMPY\1\0\255\255"] = "its header is cut off",
  } do
    local got = reads(text)
    assert(type(got) == "string" and got:find(why, 1, true), text .. ": " .. tostring(got))
  end
end)

test("counts are dealt evenly and none is lost, also after scaling", function()
  local random = 7
  local function draw(n)
    random = (random * 1103515245 + 12345) % 2147483648
    return random % n
  end
  for _ = 1, 40 do
    local ranks, k, tokens, experts = 1 + draw(6), 1 + draw(3), 4 + draw(20), 8 + draw(9)
    local counts, given = {}, {}
    for e = 1, experts do counts[e] = 50 + draw(40) end
    local write = core.trace_write
    core.trace_write = function(t, lists) given = { t, lists } return "path" end
    local made = with({ f = core.json_encode(counts) }, loads.import,
      { files = { "f" }, to = "t", ranks = ranks, k = k, tokens = tokens })
    core.trace_write = write
    assert(made == "path", made)
    local sum, all = 0, 0
    for _, n in ipairs(counts) do sum = sum + n end
    for e, n in ipairs(counts) do
      local of_expert, least, most = 0, math.huge, 0
      for _, list in ipairs(given[2]) do
        of_expert = of_expert + list[e]
        least, most = math.min(least, list[e]), math.max(most, list[e])
      end
      assert(most - least <= 1, "an expert's choices are dealt unevenly")
      assert(math.abs(of_expert - n * tokens * k * ranks / sum) < 1, "scaled wrongly")
      all = all + of_expert
    end
    assert(all == tokens * k * ranks and #given[2] == ranks, "choices are lost")
    for _, list in ipairs(given[2]) do
      local of_rank = 0
      for _, n in ipairs(list) do of_rank = of_rank + n end
      assert(of_rank == tokens * k, "a rank has another number of choices than its tokens")
    end
  end
end)

test("a map of EPLB comes back as it was, with its reverse", function()
  local text = '{"phy2log":[[5,6,5,7,8,4,3,4,10,9,10,2,0,1,11,1],'
    .. "[7,10,6,8,6,11,8,9,2,4,5,1,5,0,3,1]]}"
  local function read(from) return with({ m = from }, moe.eplb.read, "m", { devices = 8 }) end
  local map, written = read(text), nil
  local write = core.write_output
  core.write_output = function(_, content) written = content return "w" end
  assert(moe.eplb.write(map, "w") == "w")
  core.write_output = write
  local out = core.json_decode(written, "w")
  equal(out.phy2log, core.json_decode(text, "m").phy2log, "phy2log")
  equal(read(written).of, map.of, "read again")
  for l, experts in ipairs(out.log2phy) do
    for e, slots in ipairs(experts) do
      local copies = 0
      for _, slot in ipairs(slots) do
        if slot >= 0 then
          copies = copies + 1
          assert(out.phy2log[l][slot + 1] == e - 1, "log2phy is not the reverse")
        end
      end
      assert(copies == out.logcnt[l][e], "logcnt")
    end
  end
  for from, why in pairs {
    ["[[0,1,2]]"] = "layer 1 has 3 slots; allowed: a multiple of devices = 8",
    ["[[0,0,2,3,4,5,6,7]]"] = "no slot has expert 1 (from 0) of 8",
    ["[[0,1.5,2,3,4,5,6,7]]"] = "layer 1, slot 1: 1.5 is not allowed",
    ['{"x":1}'] = "it has no map 'phy2log'",
  } do
    local got = read(from)
    assert(type(got) == "string" and got:find(why, 1, true), from .. ": " .. tostring(got))
  end
  local _, uneven = pcall(moe.eplb.policy, map)
  assert(uneven.message:find("12 experts do not divide evenly over 8 devices", 1, true))
  -- Issue 8 of EPLB: both copies of an expert on one device.
  local twice = read "[[0,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14]]"
  local ok, why = pcall(moe.eplb.policy, twice)
  assert(not ok and why.message:find("device 0 has expert 0 (from 0) twice in layer 1", 1, true))
end)
