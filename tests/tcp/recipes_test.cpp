// The program started as several processes by torchrun's variables.
#include <signal.h>

#include "tests/job/recipes.h"
#include "tests/tcp/job.h"

namespace moe::test {
namespace {

using Catch::Matchers::Contains;

/// The cache is in `times`, or in the folder itself.
Job::Command command(const Folder& folder, const std::string& recipe,
                     const Folder* times = nullptr) {
  const std::string cache = (times != nullptr ? *times : folder).file("times.sqlite");
  return {MOEBENCH_BINARY, "run", recipe, "--cache", cache, "--out", folder.file("out"), "--trust"};
}

TEST_CASE("two processes over TCP give the reference's losses, drops and checksums, once") {
  const Folder folder("golden");
  const JobEnd end = run(2, command(folder, recipe_of("switch.lua")));
  INFO(end.text);
  REQUIRE(end.statuses == std::vector<int>{0, 0});
  check_reference(end.text);
}

/// A recipe of which `text`, which may look at its rank, is line 9, in two processes.
JobEnd run_text(const std::string& text) {
  const Folder folder("text");
  const std::string recipe =
      folder.write("recipe.lua", kTrain + "local rank = os.getenv 'RANK' " + text);
  return run(2, command(folder, recipe));
}

TEST_CASE("a process over TCP that requests another plan is named by rank 0, and what differs") {
  const JobEnd end = run_text("train { layers = rank == '1' and 4 or 2 }");
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>{3, 3});
  const std::string why = "rank 1 requests another plan than rank 0: model/layers: 4, rank 0 has 2";
  check_once(end.text, why);
}

TEST_CASE("a script that goes another way in one process over TCP is told by rank 0 alone") {
  const JobEnd end = run_text("if rank == '1' then error 'only here' end train {}");
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>{3, 3});
  CHECK_THAT(end.text, Contains("rank 1: ") && Contains("only here"));
  check_once(end.text, "moebench: ");
}

TEST_CASE("a recipe that is wrong in all processes over TCP is told once, at its line") {
  const JobEnd end = run_text("train { ranks = 3 }");
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>{1, 1});
  CHECK_THAT(end.text,
             Contains("recipe.lua:9: moe.train.ranks: is 3, but 2 processes were started"));
  check_once(end.text, "recipe.lua:9: ");
}

TEST_CASE("a process over TCP that ends by itself ends the others, with its rank") {
  const JobEnd end = run_text("if rank == '1' then os.exit(0) end train {}");
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>{3, 0});
  CHECK_THAT(end.text, Contains("rank 1 is lost: its connection closed"));
}

TEST_CASE("a process over TCP that is killed ends the others at once, and results stay") {
  const Folder folder("killed");
  Job job(2, command(folder, recipe_of("endless.lua")));
  job.start_all();
  wait_until_written(folder.file("out/results.json"), kInResults, 1000);
  job.signal(1, SIGKILL);
  const JobEnd end = job.wait();
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>{3, 128 + SIGKILL});
  CHECK(end.seconds < 10);
  CHECK_THAT(end.text, Contains("rank 1 is lost: its connection closed"));
  const nlohmann::json runs = runs_in(folder);
  REQUIRE(runs.size() == 2);
  CHECK(runs[0]["losses"].size() == 2);
  CHECK(runs[1]["losses"].size() > 0);
  CHECK(runs[1]["losses"].size() == runs[1]["samples_ms"].size());
  CHECK(runs[1]["stopped"] == true);
  CHECK_THAT(runs[1]["stop_reason"].get<std::string>(), Contains("rank 1 is lost"));
  CHECK_FALSE(runs[1].contains("digest"));
}

TEST_CASE("a signal to any process over TCP ends the job after its step, with all that is over") {
  const Folder times("times");  // the first job measures them for all
  for (const int rank : {0, 1}) {
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      CAPTURE(rank, number);
      const Folder folder("signal");
      Job job(2, command(folder, recipe_of("endless.lua"), &times));
      job.start_all();
      wait_until_written(folder.file("out/runs.jsonl"), kInJournal);
      job.signal(rank, number);
      const JobEnd end = job.wait(-1, 10);
      INFO(end.text);
      CHECK(end.statuses == std::vector<int>{3, 3});
      check_interrupted(folder, end.text);
      CHECK(runs_in(folder)[1].contains("digest"));
    }
  }
}

}  // namespace
}  // namespace moe::test
