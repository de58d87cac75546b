// The program under mpirun.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>

#include "tests/base/folder.h"
#include "tests/mpi/job.h"

namespace moe::test {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

json runs_in(const Folder& folder) {
  return json::parse(text_of(folder.path("out/results.json")))["runs"];
}

std::string recipe_of(const std::string& name) {
  return MOE_SOURCE_DIR "/tests/recipes/job/" + name;
}

/// Begins a recipe of eight lines: train(t) trains a small model on two ranks.
const std::string kTrain = R"(
local moe = require "moe"
local function train(t)
  local model = moe.model.gpt2_moe { vocab = 64, layers = t.layers or 2, hidden = 32, heads = 2,
    seq = 16, batch_per_device = 2, experts_per_device = 1, capacity_factor = 1 }
  return moe.train { model = model, ranks = t.ranks or 2, tokens = "reference", link = t.link,
    system = t.system }
end
)";

void check_once(const std::string& text, const std::string& part) {
  const size_t at = text.find(part);
  CHECK(at != std::string::npos);
  CHECK(at == text.rfind(part));
}

/// What switch.lua printed are the reference's losses, drops and checksums, each once.
void check_reference(const std::string& text) {
  const json golden = json::parse(
      text_of(MOE_SOURCE_DIR "/tests/data/golden_tiny.json"))["gates"]["switch_ranks2"]["fp64"];
  std::istringstream lines(text);
  std::string label, checksum;
  size_t step, layer, num_lines = 0;
  int64_t dropped;
  double loss;
  while (lines >> label >> step >> layer >> loss >> dropped >> checksum) {
    ++num_lines;
    const json& moe = golden["moe"][step - 1][layer - 1];
    CHECK(std::abs(loss - golden["losses"][step - 1].get<double>()) < 2e-6);
    CHECK(dropped == moe["dropped_tokens"].get<int64_t>());
    CHECK(checksum == moe["checksum"].get<std::string>());
  }
  CHECK(num_lines == 20);
}

/// Waits until the file has the text, and 0.3 s more: endless.lua is then in its steps.
void wait_until_written(const std::string& file, const std::string& text) {
  for (int i = 0; i < 400 && text_of(file).find(text) == std::string::npos; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
}

/// The cache is in `times`, or in the folder itself.
std::string command(const Folder& folder, const std::string& recipe, const std::string& more = "",
                    const Folder* times = nullptr) {
  return MOEBENCH_BINARY " run " + recipe + " --cache " +
         (times != nullptr ? *times : folder).path("times.sqlite") + " --out " +
         folder.path("out") + " " + more;
}

TEST_CASE("mpirun -n 2 moebench run gives the reference's losses, drops and checksums, once") {
  const Folder folder;
  const JobEnd end = mpirun(2, command(folder, recipe_of("switch.lua")));
  INFO(end.text);
  REQUIRE(end.status == 0);
  check_reference(end.text);
}

TEST_CASE("Lina's systems and a policy of Lua's train in two processes to the digests of one") {
  const Folder folder;
  const JobEnd apart = mpirun(2, command(folder, recipe_of("lina.lua")));
  INFO(apart.text);
  REQUIRE(apart.status == 0);
  const json a = runs_in(folder);
  REQUIRE(std::system((command(folder, recipe_of("lina.lua")) + " > /dev/null").c_str()) == 0);
  const json b = runs_in(folder);
  REQUIRE(a.size() == 3);
  for (size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i]["digest"] == b[i]["digest"]);
    CHECK(a[i]["losses"] == b[i]["losses"]);
  }
}

TEST_CASE("an experiment in two processes is planned from the same times to the same digests") {
  const Folder folder;
  const JobEnd apart = mpirun(2, command(folder, recipe_of("systems.lua")));
  INFO(apart.text);
  REQUIRE(apart.status == 0);
  const json a = runs_in(folder);
  REQUIRE(std::system((command(folder, recipe_of("systems.lua")) + " > /dev/null").c_str()) == 0);
  const json b = runs_in(folder);
  REQUIRE(a.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    for (const char* key : {"plan_hash", "digest", "losses", "drops", "executed_peak_bytes"}) {
      CAPTURE(key);
      CHECK(a[i][key] == b[i][key]);
    }
    CHECK(a[i]["provenance"] == "measured");
    const std::string digest = a[i]["digest"];
    CHECK(apart.text.find(digest) == apart.text.rfind(digest));
    CHECK(fs::exists(folder.path("out/" + a[i]["trace"].get<std::string>())));
  }
}

/// A recipe of which `text` is line 9 and the rest, in two processes.
JobEnd run_text(const Folder& folder, const std::string& text, const std::string& more = "") {
  return mpirun(2, command(folder, folder.write("recipe.lua", kTrain + text), more));
}

TEST_CASE("a process that requests another plan is named, and what differs") {
  const Folder folder;
  const JobEnd end = run_text(folder,
                              "local rank = os.getenv 'OMPI_COMM_WORLD_RANK'\n"
                              "train { layers = rank == '1' and 4 or 2 }",
                              "--trust");
  INFO(end.text);
  CHECK(end.status == 3);
  CHECK_THAT(end.text, Contains("rank 1 requests another plan than rank 0: model/layers: 4, "
                                "rank 0 has 2"));
}

TEST_CASE("a process that ends by itself ends the others, with its rank") {
  const Folder folder;
  const JobEnd end = run_text(folder,
                              "local rank = os.getenv 'OMPI_COMM_WORLD_RANK'\n"
                              "if rank == '1' then os.exit(0) end train {}",
                              "--trust");
  INFO(end.text);
  CHECK(end.status != 0);
  CHECK_THAT(end.text, Contains("rank 1"));
}

TEST_CASE("a --seed that differs between processes is named") {
  const Folder folder;
  const std::string recipe = folder.write("recipe.lua", kTrain + "train {}");
  const std::string line = command(folder, recipe, "--seed $OMPI_COMM_WORLD_RANK");
  const JobEnd end = mpirun(2, "sh -c '" + line + "'");
  INFO(end.text);
  CHECK(end.status == 3);
  CHECK_THAT(end.text, Contains("rank 1 requests another plan than rank 0: --seed: 1, "
                                "rank 0 has 0"));
}

TEST_CASE("a script that goes another way in one process is named by what it calls") {
  const Folder folder;
  const JobEnd end = run_text(folder,
                              "local rank = os.getenv 'OMPI_COMM_WORLD_RANK'\n"
                              "if rank == '1' then error 'only here' end train {}",
                              "--trust");
  INFO(end.text);
  CHECK(end.status == 3);
  CHECK_THAT(end.text, Contains("rank 1: ") && Contains("only here"));
  check_once(end.text, "moebench: ");
}

TEST_CASE("a recipe that is wrong is told once, at its line") {
  const Folder folder;
  const JobEnd end = run_text(folder, "train { layers = 0 }");
  INFO(end.text);
  CHECK(end.status == 1);
  check_once(end.text, "recipe.lua:4: ");
}

TEST_CASE("what ranks in several processes cannot have is refused at the recipe's line") {
  const Folder folder;
  const JobEnd ranks = run_text(folder, "train { ranks = 3 }");
  INFO(ranks.text);
  CHECK(ranks.status == 1);
  CHECK_THAT(ranks.text,
             Contains("recipe.lua:9: moe.train.ranks: is 3, but 2 processes were started") &&
                 Contains("by mpirun -n 3"));
  const JobEnd link = run_text(folder, "train { link = { bytes_per_s = 1e8 } }");
  INFO(link.text);
  CHECK(link.status == 1);
  CHECK_THAT(
      link.text,
      Contains(
          "moe.train.link: an emulated link is only possible if all ranks are in one process"));
}

TEST_CASE("other commands run once") {
  const JobEnd end = mpirun(2, MOEBENCH_BINARY " doctor");
  CHECK(end.status == 0);
  CHECK_THAT(end.text, Contains("MPI  "));
  check_once(end.text, "profile cache");
}

/// The process of this rank whose command line has the word; -1: there is none.
pid_t process_of(int rank, const std::string& word) {
  const std::string variable = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank);
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (text_of(entry.path() / "cmdline").find(word) == std::string::npos) continue;
    const std::string environment = text_of(entry.path() / "environ");
    if (environment.find(variable + '\0') != std::string::npos) return std::stoi(name);
  }
  return -1;
}

TEST_CASE("a process that is killed ends the others within ten seconds, and results stay") {
  const Folder folder;
  std::chrono::steady_clock::time_point killed;
  std::thread killer([&] {
    wait_until_written(folder.path("out/results.json"), R"("system": "deepspeed")");
    const pid_t pid = process_of(1, folder.path("out"));
    killed = std::chrono::steady_clock::now();
    if (pid > 0) kill(pid, SIGKILL);
  });
  const JobEnd end = mpirun(2, command(folder, recipe_of("endless.lua")));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - killed;
  killer.join();
  INFO(end.text);
  CHECK(end.status != 0);
  CHECK(took.count() < 10);
  CHECK_THAT(end.text, Contains("rank 1"));
  const json runs = runs_in(folder);
  REQUIRE(runs.size() == 2);
  CHECK(runs[0]["losses"].size() == 2);
  CHECK(runs[1]["prediction"]["frozen"] == true);
}

TEST_CASE(
    "a signal to any process under mpirun ends the job after its step, with all that is over") {
  const Folder times;  // the first job measures them for all
  for (const auto& [rank, number] :
       {std::pair{0, SIGINT}, std::pair{1, SIGTERM}, std::pair{1, SIGHUP}}) {
    CAPTURE(rank, number);
    const Folder folder;
    std::thread sender([&] {
      wait_until_written(folder.path("out/runs.jsonl"), R"("system":"deepspeed")");
      const pid_t pid = process_of(rank, folder.path("out"));
      if (pid > 0) kill(pid, number);
    });
    const JobEnd end = mpirun(2, command(folder, recipe_of("endless.lua"), "", &times));
    sender.join();
    INFO(end.text);
    CHECK(end.status == 3);
    CHECK_THAT(end.text, Contains("Executed on 2 CPU ranks") && Contains("interrupted"));
    const json runs = runs_in(folder);
    REQUIRE(runs.size() == 2);
    CHECK(runs[0]["losses"].size() == 2);
    CHECK(runs[1]["stopped"] == true);
    CHECK(runs[1].contains("digest"));
  }
}

}  // namespace
}  // namespace moe::test
