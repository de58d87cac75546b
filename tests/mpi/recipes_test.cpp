// The program under mpirun.
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/mpi/job.h"

namespace moe::test {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

/// Removed at the end.
class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_(fs::temp_directory_path() / ("moebench-mpi-" + name + std::to_string(getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string file(const std::string& name) const { return path_ / name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(file(name)) << text;
    return file(name);
  }

 private:
  fs::path path_;
};

std::string content(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string command(const Folder& folder, const std::string& recipe, const std::string& more = "") {
  return MOEBENCH_BINARY " run " + recipe + " --cache " + folder.file("times.sqlite") + " --out " +
         folder.file("out") + " " + more;
}

std::string recipe_of(const std::string& name) {
  return MOE_SOURCE_DIR "/tests/recipes/job/" + name;
}

TEST_CASE("mpirun -n 2 moebench run gives the reference's losses, drops and checksums, once") {
  const Folder folder("golden");
  const JobEnd end = mpirun(2, command(folder, recipe_of("switch.lua")));
  INFO(end.text);
  REQUIRE(end.status == 0);
  const json golden = json::parse(
      content(MOE_SOURCE_DIR "/tests/data/golden_tiny.json"))["gates"]["switch_ranks2"]["fp64"];
  std::istringstream lines(end.text);
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

TEST_CASE("Lina's systems and a policy of Lua's train in two processes to the digests of one") {
  const Folder folder("lina");
  const JobEnd apart = mpirun(2, command(folder, recipe_of("lina.lua")));
  INFO(apart.text);
  REQUIRE(apart.status == 0);
  const json a = json::parse(content(folder.file("out/results.json")))["runs"];
  REQUIRE(std::system((command(folder, recipe_of("lina.lua")) + " > /dev/null").c_str()) == 0);
  const json b = json::parse(content(folder.file("out/results.json")))["runs"];
  REQUIRE(a.size() == 3);
  for (size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i]["digest"] == b[i]["digest"]);
    CHECK(a[i]["losses"] == b[i]["losses"]);
  }
}

TEST_CASE("an experiment in two processes is planned from the same times to the same digests") {
  const Folder folder("systems");
  const JobEnd apart = mpirun(2, command(folder, recipe_of("systems.lua")));
  INFO(apart.text);
  REQUIRE(apart.status == 0);
  const json a = json::parse(content(folder.file("out/results.json")))["runs"];
  REQUIRE(std::system((command(folder, recipe_of("systems.lua")) + " > /dev/null").c_str()) == 0);
  const json b = json::parse(content(folder.file("out/results.json")))["runs"];
  REQUIRE(a.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    for (const char* key : {"plan_hash", "digest", "losses", "drops", "executed_peak_bytes"}) {
      CAPTURE(key);
      CHECK(a[i][key] == b[i][key]);
    }
    CHECK(a[i]["provenance"] == "measured");
    const std::string digest = a[i]["digest"];
    CHECK(apart.text.find(digest) == apart.text.rfind(digest));
    CHECK(fs::exists(folder.file("out/" + a[i]["trace"].get<std::string>())));
  }
}

/// A recipe with `text` in two processes.
JobEnd run_text(const Folder& folder, const std::string& text, const std::string& more = "") {
  const std::string recipe = folder.write("recipe.lua", R"(
local moe = require "moe"
local function train(t)
  local model = moe.model.gpt2_moe { vocab = 64, layers = t.layers or 2, hidden = 32, heads = 2,
    seq = 16, batch_per_device = 2, experts_per_device = 1, capacity_factor = 1 }
  return moe.train { model = model, ranks = t.ranks or 2, tokens = "reference", link = t.link,
    system = t.system }
end
)" + text);
  return mpirun(2, command(folder, recipe, more));
}

TEST_CASE("a process that asks for another plan is named, and what differs") {
  const Folder folder("other");
  const JobEnd end = run_text(folder,
                              "local rank = os.getenv 'OMPI_COMM_WORLD_RANK'\n"
                              "train { layers = rank == '1' and 4 or 2 }",
                              "--trust");
  INFO(end.text);
  CHECK(end.status == 3);
  CHECK_THAT(end.text, Contains("rank 1 asks for another plan than rank 0: model/layers: 4, "
                                "rank 0 has 2"));
}

TEST_CASE("a script that goes another way in one process is named by what it calls") {
  const Folder folder("way");
  const JobEnd end = run_text(folder,
                              "local rank = os.getenv 'OMPI_COMM_WORLD_RANK'\n"
                              "if rank == '1' then error 'only here' end train {}",
                              "--trust");
  INFO(end.text);
  CHECK(end.status == 3);
  CHECK_THAT(end.text, Contains("rank 1: ") && Contains("only here"));
}

TEST_CASE("a recipe that is wrong is told once, at its line") {
  const Folder folder("wrong");
  const JobEnd end = run_text(folder, "train { layers = 0 }");
  INFO(end.text);
  CHECK(end.status == 1);
  const size_t at = end.text.find("recipe.lua:4: ");
  CHECK(at != std::string::npos);
  CHECK(at == end.text.rfind("recipe.lua:4: "));
}

TEST_CASE("what ranks in several processes cannot have is refused at the recipe's line") {
  const Folder folder("refused");
  const JobEnd ranks = run_text(folder, "train { ranks = 3 }");
  INFO(ranks.text);
  CHECK(ranks.status == 1);
  CHECK_THAT(ranks.text,
             Contains("recipe.lua:9: moe.train.ranks: 3, but 2 processes were started"));
  const JobEnd link = run_text(folder, "train { link = { bytes_per_s = 1e8 } }");
  INFO(link.text);
  CHECK(link.status == 1);
  CHECK_THAT(link.text, Contains("moe.train.link: the emulated link is one wire"));
}

TEST_CASE("other commands run once") {
  const JobEnd end = mpirun(2, MOEBENCH_BINARY " doctor");
  CHECK(end.status == 0);
  CHECK_THAT(end.text, Contains("MPI               Open MPI") || Contains("MPI  "));
  CHECK(end.text.find("profile cache") == end.text.rfind("profile cache"));
}

/// The process of this rank whose command line has the word; -1: there is none.
pid_t process_of(int rank, const std::string& word) {
  const std::string variable = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank);
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (content(entry.path() / "cmdline").find(word) == std::string::npos) continue;
    const std::string environment = content(entry.path() / "environ");
    if (environment.find(variable + '\0') != std::string::npos) return std::stoi(name);
  }
  return -1;
}

TEST_CASE("a process that is killed ends the others within ten seconds, and results stay") {
  const Folder folder("killed");
  const std::string results = folder.file("out/results.json");
  std::chrono::steady_clock::time_point killed;
  std::thread killer([&] {
    for (int i = 0; i < 400; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (content(results).find("\"system\": \"deepspeed\"") != std::string::npos) break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // into its steps
    const pid_t pid = process_of(1, folder.file("out"));
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
  const json runs = json::parse(content(results))["runs"];
  REQUIRE(runs.size() == 2);
  CHECK(runs[0]["losses"].size() == 2);
  CHECK(runs[1]["prediction"]["frozen"] == true);
}

TEST_CASE(
    "a signal to any process under mpirun ends the job after its step, with all that is over") {
  for (const int rank : {0, 1}) {
    CAPTURE(rank);
    const Folder folder("signal");
    std::thread sender([&] {
      for (int i = 0; i < 400; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        const std::string lines = content(folder.file("out/runs.jsonl"));
        if (lines.find("\"system\":\"deepspeed\"") != std::string::npos) break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // into its steps
      const pid_t pid = process_of(rank, folder.file("out"));
      if (pid > 0) kill(pid, SIGTERM);
    });
    const JobEnd end = mpirun(2, command(folder, recipe_of("endless.lua")));
    sender.join();
    INFO(end.text);
    CHECK(end.status == 3);
    CHECK_THAT(end.text, Contains("Executed on 2 CPU ranks") && Contains("interrupted"));
    const json runs = json::parse(content(folder.file("out/results.json")))["runs"];
    REQUIRE(runs.size() == 2);
    CHECK(runs[0]["losses"].size() == 2);
    CHECK(runs[1]["stopped"] == true);
  }
}

}  // namespace
}  // namespace moe::test
