// What shows a step takes it from a result; nothing is simulated for it.
#include <catch2/catch.hpp>

#include "tests/bindings/fixture.h"

using namespace moe::lua;
using Catch::Matchers::Contains;

namespace {

const std::string kTimelineHead = R"(
local moe = require 'moe'
local routing = moe.workload 'zipf' { drift = 0.3, seed = 1 }
local function plan(system)
  return moe.plan { cluster = moe.cluster.p4de { nodes = 1 }, system = moe.system(system) {},
    model = moe.model.gpt2_moe { vocab = 64, layers = 2, hidden = 16, heads = 2, seq = 8,
      batch_per_device = 2, experts_per_device = 1, routing = routing } }
end
local p, q = plan 'raf', plan 'deepspeed'
local sim = p.core:simulate { steps = 3, keep = 'all' }
local last = p.core:simulate { steps = 3, keep = 'last', links = true }
)";

}  // namespace

TEST_CASE("a simulation keeps the steps that it is asked to, each as long as its sample says") {
  const Folder folder;
  const auto failure = run_recipe(folder, kTimelineHead + R"(
local function long(timelines, step)
  local ms = 0
  for _, s in ipairs(p.core:spans { timelines = timelines, step = step, all_ranks = true }) do
    ms = math.max(ms, s.end_ms)
  end
  return ms
end
for step, ms in ipairs(sim.samples_ms) do
  assert(math.abs(long(sim.timelines, step) - ms) < 1e-9, step)
  local e = p.core:explain { timelines = sim.timelines, step = step }
  assert(math.abs(e.iteration_ms - ms) < 1e-9, step)
end
assert(long(sim.timelines) == long(p.held.timelines, 1))
assert(long(last.timelines) == long(sim.timelines, 3))
local with, without = p.core:trace { { timelines = last.timelines } },
  p.core:trace { { timelines = sim.timelines } }
assert(with:find '"percent":' and not without:find '"percent":')  -- of what a link carries
assert(with:find '"GiB":' and without:find '"GiB":' and with:find '"waits_for":"data of')
)");
  INFO((failure ? failure->message : ""));
  CHECK(!failure);
}

TEST_CASE("a step is shown of a result of its own plan, and of one that it has, or not at all") {
  for (const char* call : {"trace", "spans", "explain"}) {
    const bool list = std::string(call) == "trace";
    const auto refused = [&](const std::string& given) {
      return message_of(kTimelineHead + "p.core:" + call + (list ? "{" + given + "}" : given));
    };
    INFO(call);
    CHECK_THAT(refused("{}"),
               Contains(std::string(call) + ": no result is given; give a result of plan:run"));
    CHECK_THAT(refused("{ timelines = q.held.timelines }"),
               Contains(std::string(call) + ": the result is of another plan"));
    CHECK_THAT(refused("{ timelines = sim.timelines, step = 4 }"),
               Contains(std::string(call) +
                        ": the result has no timeline of step 4; it has those of steps 1 to 3"));
    CHECK_THAT(refused("{ timelines = last.timelines, step = 1 }"),
               Contains(std::string(call) +
                        ": the result has no timeline of step 1; it has those of steps 3 to 3"));
  }
}
