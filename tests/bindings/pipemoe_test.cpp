// moe.pipemoe from recipes, with the engine behind it.
#include <catch2/catch.hpp>

#include "tests/bindings/fixture.h"

using namespace moe::lua;
using Catch::Matchers::Contains;

namespace {

const std::string kPipeMoeHead = R"(
local moe = require "moe"
local function with(t, more) for k, v in pairs(more) do t[k] = v end return t end
local function lines(more)
  return with({ alpha_a = 2.09e-4, beta_a = 3.54e-10, n_d = 1e7, alpha_e = 1.238e-4,
    beta_e = 8.2e-14, n_e = 1e10 }, more or {})
end
local function near(a, b) assert(math.abs(a - b) <= 1e-12 * b, a .. " " .. b) end
)";

std::string pipemoe_message(const std::string& text) {
  return message_of(kPipeMoeHead + text);
}

}  // namespace

TEST_CASE("a recipe asks for a degree, and its time is that of the closed form and recurrence") {
  CHECK(pipemoe_message(R"(
local d = moe.pipemoe.degree(lines())
for _, by in ipairs { "closed_form", "recurrence" } do
  near(moe.pipemoe.time(lines { degree = d.degree, by = by }), d.time_s)
end
for r = 1, 64 do assert(moe.pipemoe.time(lines { degree = r }) >= d.time_s) end
for _, objective in ipairs { "forward", "step" } do
  local exact = moe.pipemoe.degree(lines { objective = objective })
  near(moe.pipemoe.degree(lines { objective = objective, method = "brute" }).time_s, exact.time_s)
end
assert(moe.pipemoe.degree(lines { allowed = { 16, 8 } }).degree == 8)
assert(moe.pipemoe.degree(lines { allowed = { 16, 8 }, method = "paper" }).degree == 8)
)") == "(no error)");
}

TEST_CASE("degrees that cannot be are refused at the recipe's line") {
  CHECK_THAT(pipemoe_message("moe.pipemoe.degree(lines { allowed = {} })"),
             Contains("recipe.lua:9: moe.pipemoe.degree.allowed: the set is empty"));
  CHECK_THAT(pipemoe_message("moe.pipemoe.degree(lines { max_degree = 4, allowed = { 8 } })"),
             Contains("contains the degree 8; 1 to 4 is allowed"));
  CHECK_THAT(pipemoe_message("moe.pipemoe.degree(lines { max_degree = 0 })"),
             Contains("moe.pipemoe.degree.max_degree: 0 is not allowed"));
}

TEST_CASE("lines fitted on a cluster decide as the pass does") {
  CHECK(pipemoe_message(R"(
local cluster = moe.cluster.p3dn { nodes = 1 }
local model = moe.model.gpt2_moe { layers = 2, hidden = 512, heads = 8, seq = 512,
  batch_per_device = 8, experts_per_device = 1, capacity_factor = 1 }
local fit = moe.pipemoe.fit { model = model, cluster = cluster, objective = "step" }
assert(fit.capacity == 512 and fit.lines.n_d == 8 * 512 * 512 * 2, fit.lines.n_d)
assert(fit.error.transfer.worst < 0.01 and fit.lines.alpha_b > 0)
local d = moe.pipemoe.degree(with({ objective = "step" }, fit.lines))
local plan = moe.plan { model = model, cluster = cluster, system = moe.system "pipemoe_step" {} }
local text = plan:explain().text
assert(text:find(("degree %d: the layer's step predicted %.3f ms"):format(d.degree, 1e3 * d.time_s),
  1, true), text)
)") == "(no error)");
  CHECK_THAT(pipemoe_message(R"(moe.pipemoe.fit { cluster = moe.cluster.p4de { nodes = 1 },
  model = moe.model.gpt2_moe { layers = 1, hidden = 64, heads = 8, seq = 64,
    batch_per_device = 8, experts_per_device = 1 } })"),
             Contains("moe.pipemoe.fit: the model has no all-to-all, with 0 MoE layers"));
}
