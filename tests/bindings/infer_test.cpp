// moe.infer from recipes, with the engine behind it.
#include <catch2/catch.hpp>

#include "tests/bindings/fixture.h"

using namespace moe::lua;
using Catch::Matchers::Contains;

namespace {

// Three MoE layers of four experts, trained for two steps.
const std::string kInferHead = R"(
local moe = require "moe"
local function model(more)
  local t = { vocab = 64, layers = 3, moe_every = 1, hidden = 16, heads = 2, seq = 8,
    batch_per_device = 2, experts = 4, gate = "switch" }
  for k, v in pairs(more or {}) do t[k] = v end
  return moe.model.gpt2_moe(t)
end
local function infer(more)
  local t = { model = model(), ranks = 2, batches = 4, tokens = "reference" }
  for k, v in pairs(more or {}) do t[k] = v end
  return moe.infer(t)
end
local function train(more)
  local t = { model = model(), ranks = 2, steps = 2, tokens = "reference" }
  for k, v in pairs(more or {}) do t[k] = v end
  return moe.train(t)
end
)";

std::string infer_message(const std::string& text) {
  return message_of(kInferHead + text);
}

}  // namespace

TEST_CASE("Lina's inference in a recipe gives the predictions of one expert place each") {
  CHECK(infer_message(R"(
local trained = train { checkpoint_to = "t.ckpt" }
local fixed = infer { parameters = "t.ckpt", record = "t.trace" }
assert(fixed.parameters_digest == trained.digest and fixed.digest ~= infer().digest)
assert(#fixed.losses == 4 and #fixed.accuracy == 4 and fixed.accuracy[1] <= 1)
local profile = moe.lina.popularity { routing = fixed.record, batches = 2, path = 1 }
assert(profile.paths > 0 and profile.layers == 3 and profile.batches == 2)
local pass = moe.pass.lina_inference
for i, options in ipairs { {}, { fine_tuning = false }, { compare = "set", normalise = true },
  { estimation = false } } do
  options.path = 1
  local r = infer { parameters = "t.ckpt", system = moe.system "placed" { pass(options) },
    popularity = options.estimation ~= false and profile or nil }
  assert(r.digest == fixed.digest, "predictions differ: " .. i)
  for batch = 1, 4 do
    assert(math.abs(r.losses[batch] - fixed.losses[batch]) < 1e-5)
    for layer = 1, 3 do
      local rows, of_fixed = r.rows[batch][layer], fixed.rows[batch][layer]
      assert(rows[1] + rows[2] == of_fixed[1] + of_fixed[2])
      assert(r.phase_2[layer] or not r.placed_again[batch][layer])
    end
  end
  assert(r.phase_2[3] == (options.fine_tuning ~= false))
  assert(r.phase_2[1] == (options.estimation == false))
  assert(not fixed.phase_2[3])
end
)") == "(no error)");
}

TEST_CASE("a simulated inference has the rows and the decisions of CPU ranks with that routing") {
  CHECK(infer_message(R"(
local record = infer { record = "t.trace", batches = 6 }.record
local profile = moe.lina.popularity { routing = record, batches = 3, path = 1 }
local again = {}
for _, options in ipairs { {}, { fine_tuning = false }, { estimation = false } } do
  options.path = 1
  local t = { model = model { routing = moe.trace(record) {} }, batches = 3, first_batch = 4,
    system = moe.system "placed" { moe.pass.lina_inference(options) },
    popularity = options.estimation ~= false and profile or nil }
  local executed = infer(t)
  t.executor, t.cluster = "simulate", moe.cluster.lina { nodes = 1, devices_per_node = 2 }
  local simulated = moe.infer(t)
  assert(simulated.provenance == "simulated" and #simulated.samples_ms == 3)
  for layer = 1, 3 do
    assert(simulated.phase_2[layer] == executed.phase_2[layer])
    for batch = 1, 3 do
      local a, b = simulated.placed_again[batch][layer], executed.placed_again[batch][layer]
      assert(a == b)
      again[a] = true
      for rank = 1, 2 do
        assert(simulated.rows[batch][layer][rank] == executed.rows[batch][layer][rank])
      end
    end
  end
end
assert(again[true] and again[false])
)") == "(no error)");
}

TEST_CASE("times of a simulated inference are divided by phase, with durations that are given") {
  CHECK(infer_message(R"(
local zipf = moe.workload "zipf" { seed = 3 }
local profile = moe.lina.popularity { routing = zipf, ranks = 4, tokens = 16, experts = 4, k = 1,
  layers = 3, batches = 3, path = 1 }
assert(profile.paths > 0 and profile.layers == 3 and profile.experts == 4)
local function serve(pass, more)
  local t = { executor = "simulate", model = model { routing = zipf, capacity_factor = 4 },
    batches = 3, first_batch = 4, cluster = moe.cluster.lina { nodes = 1 },
    swaps = { place_ms = 0, resume_ms = 1.45, rerun_ms = 7.5 },
    system = moe.system "served" { moe.pass.irregular_a2a {}, moe.pass.used_rows {}, pass } }
  for k, v in pairs(more or {}) do t[k] = v end
  return moe.infer(t)
end
local function near(a, b) return math.abs(a - b) < 1e-6 end
local plain, none = serve(), serve(moe.pass.lina_inference { estimation = false })
local r = serve(moe.pass.lina_inference { path = 1 }, { popularity = profile })
for batch = 1, 3 do
  assert(plain.answer_ms[batch] < plain.samples_ms[batch], "the loss is in an answer's time")
  for layer, times in ipairs(plain.layer_times[batch]) do
    assert(times.phase_2_ms == 0 and times.mapping_wait_ms == 0 and times.swap_wait_ms == 0)
    assert(times.a2a_ms > 0 and times.expert_ms > 0)
    assert(times.expert_ms < times.layer_ms and times.layer_ms < plain.answer_ms[batch])
    assert(near(none.layer_times[batch][layer].phase_2_ms, 7.5))
  end
  for layer = 2, 3 do
    local ms = r.layer_times[batch][layer].phase_2_ms
    assert(near(ms, r.placed_again[batch][layer] and 7.5 or 1.45), ms)
  end
end
local alone = infer { ranks = 1 }.layer_times[1][1]
assert(alone.expert_ms > 0 and alone.expert_ms < alone.layer_ms, "without an all-to-all")
)") == "(no error)");
}

TEST_CASE("the batches of a later run are those of one long run") {
  CHECK(infer_message(R"(
local all, late = infer { batches = 4 }, infer { batches = 2, first_batch = 3 }
assert(late.losses[1] == all.losses[3] and late.losses[2] == all.losses[4])
assert(late.accuracy[2] == all.accuracy[4])
)") == "(no error)");
}

TEST_CASE("training and inference refuse each other's systems at the recipe's line") {
  CHECK_THAT(infer_message("train {\n  system = moe.system 'lina_inference' {} }"),
             Contains("recipe.lua:") && Contains("stage 'lina_inference'") &&
                 Contains("for inference only"));
  CHECK_THAT(infer_message("infer { system = moe.system 's' { moe.pass.partition {} } }"),
             Contains("recipe.lua:") && Contains("'s'"));
}

TEST_CASE("a profile of another model or another path is refused") {
  const std::string record = "local r = infer { record = 't.trace' }\n";
  const std::string profile = "local p = moe.lina.popularity { routing = r.record, path = 1 }\n";
  const std::string lina = "moe.system 'l' { moe.pass.lina_inference { path = 1 } }";
  CHECK_THAT(infer_message(record + profile +
                           "infer { system = moe.system 'lina_inference' {}, popularity = p,\n"
                           "  model = model { layers = 4 } }"),
             Contains("popularity.layers: the popularity profile has 3, but the plan has 4"));
  CHECK_THAT(
      infer_message(record + profile +
                    "infer { system = moe.system 's' { moe.pass.lina_inference { path = 2 } }, "
                    "popularity = p }"),
      Contains("popularity.path: the popularity profile has 1, but the plan has 2"));
  CHECK_THAT(infer_message(record + profile + "infer { system = " + lina +
                           ", popularity = p, model = model { experts = 2 } }"),
             Contains("popularity.experts: the popularity profile has 4, but the plan has 2"));
  CHECK_THAT(infer_message(record + "moe.lina.popularity { routing = r.record, step = 9 }"),
             Contains("the trace has 4 steps, but step 9 is requested"));
  CHECK_THAT(infer_message("moe.lina.popularity { routing = 'none.trace' }"),
             Contains("none.trace"));
}
