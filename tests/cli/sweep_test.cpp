// Sweeps of simulations: in several processes, again, and after a kill.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "tests/base/folder.h"
#include "tests/cli/program.h"

namespace moe::test {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

// 3 * 12 points of 3 systems; each two batches have the same model. %s is the body of a policy.
const std::string kBatches = R"(
local moe = require "moe"
local n = 0
local first = moe.policy.schedule { name = "first", apply = function(s, g, ctx) %s end }
local batches = {}
for i = 1, 12 do batches[i] = i end
return moe.experiment { name = "sweep", over = { nodes = { 1, 2, 4 }, batch = batches },
  case = function(p) return {
    model = moe.model.gpt2_moe { layers = 4, hidden = 768, heads = 12, seq = 512,
      batch_per_device = 1 + p.batch % 6, experts_per_device = 2, gate = "switch" },
    cluster = moe.cluster.p4de { nodes = p.nodes },
    systems = { moe.system "raf" {}, moe.system "tutel" {},
      moe.system "mine" { moe.pass.irregular_a2a {}, first {} } } } end }
)";

class Sweep : public Folder {
 public:
  explicit Sweep(const std::string& policy = "") {
    const size_t at = kBatches.find("%s");
    write("sweep.lua", kBatches.substr(0, at) + policy + kBatches.substr(at + 2));
  }

  std::string command(const std::string& out, const std::string& more) const {
    return "cd " + path() +
           "; exec timeout " MOE_PROGRAM_TIMEOUT " " MOEBENCH_BINARY " run sweep.lua --out " + out +
           " " + more;
  }
  json results(const std::string& out) const { return json::parse(text(out + "/results.json")); }
  /// The runs of results.json without what differs from run to run of the program.
  json runs(const std::string& out) const {
    json all = results(out)["runs"];
    for (json& run : all) {
      run.erase("plan_ms");
      run.erase("simulate_ms");
    }
    return all;
  }
  size_t lines(const std::string& out) const {
    const std::string all = text(out + "/runs.jsonl");
    return static_cast<size_t>(std::count(all.begin(), all.end(), '\n'));
  }
};

constexpr size_t kRuns = 3 * 12 * 3;

TEST_CASE("a sweep has the same results with any number of processes, and again from the cache") {
  const Sweep sweep;
  REQUIRE(run(sweep.command("one", "--workers 1 --cache :memory:")).exit == 0);
  const json one = sweep.runs("one");
  REQUIRE(one.size() == kRuns);
  CHECK(sweep.results("one")["experiments"][0]["simulations"] ==
        json{{"done", kRuns / 2}, {"found", kRuns / 2}});
  REQUIRE(run(sweep.command("three", "--workers 3 --cache c.sqlite")).exit == 0);
  CHECK((sweep.runs("three") == one));
  const Outcome again = run(sweep.command("again", "--workers 2 --cache c.sqlite"));
  CHECK_THAT(again.text, Contains("108 of 108 simulations were done before"));
  CHECK((sweep.runs("again") == one));
}

TEST_CASE("a sweep that was killed goes on where it ended") {
  const Sweep sweep;
  const pid_t child = fork();
  if (child == 0) {
    const std::string command = sweep.command("out", "--workers 2 --cache c.sqlite >/dev/null");
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(99);
  }
  // `timeout` forwards SIGTERM, but not SIGKILL, so the group of processes is killed.
  setpgid(child, child);
  while (sweep.lines("out") < 40) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const size_t before = sweep.lines("out") - 2;
  kill(-child, SIGKILL);
  waitpid(child, nullptr, 0);
  REQUIRE(run(sweep.command("out", "--workers 2 --cache c.sqlite")).exit == 0);
  CHECK(sweep.runs("out").size() == kRuns);
  const json counts = sweep.results("out")["experiments"][0]["simulations"];
  CHECK(counts["found"].get<size_t>() >= std::min(before, kRuns / 2));
  CHECK(counts["done"].get<size_t>() <= kRuns - before);
}

TEST_CASE("a policy that keeps something between its calls sees all calls in order") {
  const Sweep sweep(
      "n = n + 1 local a = g:ops { kind = 'all_to_all', phase = 'backward' } "
      "local at = a[1 + math.floor(n / 5) % #a] "
      "local dw = g:ops { dw = true, where = function(op) return s:free(op, at) end } "
      "if dw[1] then s:under(dw[1], at) end");
  REQUIRE(run(sweep.command("one", "--workers 1 --cache :memory:")).exit == 0);
  const json one = sweep.runs("one");
  std::set<std::string> plans;
  for (const json& run : one) {
    if (run["system"] == "mine" && run["devices"] == 8) plans.insert(run["plan_hash"]);
  }
  CHECK(plans.size() > 6);  // more than there are models
  REQUIRE(run(sweep.command("two", "--workers 2 --cache c.sqlite")).exit == 0);
  CHECK((sweep.runs("two") == one));
  REQUIRE(run(sweep.command("again", "--workers 2 --cache c.sqlite")).exit == 0);
  CHECK((sweep.runs("again") == one));
}

TEST_CASE("a policy that prints does so for each of its calls, in order") {
  const Sweep sweep(
      "if ctx.model.batch_per_device == 6 then print('six ' .. ctx.cluster.devices) end");
  const Outcome o = run(sweep.command("out", "--workers 2 --cache c.sqlite"));
  REQUIRE(o.exit == 0);
  std::string printed;
  std::istringstream in(o.text);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("six")) printed += line + ";";
  }
  CHECK(printed == "six 8;six 16;six 32;six 8;six 16;six 32;");
}

TEST_CASE("an error of a system in a sweep is raised after the results before it") {
  const Sweep sweep("if ctx.model.batch_per_device == 4 then error('not four') end");
  const Outcome o = run(sweep.command("out", "--workers 2 --cache c.sqlite"));
  CHECK(o.exit == 1);
  CHECK_THAT(o.text, Contains("sweep.lua:4: not four"));
  CHECK(sweep.runs("out").size() == 20);  // the points before batch 3, and raf and tutel there
}

}  // namespace
}  // namespace moe::test
