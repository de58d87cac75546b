// Signals to the program, and what a terminal sees of it. Random instants, all kinds of runs and
// times: tests/interrupts/interrupts.py.
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/base/folder.h"

namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Clock = std::chrono::steady_clock;
using moe::test::text_of;
using nlohmann::json;

/// The program with a recipe in a folder of its own, its stderr a file or a terminal.
class Program : public moe::test::Folder {
 public:
  explicit Program(const std::string& recipe) { write("recipe.lua", recipe); }
  ~Program() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  std::string out(const std::string& name = "") const { return path("out/" + name); }
  std::string cache() const { return path("times.sqlite"); }

  void start(const std::vector<std::string>& arguments, bool ignore_hangup = false) {
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ > 0) return;
    signal(SIGHUP, ignore_hangup ? SIG_IGN : SIG_DFL);
    const int log = open(path("log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
    const int terminal = terminal_ >= 0 ? terminal_ : log;
    if (dup2(log, STDOUT_FILENO) < 0 || dup2(terminal, STDERR_FILENO) < 0) _exit(99);
    std::vector<char*> argv = {const_cast<char*>(MOEBENCH_BINARY)};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    execv(MOEBENCH_BINARY, argv.data());
    _exit(99);
  }
  void start_recipe(const std::string& command = "run", bool ignore_hangup = false,
                    const std::string& cache = ":memory:") {
    std::vector<std::string> arguments = {command, path("recipe.lua"), "--cache", cache};
    if (command == "run") arguments.insert(arguments.end(), {"--out", out()});
    start(arguments, ignore_hangup);
  }
  /// Runs in runs.jsonl, of whole lines, or the finished ones of them; the file need not be there.
  size_t runs(bool finished) const {
    std::istringstream text(text_of(out("runs.jsonl")));
    size_t most = 0;
    for (std::string line; std::getline(text, line) && !text.eof();) {
      const json value = json::parse(line);
      if (!value.contains("run") || (finished && !value["record"].contains("iteration_ms")))
        continue;
      most = std::max(most, value["run"].get<size_t>());
    }
    return most;
  }
  void wait_for_runs(size_t n, bool finished) const {
    for (int i = 0; i < 12000 && runs(finished) < n; ++i) pause(10);
    REQUIRE(runs(finished) >= n);
  }
  static void pause(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
  void send(int number) const { kill(pid_, number); }
  /// The exit status; 128 + the signal that ended it.
  int wait() {
    int status = 0;
    while (waitpid(pid_, &status, terminal_ >= 0 ? WNOHANG : 0) == 0) read_terminal();
    pid_ = 0;
    read_terminal();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string log() const { return text("log"); }

  void open_terminal() {
    REQUIRE(openpty(&master_, &terminal_, nullptr, nullptr, nullptr) == 0);
    fcntl(master_, F_SETFL, O_NONBLOCK);
    fcntl(master_, F_SETFD, FD_CLOEXEC);
  }
  const std::string& shown() const { return shown_; }

 private:
  void read_terminal() {
    if (terminal_ < 0) return;
    char buffer[4096];
    for (ssize_t n; (n = read(master_, buffer, sizeof buffer)) > 0;) {
      shown_.append(buffer, static_cast<size_t>(n));
    }
    pause(10);
  }

  pid_t pid_ = 0;
  int master_ = -1, terminal_ = -1;
  std::string shown_;
};

const std::string kRecipeHead = R"(local moe = require "moe"
local function model(layers)
  return moe.model.gpt2_moe { vocab = 256, layers = layers or 2, hidden = 32, heads = 4, seq = 16,
    batch_per_device = 2, experts_per_device = 2, gate = "switch" }
end
local function train() return moe.train { model = model(), ranks = 2, steps = 100000000,
  tokens = "reference" } end
)";

/// More points than are through before anybody looks.
const std::string kSweep = kRecipeHead + R"(
local layers = {}
for i = 1, 1000 do layers[i] = 2 * i end
return moe.experiment { name = "sweep", over = { layers = layers }, case = function(p) return {
  model = model(p.layers), cluster = moe.cluster.p4de { nodes = 1 },
  systems = { moe.system "raf" {} } } end })";

const std::string kTraining = kRecipeHead + R"(
return moe.experiment { name = "train", model = model(), systems = { moe.system "raf" {} }, run = {
  { "cpu", ranks = 2, steps = 2, tokens = "reference", rehearse = 0 },
  { "cpu", ranks = 2, steps = 100000000, tokens = "reference", rehearse = 0 } } })";

void wait_until_in_second_run(const Program& program) {
  program.wait_for_runs(2, false);  // its prediction
  Program::pause(500);
}

}  // namespace

TEST_CASE("each signal ends a sweep and keeps every run that was finished", "[signals]") {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    Program program(kSweep);
    program.start_recipe();
    program.wait_for_runs(5, true);
    const size_t before = program.runs(true);
    program.send(number);
    CHECK(program.wait() == 3);
    const json results = json::parse(text_of(program.out("results.json")));
    CHECK(results["runs"].size() >= before);
    CHECK(results["runs"].size() == program.runs(true));
    CHECK_THAT(program.log(), Contains("Simulated by a cost model") && Contains("interrupted"));
  }
}

TEST_CASE("each signal ends a training after its step, and its losses are kept", "[signals]") {
  const Program first(kTraining);  // its folder has the times that the first run measures for all
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    Program program(kTraining);
    program.start_recipe("run", false, first.cache());
    wait_until_in_second_run(program);
    program.send(number);
    CHECK(program.wait() == 3);
    const json runs = json::parse(text_of(program.out("results.json")))["runs"];
    REQUIRE(runs.size() == 2);
    CHECK(runs[0]["losses"].size() == 2);
    CHECK(runs[1]["stopped"] == true);
    CHECK(runs[1]["losses"].size() == runs[1]["samples_ms"].size());
  }
}

TEST_CASE("an interrupted moe.train ends the recipe at its next line, whatever catches it",
          "[signals]") {
  for (const std::string& after : std::vector<std::string>{
           "pcall(print, 'and on')", "while true do pcall(train) end", "return"}) {
    INFO(after);
    Program program(kRecipeHead + "local r = train()\n" + after);
    program.start_recipe();
    Program::pause(1500);
    program.send(SIGINT);
    CHECK(program.wait() == 3);
    CHECK_THAT(program.log(), Contains("interrupted") && !Contains("and on"));
  }
}

TEST_CASE("a signal ends what takes long: simulated steps, a pass, a loop, a check", "[signals]") {
  const std::string cluster = "cluster = moe.cluster.p4de { nodes = 4 }";
  const std::string routing = "moe.workload 'zipf' { s = 1, drift = 0.1 }";
  const std::string routed =
      "moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16, "
      "batch_per_device = 2, experts_per_device = 2, routing = " +
      routing + ", k = 2 }";
  for (const std::string& body : std::vector<std::string>{
           "moe.plan { model = " + routed + ", system = moe.system 'raf' {}, " + cluster +
               " }:simulate { steps = 1000000 }",
           "local p = moe.policy.pass { name = 'mine', at = 'step', apply = function() while true "
           "do "
           "end end }\nmoe.plan { model = model(), " +
               cluster + ", system = moe.system 'mine' { p {} } }",
           std::string("while true do end"),
           std::string("load('while true do end', '@" MOE_SOURCE_DIR "/scripts/moe/x.lua')()"),
           "moe.plan { model = model(), " + cluster +
               ", system = moe.system 'raf' {} }\nlocal s = ('a'):rep(60):find(('a*'):rep(40) .. "
               "'b')"}) {
    INFO(body);
    Program program(kRecipeHead + body);
    program.start_recipe();
    Program::pause(1500);
    const auto sent = Clock::now();
    program.send(SIGTERM);
    CHECK(program.wait() == 3);
    // Of a program that would run for hours; a loaded host may take some seconds.
    CHECK(std::chrono::duration<double>(Clock::now() - sent).count() < 20);
    CHECK_THAT(program.log(), Contains("interrupted"));
  }
  Program checked(kSweep);
  checked.start_recipe("check");
  Program::pause(1000);
  checked.send(SIGINT);
  CHECK(checked.wait() == 3);
}

TEST_CASE("a SIGHUP that is ignored, as by nohup, stays so", "[signals]") {
  Program program(kRecipeHead +
                  "moe.train { model = model(), ranks = 2, steps = 400, tokens = "
                  "'reference' }\nprint 'through'");
  program.start_recipe("run", true);
  Program::pause(300);
  program.send(SIGHUP);
  CHECK(program.wait() == 0);
  CHECK_THAT(program.log(), Contains("through"));
}

TEST_CASE("after a kill the report is made of the lines, also where the last one was cut off") {
  Program program(kTraining);
  program.start_recipe();
  wait_until_in_second_run(program);
  program.send(SIGKILL);
  CHECK(program.wait() == 128 + SIGKILL);
  fs::remove(program.out("results.json"));
  CHECK_THAT(text_of(program.out("runs.jsonl")), Contains("\"frozen\":true"));
  std::ofstream(program.out("runs.jsonl"), std::ios::app) << R"({"run":3,"rec)";
  program.start({"report", program.out()});
  CHECK(program.wait() == 0);
  CHECK_THAT(program.log(), Contains("runs.jsonl: the last line is cut off and is skipped"));
  CHECK_THAT(text_of(program.out("report.html")), Contains("Executed"));
}

TEST_CASE("a terminal shows what runs, how far it is, and each run that is finished") {
  Program program(kTraining);
  program.open_terminal();
  program.start_recipe();
  wait_until_in_second_run(program);
  Program::pause(1000);
  program.send(SIGINT);
  CHECK(program.wait() == 3);
  INFO(program.shown());
  CHECK_THAT(program.shown(), Contains("raf on cpu, 2 ranks: measured") && Contains("predicted") &&
                                  Contains("\r\033[K[2/2] raf on 2 ranks of cpu, step ") &&
                                  Contains(" of 100000000, ") && Contains(" left"));
  CHECK_THAT(program.log(), !Contains("[2/2]") && Contains("Executed on 2 CPU ranks"));
}

TEST_CASE("nothing is shown of what takes less than a second") {
  Program program(kRecipeHead + R"(
return moe.experiment { name = "short", model = model(), cluster = moe.cluster.p4de { nodes = 1 },
  systems = { moe.system "raf" {} } })");
  program.open_terminal();
  program.start_recipe();
  const auto begin = Clock::now();
  CHECK(program.wait() == 0);
  const bool in_time = Clock::now() - begin < std::chrono::milliseconds(900);
  CHECK((program.shown().empty() || !in_time));
}
