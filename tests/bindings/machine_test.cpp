// Machine files and tables of collectives, from files through recipes to simulated times.
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/bindings/fixture.h"

using namespace moe::lua;
using Catch::Matchers::Contains;

namespace {

const std::string kMachineHead = R"(
local moe = require "moe"
local model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 64, heads = 4, seq = 32,
  batch_per_device = 2, experts_per_device = 1, capacity_factor = 1, dtype = "f32" }
local function cluster(collectives)
  return moe.cluster.custom { nodes = 1, devices_per_node = 4, collectives = collectives,
    device = { gemm_flops_per_s = 1e12, memory_bytes_per_s = 1e12 },
    intra = { bytes_per_s = 1e10, latency_us = 1 } }
end
local function plan(collectives, degree)
  return moe.plan { model = model, cluster = cluster(collectives),
    system = moe.system "mine" { moe.pass.capacity_pipeline { degree = degree or 1 } } }
end
local function a2a_ms(collectives, degree)
  collectives.all_reduce = { { 0, 0 }, { 1e9, 0 } }
  return plan(collectives, degree):simulate().comm_ms
end
local function near(a, b) assert(math.abs(a - b) < 1e-3 * b, a .. " is not " .. b) end
)";

void good_machine(const Folder& folder, const std::string& text) {
  const std::optional<Failure> failure = run_recipe(folder, kMachineHead + text);
  CHECK((failure ? failure->message : "") == "");
}

std::string data_file(const std::string& name) {
  return read_file(MOE_SOURCE_DIR "/tests/data/" + name);
}

}  // namespace

TEST_CASE("a table gives an all-to-all its time, and says so") {
  good_machine(Folder(), R"(
    -- One MoE layer: two all-to-alls forward, two backward.
    near(a2a_ms { all_to_all = { { 0, 250 }, { 1e9, 250 } } }, 1.0)
    local p = plan { all_to_all = { { 0, 250 }, { 1e9, 250 } } }
    assert(p:info().cost:find("all-to-all by table", 1, true))
    assert(not p:info().cost:find("all-reduce by table", 1, true))
    assert(not plan {}:info().cost:find("by table", 1, true))
  )");
}

TEST_CASE("the parts of a partitioned all-to-all are looked up at their own payload") {
  good_machine(Folder(), R"(
    local constant = { { 0, 250 }, { 1e9, 250 } }   -- four times as many, as long each
    near(a2a_ms({ all_to_all = constant }, 4), 4 * a2a_ms({ all_to_all = constant }, 1))
    local linear = { { 0, 0 }, { 1e9, 1e9 } }       -- as much in all
    near(a2a_ms({ all_to_all = linear }, 4), a2a_ms({ all_to_all = linear }, 1))
  )");
}

TEST_CASE("the payload of a table is all that a rank brings, in the model's bytes") {
  // 4 experts of 2 * 32 / 4 slots of 64 floats: 16 KiB.
  good_machine(Folder(), R"(
    near(a2a_ms { all_to_all = { { 0, 0 }, { 16 * 1024, 1000 } } }, 4.0)
  )");
}

TEST_CASE("an nccl-tests log stands where a table does") {
  const Folder folder;
  folder.write("old.log", data_file("nccl_alltoall_4_old.log"));
  // Payloads of 16 KiB: its fifth row, 20.41 us.
  good_machine(folder, R"(near(a2a_ms { all_to_all = moe.nccl_tests "old.log" }, 4 * 0.02041))");
}

TEST_CASE("a log of other ranks, of another collective, or of nothing is refused by name") {
  const Folder folder;
  folder.write("a2a.log", data_file("nccl_alltoall_16.log"));
  folder.write("ar.log", data_file("nccl_all_reduce_16.log"));
  folder.write("cut.log", data_file("nccl_all_reduce_16.log").substr(0, 3000));
  const auto message = [&](const std::string& kind, const std::string& file) {
    const std::string text = "plan { " + kind + " = moe.nccl_tests '" + file + "' }";
    const std::optional<Failure> failure = run_recipe(folder, kMachineHead + text);
    REQUIRE(failure);
    CHECK(failure->kind == "user");
    return failure->message;
  };
  CHECK_THAT(message("all_to_all", "a2a.log"),
             Contains("cluster.collectives.all_to_all: a2a.log was measured with 16 ranks, but the "
                      "cluster has 4 devices"));
  CHECK_THAT(message("all_to_all", "ar.log"), Contains("ar.log has times of all_reduce"));
  CHECK_THAT(message("all_reduce", "cut.log"), Contains("recipe.lua:19: cut.log:34: the row ends"));
  CHECK_THAT(message("all_reduce", "none.log"), Contains("cannot read none.log"));
}

TEST_CASE("calibrate writes a machine file that recipes simulate on") {
  const Folder folder;
  const std::string file = folder.path("new/box.lua");
  const std::string command =
      std::string(MOEBENCH_BINARY) + " calibrate --ranks 2 --out " + file + " 2> /dev/null";
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) text.append(buffer, n);
  const int status = pclose(pipe);
  INFO(text);
  REQUIRE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  for (const char* part : {"GEMMs", "memory-bound ops", "all_to_all us", "67108864", "R2"}) {
    CHECK_THAT(text, Contains(part));
  }
  folder.write("box.lua", read_file(file));
  good_machine(folder, R"(
    local m = moe.machine "box.lua"
    assert(m.devices_per_node == 2 and #m.collectives.all_to_all.rows == 17)
    local p = moe.plan { model = model, cluster = moe.cluster.custom(m),
      system = moe.system "raf" {} }
    assert(p:simulate().iteration_ms > 0)
    assert(p:info().cost:find("all-to-all by table, all-reduce by table", 1, true))
  )");
  folder.write("box.csv", read_file(folder.path("new/box.csv")));
  good_machine(folder, R"(
    local m, times = moe.machine "box.lua", moe.op_table "box.csv"
    m.device.op_times, m.collective_times, m.collectives = times, times, nil
    local c = moe.cluster.custom(m)
    local t = moe.op_time { cluster = c, op = "all_reduce", ranks = 2, bytes = 65536 }
    assert(t.measured and not t.extrapolated)
    local p = moe.plan { model = model, cluster = c, system = moe.system "raf" {} }
    assert(p:simulate().iteration_ms > 0)
    assert(p:info().cost:find("measured op times of ", 1, true), p:info().cost)
    t = moe.op_time { cluster = c, op = "gemm", m = 512, n = 384, k = 128, dtype = "f32" }
    assert(t.measured and t.ms > 0)
  )");
}

TEST_CASE("calibrate refuses a place that it cannot write before it measures") {
  const Folder folder;
  const std::string redirected = " 2>&1";
  for (const std::string& out : {folder.path(), folder.write("file", "") + "/machine.lua"}) {
    const std::string command = std::string(MOEBENCH_BINARY) + " calibrate --out " + out;
    FILE* pipe = popen((command + redirected).c_str(), "r");
    REQUIRE(pipe != nullptr);
    char buffer[512] = {};
    CHECK(fread(buffer, 1, sizeof(buffer) - 1, pipe) > 0);
    CHECK_THAT(std::string(buffer), Contains("--out " + folder.path()));
    CHECK(WEXITSTATUS(pclose(pipe)) == 1);
  }
}
