// Passes and schedules in Lua: deadlines, seeds, and what is documented of them. tests/lua/engine
// has what they can do.
#include <catch2/catch.hpp>

#include "bindings/host/userdata.h"
#include "bindings/policy/graph_session.h"
#include "tests/bindings/fixture.h"

using namespace moe::lua;
using Catch::Matchers::Contains;

namespace {

const std::string kPolicyModel = R"(
local moe = require "moe"
local model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 64, heads = 4, seq = 32,
  batch_per_device = 2, experts_per_device = 1 }
local cluster = moe.cluster.p4de { nodes = 1 }
local function plan(pass)
  return moe.plan { model = model, cluster = cluster, system = moe.system "mine" { pass } }
end
local function schedule(apply)
  return plan(moe.policy.schedule { name = "mine", apply = apply } {})
end
local function step_pass(apply)
  return plan(moe.policy.pass { name = "mine", at = "step", apply = apply } {})
end
)";

int nothing(lua_State*) {
  return 0;
}

}  // namespace

TEST_CASE("what recipes get has the fields and the types that are documented") {
  const std::string text = moe::read_file(MOE_SOURCE_DIR "/tests/bindings/documented.lua");
  CHECK(message_of(text, [](HostOptions& options) { options.trust = true; }) == "(no error)");
}

TEST_CASE("what a policy's ctx has of the model and the cluster is what is documented") {
  std::string of_model;
  const auto names_of = [](const nlohmann::json& table) {
    std::string names;
    for (const auto& [name, value] : table.items()) names += (names.empty() ? "" : " ") + name;
    return names;
  };
  {
    LibraryState state;
    state.run(R"(require "moe"; documented = {}
    for _, t in ipairs(require("moe.topics").all()) do
      local names = {}
      for _, m in ipairs(t.members) do
        if not m.method then names[#names + 1] = m.name end
      end
      table.sort(names)
      documented[t.name] = table.concat(names, " ")
    end)");
    of_model = state.text_of("documented.context_model");
    CHECK(state.text_of("documented.context_cluster") == names_of(cluster_table({})));
  }
  const std::string message = message_of(
      kPolicyModel + "local names = ' " + of_model +
      " '\nstep_pass(function(g, ctx)\n"
      "  for name in names:gmatch '%S+' do assert(ctx.model[name] ~= nil, name) end\n"
      "  for name in pairs(ctx.model) do assert(names:find(' ' .. name .. ' ', 1, true), name) "
      "end\n"
      "end)");
  CHECK(message == "(no error)");
}

TEST_CASE("a type whose member has no doc, no type or no function is refused with its name") {
  LibraryState state;
  const auto message_of_type = [&](const Member& member) -> std::string {
    try {
      declare_type({"lamp", "lamp", "a light", std::span(&member, 1)});
    } catch (const moe::InternalError& e) {
      return e.what();
    }
    return "(no error)";
  };
  CHECK_THAT(message_of_type({"shine", "()", "", nothing}),
             Contains("'shine' of the table of members of a lamp has no doc"));
  CHECK_THAT(message_of_type({"shine", "", "gives light", nothing}),
             Contains("member 'shine' of a lamp: its type must not be empty"));
  CHECK_THAT(message_of_type({"shine", "()", "gives light", nullptr}),
             Contains("must not be null"));
  CHECK(message_of_type({"shine", "()", "gives light", nothing}) == "(no error)");
}

TEST_CASE("a policy that does not return is stopped at its line, and the run fails", "[signals]") {
  const Folder folder;
  const auto quick = [](HostOptions& o) { o.policy_deadline_s = 0.2; };
  for (const char* wait : {"while true do end", "while true do pcall(error) end",
                           "s:discipline('comm', { pick = function() while true do end end })"}) {
    const auto failure =
        run_recipe(folder, kPolicyModel + "schedule(function(s, g)\n " + wait + " end)", quick);
    REQUIRE(failure);
    CHECK(failure->kind == "run");
    CHECK_THAT(failure->message, Contains("recipe.lua:16: a call passed the deadline of 0.2 s") &&
                                     Contains("schedule 'mine')"));
  }
}

TEST_CASE("a policy's random numbers are the same on every run and follow the seed") {
  const std::string draw = "schedule(function(s, g, ctx) error(ctx.rng:uniform() .. '', 0) end)";
  const auto other = [](HostOptions& o) { o.seed = 2; };
  const std::string once = message_of(kPolicyModel + draw);
  CHECK_THAT(once, Contains("0.") && Contains("(in schedule 'mine')"));
  CHECK(message_of(kPolicyModel + draw) == once);
  CHECK(message_of(kPolicyModel + draw, other) != once);
}
