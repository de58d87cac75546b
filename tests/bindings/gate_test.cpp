#include <catch2/catch.hpp>
#include <numeric>

#include "bindings/policy/gate.h"
#include "engine/base/rng.h"
#include "tests/bindings/fixture.h"

using namespace moe;
using namespace moe::lua;
using Catch::Matchers::Contains;

namespace {

/// One rank's tokens with seeded scores, and room for their routing.
struct GateTrial {
  GateTrial(int64_t tokens, int64_t experts, int64_t k, int64_t capacity)
      : scores(static_cast<size_t>(tokens * experts)),
        ids(static_cast<size_t>(tokens)),
        expert(static_cast<size_t>(tokens * k)),
        choice_slot(expert.size()),
        slot_choice(static_cast<size_t>(experts * capacity)),
        counts(static_cast<size_t>(experts)) {
    Rng rng(11);
    for (float& s : scores) s = static_cast<float>(rng.uniform());
    for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(256));
    in.tokens = tokens;
    in.experts = experts;
    in.k = k;
    in.capacity = capacity;
    in.scores = scores.data();
    in.ids = ids.data();
    maps = {
        tokens,       experts, k, capacity, expert.data(), choice_slot.data(), slot_choice.data(),
        counts.data()};
  }
  GateInput in;
  RoutingMaps maps;
  std::vector<float> scores;
  std::vector<int32_t> ids, expert, choice_slot, slot_choice, counts;
};

/// Calls the Lua function text(ctx, s) on the trial.
void route(LibraryState& lua, GateTrial& trial, const std::string& body) {
  RoutingBuilder builder(trial.maps);
  builder.limit(trial.in.scores);
  lua.run("return function(ctx, s) " + body + " end", 1);
  const GatePolicy policy{.devices = 4, .devices_per_node = 2};
  const GateViews views(lua.L(), trial.in, builder, policy);
  call(lua.L(), 2, 0);
}

void check_as_builtin(const char* gate, int64_t k, const std::string& body) {
  INFO(gate);
  LibraryState lua;
  GateTrial mine(64, 8, k, 10), theirs(64, 8, k, 10);
  route(lua, mine, body);
  RoutingBuilder builder(theirs.maps);
  builtin_gate(gate).route(theirs.in, builder);
  CHECK(mine.expert == theirs.expert);
  CHECK(mine.choice_slot == theirs.choice_slot);
  CHECK(mine.slot_choice == theirs.slot_choice);
}

std::string gate_error(const std::string& body) {
  LibraryState lua;
  GateTrial trial(4, 3, 1, 2);
  try {
    route(lua, trial, body);
  } catch (const UserError& e) {
    return e.what();
  }
  return "(no error)";
}

}  // namespace

TEST_CASE("a gate sees on which device and node an expert is") {
  LibraryState lua;
  GateTrial trial(4, 8, 2, 10);  // on 4 devices, 2 per node
  route(lua, trial,
        "assert(ctx.devices == 4 and ctx.nodes == 2) "
        "assert(ctx:device_of(1) == 1 and ctx:device_of(8) == 4) "
        "assert(ctx:node_of(4) == 1 and ctx:node_of(5) == 2) "
        "assert(not pcall(ctx.node_of, ctx, 9))");
}

TEST_CASE("a Lua gate sees the experts that its tokens cannot choose, and cannot take them") {
  LibraryState lua;
  GateTrial trial(16, 4, 2, 16);
  limit_to_groups({2, 1}, trial.scores, 4);
  route(lua, trial, R"(
    local best = s:topk_rows(3)
    for t = 1, ctx.tokens do
      local e = best(t)
      local other = (e + 1) % 4 + 1  -- in the other group
      assert(s(t, e) > -math.huge and s(t, other) == -math.huge)
      assert(type(best(t, 2)) == "number" and best(t, 3) == false)
      local good, why = pcall(ctx.take, ctx, t, other)
      assert(not good and tostring(why):find "which is in none of its best groups")
    end
    ctx:fill(s:topk_rows(2)))");
  for (const int32_t e : trial.expert) CHECK(e >= 0);
}

TEST_CASE("gates written in Lua route as the built-in ones do") {
  check_as_builtin("switch", 1, "ctx:fill(s:argmax_rows())");
  check_as_builtin("switch", 1,
                   "for t = 1, ctx.tokens do local best = 1\n"
                   "for e = 2, ctx.experts do if s(t, e) > s(t, best) then best = e end end\n"
                   "ctx:take(t, best) end");
  check_as_builtin("top2", 2, "ctx:fill(s:topk_rows(2))");
  check_as_builtin("top2", 2,
                   "local c, best = {}, s:topk_rows(2)\n"
                   "for t = 1, #best do c[t] = { best(t, 1), best(t, 2) } end ctx:fill(c)");
  check_as_builtin("bpr", 1, "ctx:fill(s:argmax_rows(), s:order_rows())");
  check_as_builtin("hash", 1,
                   "for t = 1, ctx.tokens do ctx:take(t, ctx.ids(t) % ctx.experts + 1) end");
  check_as_builtin("expert_choice", 8,
                   "for e = 1, ctx.experts do local best = s:topk_col(e, ctx.capacity)\n"
                   "for i = 1, #best do ctx:take(best(i), e) end end");
}

TEST_CASE("take says whether the token was kept, left how many places there are") {
  LibraryState lua;
  GateTrial trial(4, 3, 1, 2);
  CHECK_NOTHROW(route(lua, trial,
                      "assert(ctx:left(2) == 2) assert(ctx:take(1, 2)) assert(ctx:take(2, 2))\n"
                      "assert(ctx:left(2) == 0) assert(ctx:take(3, 2) == false)\n"
                      "assert(ctx:left(1) == 2)"));
  CHECK(trial.counts == std::vector<int32_t>{0, 2, 0});
}

TEST_CASE("sums and counts are those of the scores and choices") {
  LibraryState lua;
  GateTrial trial(64, 8, 1, 64);
  double first = 0;
  for (size_t t = 0; t < 64; ++t) first += trial.scores[t * 8];
  CHECK_NOTHROW(route(lua, trial,
                      "assert(#s:sum_cols() == 8)\n"
                      "assert(math.abs(s:sum_cols()[1] - " +
                          std::to_string(first) +
                          ") < 1e-5)\n"
                          "local counts, sum = s:argmax_rows():counts(), 0\n"
                          "for e = 1, #counts do sum = sum + counts[e] end assert(sum == 64)"));
}

TEST_CASE("a view refuses what lies outside of it") {
  CHECK_THAT(gate_error("s(0, 1)"),
             Contains("token 0 is not allowed; Lua counts from 1: give 1 to 4"));
  CHECK_THAT(gate_error("s(5, 1)"), Contains("token 5 is not allowed; give 1 to 4"));
  CHECK_THAT(gate_error("s(1, 4)"), Contains("expert 4 is not allowed; give 1 to 3"));
  CHECK_THAT(gate_error("s(1.5, 1)"), Contains("token 1.5 is not allowed"));
  CHECK_THAT(gate_error("s(0/0, 1)"), Contains("is not allowed"));
  CHECK_THAT(gate_error("s('1', 1)"), Contains("token string is not allowed"));
  CHECK_THAT(gate_error("s:topk_rows(4)"), Contains("k 4 is not allowed"));
  CHECK_THAT(gate_error("s:topk_col(1, 5)"), Contains("n 5 is not allowed"));
  CHECK_THAT(gate_error("ctx:take(1, 0)"), Contains("expert 0"));
  CHECK_THAT(gate_error("ctx:left(99)"), Contains("expert 99"));
  CHECK_THAT(gate_error("ctx.ids(5)"), Contains("token 5"));
  CHECK_THAT(gate_error("s:argmax_rows()(5)"), Contains("row 5"));
  CHECK_THAT(gate_error("ctx:fill({ 1, 2, 3, 4 })"), Contains("choice 4 is not allowed"));
  CHECK_THAT(gate_error("ctx:fill({ 1, 2 })"), !Contains("(no error)"));
  CHECK_THAT(gate_error("ctx:fill({ 1, { 1, 2 }, 3, 3 })"),
             Contains("row 2 of the list has 2 entries, but row 1 has 1"));
  CHECK_THAT(gate_error("ctx:fill(s:argmax_rows(), s:argmax_rows())"),
             Contains("numbers from 1 to 3, but numbers from 1 to 4 are needed"));
  CHECK_THAT(gate_error("ctx:take(1, 1) ctx:take(1, 1)"), !Contains("(no error)"));
  CHECK_THAT(gate_error("return ctx.capasity"), Contains("Did you mean 'capacity'?"));
  CHECK_THAT(gate_error("ctx.take(1, 1)"), Contains("is a ':' missing?"));
  CHECK_THAT(gate_error("s.topk_rows(ctx, 1)"), Contains("scores is needed (is a ':' missing?)"));
}

TEST_CASE("a view that a gate keeps is blind once the call is over") {
  LibraryState lua;
  {
    GateTrial trial(4, 3, 1, 2);
    route(lua, trial, "kept = { ctx = ctx, s = s, ids = ctx.ids, list = s:argmax_rows() }");
  }
  for (const char* use :
       {"kept.s(1, 1)", "kept.s:argmax_rows()", "kept.ctx:take(1, 1)", "kept.ctx:left(1)",
        "return kept.ctx.tokens", "kept.ids(1)", "kept.ctx:fill(kept.list)"}) {
    INFO(use);
    CHECK_THROWS_WITH(lua.run(use), Contains("is from a call of a gate that has ended"));
  }
  CHECK_NOTHROW(lua.run("assert(kept.list(1) >= 1 and #kept.list == 4)"));
}

TEST_CASE("a gate's random numbers depend on step, layer and tokens alone") {
  LibraryState lua;
  const auto numbers = [&](int64_t step, int64_t layer) {
    GateTrial trial(4, 3, 1, 2);
    trial.in.step = step;
    trial.in.layer = layer;
    route(lua, trial, "out = ctx.rng:uniform() .. ' ' .. ctx.rng:below(1000)");
    lua.run("return out", 1);
    const std::string text = lua_tostring(lua.L(), -1);
    lua_pop(lua.L(), 1);
    return text;
  };
  CHECK(numbers(0, 1) == numbers(0, 1));
  CHECK(numbers(0, 1) != numbers(1, 1));
  CHECK(numbers(0, 1) != numbers(0, 3));
}

TEST_CASE("a gate may drop its views, whose memory others then use") {
  LibraryState lua;
  GateTrial trial(4, 4, 1, 4);
  route(lua, trial, R"(
    ctx, s = nil, nil
    collectgarbage()
    kept = {}
    for i = 1, 10000 do kept[i] = ('%030d'):format(i) end)");
  lua.run("for i = 1, 10000 do assert(tonumber(kept[i]) == i, kept[i]) end");
}
