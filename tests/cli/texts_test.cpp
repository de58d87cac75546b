// Texts of a recipe that want to do harm: as bytes that JSON cannot hold, on a terminal, and as
// errors that claim to be the engine's.
#include <pty.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>

#include "tests/base/folder.h"
#include "tests/cli/program.h"

using moe::test::Outcome;
using moe::test::run;

namespace {

const std::string kProgram = MOEBENCH_BINARY;
const std::string kTextModel =
    "moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16, "
    "batch_per_device = 2, experts_per_device = 2 }";

/// A recipe in a folder of its own.
class TextRecipe : public moe::test::Folder {
 public:
  explicit TextRecipe(const std::string& text) {
    write("text.lua", "local moe = require 'moe'\n" + text);
  }
  std::string command(const std::string& name = "run", const std::string& more = "") const {
    return "cd " + path() + "; exec " + kProgram + " " + name + " text.lua " +
           (name == "run" ? "--out out " : "") + "--cache :memory: " + more;
  }
};

/// What the command writes to a terminal that is its standard output and its standard error.
std::string on_terminal(const std::string& command) {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  REQUIRE(child >= 0);
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(terminal, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  close(terminal);
  int status = 0;
  waitpid(child, &status, 0);
  return text;
}

std::string experiment(const std::string& fields, const std::string& name = "'x'") {
  return "return moe.experiment { name = " + name + ", " + fields + " }";
}
const std::string kSimulated =
    "model = " + kTextModel +
    ", cluster = moe.cluster.p4de { nodes = 1 }, systems = { moe.system 'raf' {} }";

}  // namespace

TEST_CASE("a recipe cannot make an error of the engine's kinds") {
  const char* const forged[] = {
      "error { kind = '%', message = 'forged' }",
      "error(setmetatable({ kind = '%', message = 'forged' }, { __tostring = function() return 'x' "
      "end }))",
      "local ok, e = pcall(require, 'none') e.kind = '%' e.message = 'forged' error(e, 0)",
      "local ok, e = pcall(moe.system, '') rawset(e, 'kind', '%') error(e, 0)",
      "local ok, e = pcall(moe.system, '') local f = {} for k, v in pairs(e) do f[k] = v end "
      "f.kind = '%' error(setmetatable(f, getmetatable(e) or nil), 0)",
      "coroutine.wrap(function() error { kind = '%', message = 'forged' } end)()",
      "return moe.experiment { name = 'x', case = function() error { kind = '%' } end }"};
  const char* const kinds[] = {"internal", "run", "command", "stop"};
  const size_t texts = std::size(forged);
  for (size_t i = 0; i < texts + 3; ++i) {  // the first in all kinds
    std::string code = forged[i < texts ? i : 0];
    code.replace(code.find('%'), 1, kinds[i < texts ? i % 4 : i - texts + 1]);
    const TextRecipe recipe(code);
    INFO(code);
    CHECK(run(recipe.command(i % 2 == 0 ? "run" : "check")).exit == 1);
  }
  const std::string gate =
      "local g = moe.policy.gate { name = 'g', scope = 'token', k = 1, route = function() error { "
      "kind = 'internal', message = 'forged' } end } moe.train { ranks = 2, steps = 1, tokens = "
      "'reference', model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, "
      "seq = 16, batch_per_device = 2, experts = 4, gate = g {} } }";
  CHECK(run(TextRecipe(gate).command()).exit == 1);
}

TEST_CASE("an error of the engine that a recipe raises again keeps its kind") {
  const TextRecipe recipe(
      "local ok, e = pcall(function() return moe.train { ranks = 2, steps = 4, "
      "tokens = 'reference', optimizer = { lr = 1e30 }, model = moe.model.gpt2_moe { vocab = 256, "
      "layers = 2, hidden = 32, heads = 4, seq = 16, batch_per_device = 2, experts = 4 } } "
      "end)\nassert(not ok and e.kind == 'run') error(e, 0)");
  const Outcome o = run(recipe.command());
  INFO(o.text);
  CHECK(o.exit == 3);
}

TEST_CASE("a text that is not UTF-8 is refused at its line, by the name of its field") {
  struct {
    std::string code, field;
  } const cases[] = {
      {experiment(kSimulated, "'a\\255'"), "experiment.name"},
      {experiment(kSimulated + ", title = '\\128'"), "experiment.title"},
      {experiment("over = { n = { 'a', '\\237\\160\\128' } }, case = function() return { " +
                  kSimulated + " } end"),
       "experiment.over.n.2"},
      {experiment("params = { n = '\\255' }, case = function() return { " + kSimulated + " } end"),
       "experiment.params.n"},
      {"moe.policy.gate { name = '\\255', scope = 'token', k = 1, route = print }",
       "moe.policy.gate.name"},
      {"moe.policy.schedule { name = 'x\\255', apply = print }", "moe.policy.schedule.name"},
      {"moe.train { ranks = 2, steps = 1, text = '\\255.txt', model = " + kTextModel + " }",
       "moe.train.text"},
      {"moe.train { ranks = 2, steps = 1, tokens = 'reference', checkpoint_to = 'a\\255', model "
       "= " +
           kTextModel + " }",
       "moe.train.checkpoint_to"},
      {"moe.assumed { value = 1, lo = 0, hi = 2, why = '\\255' }", "moe.assumed.why"}};
  for (const auto& c : cases) {
    const Outcome o = run(TextRecipe(c.code).command());
    INFO(c.code << "\n" << o.text);
    CHECK(o.exit == 1);
    CHECK(o.text.find("text.lua:2: " + c.field) != std::string::npos);
    CHECK(o.text.find("UTF-8") != std::string::npos);
  }
  const TextRecipe recipe(
      experiment("params = { n = 'x' }, case = function() return { " + kSimulated + " } end"));
  const Outcome set = run(recipe.command("run", "--set n=$(printf '\\377')"));
  INFO(set.text);
  CHECK(set.exit == 2);
  CHECK(set.text.find("n=\\xff") != std::string::npos);
  CHECK(set.text.find("UTF-8") != std::string::npos);
}

TEST_CASE("names cannot act on a terminal: tables, progress, errors, prints") {
  const std::string evil = "a\\27[31m\\194\\155b\\226\\128\\174\\r";
  const std::string shown = "a\\x1b[31m\\x9bb\\u202e\\x0d";
  const std::string codes[] = {
      experiment(kSimulated, "'" + evil + "'"),
      experiment("over = { n = { '" + evil + "', 'b' } }, case = function(p) local c = { " +
                 kSimulated + " } c.cluster = moe.cluster.p4de { nodes = p.n == 'b' and 2 or 1 } " +
                 "return c end"),
      "error('" + evil + "')",
      "error { message = '" + evil + "' }",
      "moe.train { ['" + evil + "'] = 1 }",
      "moe.model[ '" + evil + "']()",
      "print(setmetatable({}, { __tostring = function() return '" + evil + "' end }))",
      "print(moe.table { { '" + evil + "' }, { 1 } })"};
  for (const std::string& code : codes) {
    std::string text = on_terminal(TextRecipe(code).command());
    INFO(code << "\n" << text);
    const std::string clear = "\x1b[K";  // of the status line, where the run takes long
    for (size_t at; (at = text.find(clear)) != std::string::npos;) text.erase(at, clear.size());
    CHECK(text.find(shown) != std::string::npos);
    CHECK(text.find('\x1b') == std::string::npos);
    CHECK(text.find("\xc2\x9b") == std::string::npos);
    CHECK(text.find("\xe2\x80\xae") == std::string::npos);
  }
}

TEST_CASE("what is typed cannot act on a terminal through the command line's own errors") {
  for (const char* typed : {"run a.lua --b$(printf '\\033')[31m", "list $(printf '\\033')[31m",
                            "run a.lua b$(printf '\\033')[31m", "report $(printf '\\033')[31m"}) {
    const Outcome o = run(std::string(MOEBENCH_BINARY) + " " + typed);
    INFO(typed << "\n" << o.text);
    CHECK(o.exit != 0);
    CHECK(o.text.find("\\x1b[31m") != std::string::npos);
    CHECK(o.text.find('\x1b') == std::string::npos);
  }
}

TEST_CASE("what a recipe prints into a file is there byte for byte") {
  CHECK(run(TextRecipe("print('a\\27[31m\\0b\\255', 1, nil)").command()).text ==
        std::string("a\x1b[31m\0b\xff\t1\tnil\n", 16));
}

TEST_CASE("a recipe prints once, though each rank evaluates it for its own gate") {
  const Outcome o = run(TextRecipe(R"(print "before"
local moe = require "moe"
local g = moe.policy.gate { name = "g", scope = "token", weight = "prob", k = 1,
  route = function(ctx) for t = 1, ctx.tokens do ctx:take(t, 1) end end }
local m = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 2, seq = 16,
  batch_per_device = 2, experts_per_device = 1, gate = g {} }
local ok = pcall(moe.train, { model = m, ranks = 2, steps = 1, tokens = "reference" })
print("after", ok))")
                            .command());
  CHECK(o.exit == 0);
  CHECK_THAT(o.text, Catch::Matchers::StartsWith("before\nafter\ttrue\n"));
}
