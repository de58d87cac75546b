// Where a plan's ops are timed: cost.device, as the library hands it over.
#include <catch2/catch.hpp>

#include "engine/exec/device/executor.h"
#include "tests/bindings/fixture.h"

using namespace moe::lua;
using Catch::Matchers::Contains;

namespace {

/// What planning says with this cost.
std::string planned(const std::string& cost) {
  LibraryState library;
  library.run(R"(
    local moe, core = require "moe", require "moe.core"
    local target, system = require "moe.spec.target", require "moe.spec.system"
    local model = moe.model.gpt2_moe { vocab = 32, layers = 2, hidden = 16, heads = 2, seq = 8,
      batch_per_device = 2, experts_per_device = 1, capacity_factor = 1, dtype = "f32" }
    local spec = target.real_spec("cpu", model, 2)
    spec.cost = )" +
                  cost + R"(
    spec.system = system.expand(moe.system "raf" {})[1][1]
    local good, result = pcall(core.plan, spec)
    return good and result:info().cost or tostring(result)
  )",
              1);
  const std::string text = lua_tostring(library.L(), -1);
  lua_pop(library.L(), 1);
  return text;
}

}  // namespace

TEST_CASE("ops are timed on the CPU unless the cost names another device") {
  const std::string cost = planned("{ kind = 'profile', cache = ':memory:' }");
  CHECK(cost == planned("{ kind = 'profile', cache = ':memory:', device = 'cpu' }"));
  CHECK_THAT(cost, Contains("profile"));
}

TEST_CASE("a device that nothing is timed on is refused") {
  CHECK_THAT(planned("{ kind = 'profile', cache = ':memory:', device = 'tpu' }"),
             Contains("cost.device: 'tpu' is not allowed; give cpu or cuda"));
}

TEST_CASE("ops are not timed on a GPU that is not there, nor steps rehearsed on one") {
  const std::string missing = moe::cuda_missing();
  const std::string cost =
      "{ kind = 'profile', cache = ':memory:', device = 'cuda', rehearse = 4 }";
  CHECK_THAT(planned(cost), Contains(missing.empty() ? "rehearsed on cpu only" : missing));
}
