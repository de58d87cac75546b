// A recipe that nests calls through C functions without end gets an error at its line; its process
// does not die of a full stack.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>

#include "tests/base/folder.h"
#include "tests/cli/program.h"

using moe::test::Outcome;
using moe::test::run;

namespace {

Outcome run_recipe(const std::string& text, const std::string& limits = "") {
  const moe::test::Folder folder;
  folder.write("nest.lua", text);
  return run("cd " + folder.path() + "; " + limits +
             "exec " MOEBENCH_BINARY " run nest.lua --out out --cache :memory:");
}

// Each calls itself through one kind of C function. `f(1)` starts it.
const char* const kNests[] = {
    "local function f() return (('a'):gsub('.', f)) end",
    "local function f() return (string.gsub('a', '.', f)) end",
    "local function f() return coroutine.wrap(f)() end",
    "local function f() return assert(coroutine.resume(coroutine.create(f))) end",
    "local function f() table.sort({ 1, 2 }, f) end",
    "local function f() return coroutine.wrap(function() table.sort({ 1, 2 }, f) end)() end",
    "local mt = {} local function f() return ('%s'):format(setmetatable({}, mt)) end "
    "mt.__tostring = function() return coroutine.wrap(f)() end",
    "local mt = {} local function f() table.sort { setmetatable({}, mt), setmetatable({}, mt) } "
    "end mt.__lt = function() return coroutine.wrap(f)() end",
    "local mt = {} local function f() print(setmetatable({}, mt)) end "
    "mt.__tostring = function() return coroutine.wrap(f)() end",
    "local mt = {} local function f() return setmetatable({}, mt).x .. '' end "
    "mt.__index = function(t, k) return (('a'):gsub('.', f)) end",
    // Caught at every level, and tried again.
    "local function f() local ok, e = pcall(string.gsub, 'a', '.', f) "
    "if not ok then error(e, 0) end end",
    "local n = 0 local function f() local ok, e = pcall(coroutine.wrap(f)) if ok then return end "
    "n = n + 1 if n < 9 then return coroutine.wrap(f)() end error(e, 0) end",
    "local function f() local ok, e = coroutine.resume(coroutine.create(f)) "
    "if not ok then error(e, 0) end end"};

}  // namespace

TEST_CASE(
    "calls nested through C functions without end can be caught, and are an error of a line") {
  const auto check = [](const std::string& nest, const std::string& limits) {
    const Outcome o = run_recipe("\n" + nest +
                                     " for i = 1, 3 do assert(not pcall(f, 1)) end "
                                     "assert(('abc'):gsub('.', string.upper) == 'ABC') "
                                     "print 'went on' f(1)",
                                 limits);
    INFO(limits << nest << "\n" << o.text);
    CHECK(o.exit == 1);
    CHECK(o.text.find("went on\n") != std::string::npos);
    CHECK(o.text.find("nest.lua:2: ") != std::string::npos);
    CHECK(o.text.find("stack overflow") != std::string::npos);
  };
  for (const char* nest : kNests) {
    check(nest, "ulimit -s 2048; ");
    check(nest, "ulimit -s 512; ");
  }
  check(kNests[0], "ulimit -s unlimited; ");
  check(kNests[4], "");  // the usual 8 MiB take seconds to fill
}

TEST_CASE("nested calls that fit are no error") {
  const Outcome o = run_recipe(
      "local n = 0\n"
      "local function f() n = n + 1 if n < 150 then return (('a'):gsub('.', f)) end end\n"
      "f() print(n)");
  INFO(o.text);
  CHECK(o.exit == 0);
  CHECK(o.text.find("150") != std::string::npos);
}

namespace {

const std::string kNestedModel =
    "moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16, "
    "batch_per_device = 2, experts = 4 }";

// A stack of 512 KiB; the thread sanitizer's frames alone fill that, so it gets 2 MiB.
#ifdef __SANITIZE_THREAD__
constexpr const char* kSmallStack = "ulimit -s 2048; ";
#else
constexpr const char* kSmallStack = "ulimit -s 512; ";
#endif

}  // namespace

TEST_CASE("functions that the engine calls are held to the stack of their thread") {
  const std::string train = "moe.train { ranks = 2, steps = 3, tokens = 'reference', model = ";
  struct {
    const char* what;
    std::string code;
    int exit;
  } const hooks[] = {
      {"gate",
       "local g = moe.policy.gate { name = 'mine', scope = 'token', k = 1, route = f } " + train +
           "moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16, "
           "batch_per_device = 2, experts = 4, gate = g {} } }",
       1},
      {"placement",
       "local p = moe.policy.placement { name = 'mine', shadows = 0, place = f } " + train +
           kNestedModel + ", system = moe.system 'x' { p {} } }",
       3},
      {"schedule",
       "local p = moe.policy.schedule { name = 'mine', apply = f } " + train + kNestedModel +
           ", system = moe.system 'x' { p {} } }",
       1},
      {"pass",
       "local p = moe.policy.pass { name = 'mine', at = 'step', apply = f } " + train +
           kNestedModel + ", system = moe.system 'x' { p {} } }",
       1},
      {"pick",
       "local p = moe.policy.schedule { name = 'mine', apply = function(s) s:discipline('comm', { "
       "pick = f }) end } " +
           train + kNestedModel + ", system = moe.system 'x' { p {} } }",
       1},
      {"case", "return moe.experiment { name = 'x', over = { n = { 1 } }, case = f }", 1},
  };
  for (const auto& hook : hooks) {
    for (const auto& [nest, limits] :
         {std::pair(kNests[0], kSmallStack),
          {"local function f() coroutine.wrap(f)() end", kSmallStack}}) {
      const Outcome o =
          run_recipe("local moe = require 'moe'\n" + std::string(nest) + "\n" + hook.code, limits);
      INFO(hook.what << limits << nest << "\n" << o.text);
      CHECK(o.exit == hook.exit);
      CHECK(o.text.find("nest.lua:2: ") != std::string::npos);
      CHECK(o.text.find("stack overflow") != std::string::npos);
    }
  }
}
