// moe.prophet from recipes, with the engine behind it.
#include <catch2/catch.hpp>

#include "tests/bindings/fixture.h"

using namespace moe::lua;
using Catch::Matchers::Contains;

namespace {

// Figure 6 of the paper in numbers: 5, 2 and 2 inputs.
const std::string kProphetHead = R"(
local moe = require "moe"
local G = { { 3, 2, 0 }, { 0, 1, 1 }, { 0, 0, 2 } }
local function plan(more)
  local t = { routed = G, input_bytes = 10, expert_bytes = 3, bytes_per_s = 20, inputs_per_s = 4,
    alpha = 0.5 }
  for k, v in pairs(more or {}) do t[k] = v end
  return moe.prophet.plan(t)
end
local function place(policy, more)
  local t = { policy = policy, routed = G, input_bytes = 10, expert_bytes = 3, bytes_per_s = 20,
    inputs_per_s = 4 }
  for k, v in pairs(more or {}) do t[k] = v end
  return moe.prophet.place(t)
end
local function same(a, b)
  assert(#a == #b)
  for i = 1, #b do assert(a[i] == b[i], table.concat(a, " ")) end
end
local function near(a, b) assert(math.abs(a - b) <= 1e-12 * b, a .. " " .. b) end
)";

std::string prophet_message(const std::string& text) {
  return message_of(kProphetHead + text);
}

}  // namespace

TEST_CASE("a recipe plans figure 6: who is copied where, and what it takes by the model") {
  CHECK(prophet_message(R"(
local p = plan { n = 1 }
assert(#p.selected == 2)
assert(p.selected[1].expert == 1 and p.selected[2].expert == 2)
same(p.selected[1].devices, { 2 })
same(p.selected[2].devices, { 3 })
same(p.computed, { 3, 3, 3 })
same(p.received, { 0, 0, 0 })
same(p.computed_without, { 5, 2, 2 })
same(p.received_without, { 2, 1, 0 })
near(p.time_without_s, 4 * 2 * 10 / 20 + 3 * 5 / 4)
near(p.time_s, 3 * 3 / 4 + 2 * 2 * 2 * 3 / (3 * 20))
near(p.balance_without, math.sqrt(2))
assert(p.balance == 0 and p.rb == math.huge)
near(plan { n = 1, copy_bytes_per_s = 40 }.time_s, 3 * 3 / 4 + 2 * 2 * 2 * 3 / (3 * 40))
near(plan { n = 1, equation = 8 }.time_s, 3 * 3 / 4)
assert(plan { n = 1, expert_bytes = 3e6, equation = 8, fnec_s = 1e6, bnec_s = 1e6 }.time_s < 3)
assert(#plan { max_selected = 1 }.selected <= 1)
)") == "(no error)");
}

TEST_CASE("devices may have several experts, and a plan that gains nothing is empty") {
  CHECK(prophet_message(R"(
local p = plan { routed = { { 0, 9 }, { 0, 1 }, { 0, 0 }, { 0, 0 } }, expert_bytes = 0 }
assert(#p.selected == 1 and p.selected[1].expert == 1)
same(p.selected[1].devices, { 2 })
p = plan { expert_bytes = 1e9 }
assert(#p.selected == 0 and p.time_s == p.time_without_s and p.rb == 1)
p = plan { routed = { { 7 } } }
assert(#p.selected == 0 and p.computed[1] == 7)
)") == "(no error)");
}

TEST_CASE("any policy is asked on the same counts, and prophet's is what plan says") {
  CHECK(prophet_message(R"(
local planned, placed = plan(), place("prophet", { options = { alpha = 0.5, hidden = 0 } })
near(placed.time_s, planned.time_s)
near(placed.time_without_s, planned.time_without_s)
same(placed.computed, planned.computed)
same(placed.holders[1], { 1, 2 })
same(placed.holders[2], { 2, 3 })
same(placed.holders[3], { 3 })
local top = place("top_k", { options = { k = 1 } })
same(top.holders[1], { 1, 2, 3 })
same(top.computed, { 3, 4, 2 })
near(top.time_s, 4 * 1 * 10 / 20 + 3 * 4 / 4 + 2 * 3 * 3 / (3 * 20))
assert(top.move_s == 0)
local even = place("eplb", { residents = 2, state_bytes = 6 })
assert(even.balance < even.balance_without and #even.holders[1] > 1)
assert(even.move_s >= (3 + 6) / 20 and even.break_even_steps > 0)
assert(place("fixed").rb == 1 and place("fixed").break_even_steps == 0)
)") == "(no error)");
  CHECK_THAT(prophet_message("place 'prophe'"), Contains("recipe.lua:") &&
                                                    Contains("unknown placement policy 'prophe'") &&
                                                    Contains("Did you mean 'prophet'?"));
  CHECK_THAT(prophet_message("place('top_k', { options = { k = 1, n = 2 } })"),
             Contains("unknown option of top_k 'n', have: k"));
  CHECK_THAT(prophet_message("place('top_k', { options = { k = 0 } })"),
             Contains("top_k.k = 0 is not allowed; give a whole"));
  CHECK_THAT(prophet_message("place('top_k', { shadows = 0 })"),
             Contains("top_k: placement.shadows = 0"));
  CHECK_THAT(prophet_message("place('top_k', { options = { k = '2' } })"),
             Contains("moe.prophet.place.options.k: '2' is not allowed; give a number"));
}

TEST_CASE("what cannot be planned is refused at the recipe's line") {
  CHECK_THAT(prophet_message("plan { routed = { { 1, 2 }, { 3 } } }"),
             Contains("moe.prophet.plan.routed[2]: has 1 numbers, but routed[1] has 2"));
  CHECK_THAT(
      prophet_message("moe.prophet.plan { input_bytes = 1, expert_bytes = 1, bytes_per_s = 1,\n"
                      "inputs_per_s = 1, routed = {\n  { 1, 0 / 0 } } }"),
      Contains("recipe.lua:23: moe.prophet.plan.routed[1][2]: ") &&
          Contains("is not allowed; give an integer"));
  CHECK_THAT(prophet_message("plan { routed = { { 1, -2 } } }"), Contains("routed[1][2]: -2"));
  CHECK_THAT(prophet_message("plan { routed = {} }"),
             Contains("moe.prophet.plan.routed: the list is empty"));
  CHECK_THAT(prophet_message("plan { n = 3 }"),
             Contains("moe.prophet.plan.n: 3 is not allowed; give an integer from 0 to 2"));
  CHECK_THAT(prophet_message("plan { n = 'all' }"), Contains("n: 'all' is not allowed"));
  CHECK_THAT(prophet_message("plan { equation = 7 }"),
             Contains("equation: 7 is not allowed; give 6 or 8"));
  CHECK_THAT(prophet_message("plan { bytes_per_s = 0 }"),
             Contains("moe.prophet.plan.bytes_per_s: 0"));
  CHECK_THAT(prophet_message("plan { alpha = -1 }"), Contains("moe.prophet.plan.alpha: -1"));
  CHECK_THAT(prophet_message("plan { expert_byte = 1 }"), Contains("Did you mean 'expert_bytes'?"));
  CHECK_THAT(prophet_message("moe.prophet.plan { routed = G }"), Contains(": is missing"));
}
