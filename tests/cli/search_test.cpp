// moe.search in the real program.
#include <nlohmann/json.hpp>

#include "tests/base/folder.h"
#include "tests/cli/program.h"

namespace moe::test {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

const std::string kHead = R"(
local moe = require "moe"
local model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 512, heads = 4, seq = 256,
  batch_per_device = 4, experts_per_device = 2, gate = "switch" }
local cluster = moe.cluster.p3dn { nodes = 2 }
)";

/// A folder with a recipe, and the program run on it.
class Recipe : public Folder {
 public:
  explicit Recipe(const std::string& text) { write("recipe.lua", kHead + text); }

  Outcome run(const std::string& file = "recipe.lua", const std::string& out = "out") const {
    return command("run " + file + " --cache c.sqlite --out " + out);
  }
  Outcome check() const { return command("check recipe.lua"); }
  /// The program with these arguments, in the folder.
  Outcome command(const std::string& arguments) const {
    return test::run("cd " + path() +
                     "; exec timeout " MOE_PROGRAM_TIMEOUT " " MOEBENCH_BINARY " " + arguments);
  }
  json results(const std::string& out = "out") const {
    return json::parse(text(out + "/results.json"));
  }
};

TEST_CASE("a search finds the best mix of a small space, and its recipe gives the same time") {
  const Recipe recipe(R"(
    local names = { "irregular_a2a", "capacity_pipeline", "partition", "dw_schedule", "serial",
      "all_reduce" }
    local s = moe.search { model = model, cluster = cluster, techniques = names,
      options = { capacity_pipeline = { degree = { 2, 4 } }, partition = { max_parts = { 4 } } } }
    local R = moe.run(moe.experiment { name = "all", over = { rows = { "", "irregular_a2a" },
        parts = { 1, 2, 4 }, batch = { "", "partition" }, weights = { "", "dw_schedule" },
        place = { "after", "ready 25", "ready 0" } },
      case = function(p)
        local t = { all_reduce = { lane = p.place == "after" and "comm" or "comm_reduce",
          place = p.place == "after" and "after" or "ready",
          bucket_bytes = p.place == "ready 0" and 0 or 25 * 2 ^ 20 } }
        if p.rows ~= "" then t[#t + 1] = moe.pass.irregular_a2a {} end
        if p.parts > 1 then t[#t + 1] = moe.pass.capacity_pipeline { degree = p.parts } end
        if p.batch ~= "" then t[#t + 1] = moe.pass.partition { max_parts = 4 } end
        if p.weights ~= "" then t[#t + 1] = moe.pass.dw_schedule {} end
        if #t == 0 then t[1] = moe.pass.capacity_pipeline { degree = 1 } end
        return { model = model, cluster = cluster, systems = { moe.system "x" (t) } }
      end })
    print("least", R:get "iteration_ms":min(), s.best.iteration_ms, s.exhaustive, s.space)
    for _, one in ipairs(s.contributions) do assert(one.without_ms > one.best_ms) end
    for i = 2, #s.front do
      assert(s.front[i].iteration_ms >= s.front[i - 1].iteration_ms)
      assert(s.front[i].peak_bytes < s.front[i - 1].peak_bytes)
    end
    assert(s.front[1].iteration_ms <= s.best.iteration_ms)
    assert(s.bound_ms <= s.best.iteration_ms and s.least_bound_ms <= s.bound_ms)
  )");
  const Outcome o = recipe.run();
  INFO(o.text);
  REQUIRE(o.exit == 0);
  double least = 0, best = 1;
  const size_t at = o.text.find("\nleast\t");
  REQUIRE(at != std::string::npos);
  REQUIRE(sscanf(o.text.c_str() + at, "\nleast\t%lf\t%lf\ttrue\t144", &least, &best) == 2);
  CHECK(best == least);
  const json search = recipe.results()["searches"][0];
  CHECK(search["best"]["iteration_ms"] == best);
  const Outcome again = recipe.run("out/search_best.lua", "best");
  INFO(again.text);
  REQUIRE(again.exit == 0);
  CHECK(recipe.results("best")["runs"][1]["iteration_ms"] == best);
  CHECK(recipe.results("best")["runs"][1]["plan_hash"] == search["best"]["plan_hash"]);
}

TEST_CASE("a search keeps to what is allowed, has policies of the recipe, and to its time") {
  const Recipe recipe(R"(
    local longest = moe.policy.schedule { name = "longest", apply = function(s, g)
      local used = {}
      for _, a2a in ipairs(g:ops { kind = "all_to_all", phase = "backward" }) do
        for _, dw in ipairs(g:ops { dw = true, where = function(op)
            return not used[op.name] and s:free(op, a2a) end }) do
          s:under(dw, a2a)
          used[dw.name] = true
          break
        end
      end
    end }
    local seen = {}
    local s = moe.search { model = model, cluster = cluster, with = { longest {} },
      techniques = { "used_rows", "zero", "dw_schedule" },
      allowed = function(has)
        seen[#seen + 1] = has
        return not (has.dw_schedule or has.zero)
      end }
    local stages = {}
    for _, stage in ipairs(s.best.stages) do stages[#stages + 1] = stage.name end
    print("best:", table.concat(stages, " "), s.recipe)
    for _, run in ipairs(s.top) do assert(not run.choice:find "dw_schedule") end
    assert(type(seen[1].longest) == "boolean" and type(seen[1].zero) == "boolean")
    assert(s.not_allowed > 0 and s.too_large == 0 and s.searched_s <= s.took_s)
    local mine = s.policies[1]
    assert(#s.policies == 1 and mine.policy == "longest" and mine.n > mine.refused)
    assert(mine.best_ms == s.best.iteration_ms, "the best mix has the policy")
    local short = moe.search { model = model, cluster = cluster, budget_s = 0.3, name = "short",
      execute = { mixes = 1, steps = 3, model = { layers = 2, hidden = 64, seq = 32 } } }
    assert(not short.exhaustive and short.simulated < short.space)
    assert(#short.executed.pairs == 1 and #short.executed.runs == 2)
  )");
  const Outcome o = recipe.run();
  INFO(o.text);
  REQUIRE(o.exit == 0);
  CHECK_THAT(o.text, Contains("best:\tirregular_a2a used_rows longest\tnil"));
  CHECK_THAT(o.text, Contains("a better one may be among the rest"));
  CHECK_THAT(o.text, Contains("Order as predicted in "));
}

TEST_CASE("a search names the mixes that the ranks refuse, and executes the next best ones") {
  const Recipe recipe(R"(
    local s = moe.search { model = model, cluster = cluster, contributions = false,
      techniques = { "hierarchical_a2a", "used_rows" }, execute = { mixes = 3, steps = 3,
        model = { layers = 2, hidden = 64, seq = 32 } } }
    assert(#s.contributions == 0 and #s.order == 0)
    assert(s.space == 4 and #s.executed.refused > 0, #s.executed.refused)
    for _, one in ipairs(s.executed.refused) do
      assert(one.techniques:find "hierarchical_a2a" and one.why:find "one device", one.why)
    end
    local names = {}
    for _, run in ipairs(s.executed.runs) do
      names[#names + 1] = run.system
      for _, stage in ipairs(run.stages) do assert(stage.name ~= "hierarchical_a2a") end
    end
    print("executed:", #names, names[1])
  )");
  const Outcome o = recipe.run();
  INFO(o.text);
  REQUIRE(o.exit == 0);
  CHECK_THAT(o.text, Contains("executed:\t2\tplain"));
  CHECK_THAT(o.text, Contains("(hierarchical_a2a") && Contains(" is not executed: "));
}

TEST_CASE(
    "a check of a search plans the plain mix and each of its policies, and searches nothing") {
  const Recipe recipe(R"(
    local broken = moe.policy.schedule { name = "broken", apply = function(s, g)
      s:before(g:ops {}[2], g:ops {}[1])
    end }
    moe.search { model = model, cluster = cluster, with = { broken {} } }
  )");
  const Outcome o = recipe.check();
  INFO(o.text);
  CHECK(o.exit == 0);
  CHECK_THAT(o.text, Contains("ok: search, ") && Contains("broken alone is refused: "));
  CHECK(o.text.find("simulated in") == std::string::npos);
}

TEST_CASE("however short the time, a search sees the plain mix and each policy alone") {
  const Recipe recipe(R"(
    local bad = moe.policy.placement { name = "bad", params = { a = 1, b = 2 },
      place = function(ctx, load, p) return p:shadow(1, 0) end }
    local routed = moe.model.gpt2_moe { layers = 2, hidden = 64, heads = 4, seq = 32,
      batch_per_device = 2, experts_per_device = 1, routing = moe.workload "zipf" {} }
    local s = moe.search { model = routed, cluster = cluster, with = { bad { b = 3 } },
      budget_s = 0.1 }
    local mine = s.policies[1]
    assert(s.simulated >= 2 and mine.n >= 1 and mine.refused == mine.n and mine.why:find "device 0")
    assert(mine.policy == "bad b=3", mine.policy)
  )");
  const Outcome o = recipe.run();
  INFO(o.text);
  CHECK(o.exit == 0);
  CHECK_THAT(o.text, Contains("refused in all of them: "));
}

TEST_CASE("a search under a routing prunes by no bound and claims none") {
  const Recipe recipe(R"(
    local skewed = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 512, heads = 4, seq = 256,
      batch_per_device = 4, experts_per_device = 2, gate = "top_k", k = 2,
      routing = moe.workload "zipf" { s = 1, drift = 0.1 } }
    local s = moe.search { model = skewed, cluster = cluster,
      techniques = { "used_rows", "dw_schedule", "swap" } }
    assert(s.bound_ms == nil and s.least_bound_ms == nil)
    assert(s.simulated == s.space, s.simulated)
  )");
  const Outcome o = recipe.run();
  INFO(o.text);
  CHECK(o.exit == 0);
  CHECK_THAT(o.text, Contains("No bound on the best mix's time is given"));
  CHECK_THAT(o.text, !Contains("inf"));
}

TEST_CASE("the example of `moebench doc search` runs") {
  const Outcome doc = test::run(MOEBENCH_BINARY " doc search");
  const size_t begin = doc.text.find("example:\n"), end = doc.text.find("\n  see also:");
  REQUIRE((begin != std::string::npos && end != std::string::npos));
  const Recipe recipe(doc.text.substr(begin + 9, end - begin - 9));
  const Outcome o = recipe.run();
  INFO(o.text);
  CHECK(o.exit == 0);
  CHECK_THAT(o.text, Contains("one_each"));
}

TEST_CASE("a search in which the plain mix does not fit has a page and figures") {
  const Recipe recipe(R"(
    local plain = moe.plan { model = model, cluster = cluster, system = moe.system "plain" {} }
    moe.search { model = model, cluster = cluster, techniques = { "recompute" },
      memory_bytes = 0.99 * plain:memory().peak_bytes + 0.5 })");
  const Outcome searched = recipe.run();
  INFO(searched.text);
  CHECK(searched.exit == 0);
  CHECK_THAT(searched.text, Contains("of the mixes do not fit in memory"));
  CHECK_THAT(searched.text, !Contains("The order of best and plain"));
  for (const char* const arguments : {"report out", "export out --out figures"}) {
    const Outcome o = recipe.command(arguments);
    INFO(o.text);
    CHECK(o.exit == 0);
  }
}

TEST_CASE("wrong fields of a search are named") {
  const auto message = [](const std::string& fields) {
    const Outcome o =
        Recipe("moe.search { model = model, cluster = cluster,\n  " + fields + " }").run();
    CHECK(o.exit == 1);
    return o.text;
  };
  CHECK_THAT(message("techniques = { 'dw_shedule' }"), Contains("Did you mean 'dw_schedule'"));
  CHECK_THAT(message("techniques = {}"), Contains("moe.search.techniques"));
  CHECK_THAT(message("techniques = { 'zero', nil, 'recompute' }"),
             Contains("moe.search.techniques[2]: is nil"));
  CHECK_THAT(
      message("techniques = { 'partition' }, options = { partition = { parts = { 4, 4 } } }"),
      Contains("moe.search.options.partition.parts[2]: '4' is in the list twice"));
  for (const char* const name : {"", "../x", "a/b", "a\\0b"}) {
    CHECK_THAT(message(std::string("techniques = { 'zero' }, name = '") + name + "'"),
               Contains("moe.search.name: ") && Contains("it begins the name of a file"));
  }
  CHECK_THAT(message("techniques = { 'zero', 'zero' }"),
             Contains("moe.search.techniques[2]: 'zero' is in the list twice"));
  CHECK_THAT(message("allowed = function(has) return not has.reompute end"),
             Contains("recipe.lua:7: has: unknown technique or policy 'reompute'") &&
                 Contains("Did you mean 'recompute'"));
  CHECK_THAT(message("objective = 'time'"), Contains("moe.search.objective"));
  CHECK_THAT(message("objective = {}"), Contains("give iteration_ms, peak_bytes or a list"));
  CHECK_THAT(message("options = { partition = { parts = 3 } }"),
             Contains("moe.search.options.partition.parts"));
  CHECK_THAT(message("options = { partition = { max_pats = { 3 } } }"), Contains("max_parts"));
  CHECK_THAT(message("options = { partitio = {} }"), Contains("Did you mean 'partition'"));
  CHECK_THAT(message("execute = 0"), Contains("moe.search.execute"));
  CHECK_THAT(message("with = { 1 }"), Contains("moe.search.with[1]"));
}

}  // namespace
}  // namespace moe::test
