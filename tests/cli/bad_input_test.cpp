// Wrong command lines, recipes and files as the program meets them: its status and what it says.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/base/folder.h"
#include "tests/cli/program.h"

using moe::test::Folder;
using moe::test::Outcome;
using moe::test::run;
namespace fs = std::filesystem;

TEST_CASE("the command line has its own status") {
  const std::string program = MOEBENCH_BINARY;
  const auto ends = [&](const std::string& arguments, int status, const std::string& part = "") {
    const Outcome o = run(program + " " + arguments);
    INFO(arguments << "\n" << o.text);
    CHECK(o.exit == status);
    CHECK(o.text.find(part) != std::string::npos);
  };
  ends("", 2);
  ends("run", 2);
  ends("rum x.lua", 2, "Did you mean 'run'?");
  ends("run /nonexistent.lua", 1);
  // --read and --set take one value each, so the recipe may follow them.
  ends("run --read / --set a=1 /nonexistent.lua", 1);
  for (const char* wrong : {"--set nonsense", "--ranks 0", "--executor gpu"}) {
    ends("run x.lua " + std::string(wrong), 2);
  }
  for (const char* command : {"", "run", "check", "calibrate", "list", "doctor"}) {
    ends(std::string(command) + " --help", 0, "Usage:");
  }
  ends("--version", 0);
  ends("list gatez", 2, "Did you mean 'gates'?");
  ends("doc gatez", 2, "Did you mean 'gate'?");
  CHECK(run(program + " doc system lancet").text == run(program + " doc system.lancet").text);
}

TEST_CASE("lists, documents and stubs are the same each time and show no address") {
  for (const char* command : {" list", " list stubs", " doc", " doc experiment", " doc ctx"}) {
    const Outcome once = run(MOEBENCH_BINARY + std::string(command));
    INFO(command);
    CHECK(once.exit == 0);
    CHECK(once.text == run(MOEBENCH_BINARY + std::string(command)).text);
    CHECK(once.text.find(": 0x") == std::string::npos);
  }
}

TEST_CASE("where the cuda executor cannot run, that is said before anything runs") {
  const Folder folder;
  const std::string out = folder.path("cuda"), recipe = MOE_SOURCE_DIR "/recipes/lancet_gpt2.lua";
  const std::string program = "MOEBENCH_CUDA_PLUGIN=/nonexistent.so " MOEBENCH_BINARY;
  const Outcome o = run(program + " run " + recipe + " --executor cuda --out " + out);
  INFO(o.text);
  CHECK(o.exit == 1);
  CHECK(o.text.find("lancet_gpt2.lua:") != std::string::npos);
  CHECK(o.text.find("--executor cuda: MOEBENCH_CUDA_PLUGIN = /nonexistent.so: this file does "
                    "not exist") != std::string::npos);
  CHECK_FALSE(fs::exists(out + "/results.json"));
  const Outcome calibrate = run(program + " calibrate --device cuda --out " + out + ".lua");
  CHECK(calibrate.exit == 1);
  CHECK(calibrate.text.find("--device cuda: MOEBENCH_CUDA_PLUGIN = /nonexistent.so: this file "
                            "does not exist") != std::string::npos);
  CHECK_FALSE(fs::exists(out + ".lua"));
}

TEST_CASE("a page is made of what a run wrote, and of nothing else") {
  const Folder folder;
  const std::string out = folder.path("page"), program = MOEBENCH_BINARY;
  REQUIRE(
      run(program + " run " MOE_SOURCE_DIR "/recipes/lessons/01_first_run.lua --out " + out).exit ==
      0);
  const Outcome made = run(program + " report " + out);
  INFO(made.text);
  CHECK(made.exit == 0);
  CHECK(fs::file_size(out + "/report.html") > 10000);
  CHECK(run(program + " report " + out + " " + out + " --out " + out + "/both.html").exit == 0);
  CHECK(fs::file_size(out + "/both.html") > 2 * fs::file_size(out + "/report.html") - 40000);
  CHECK(run(program + " report").exit == 2);
  struct {
    std::string arguments, says;
  } const wrong[] = {{out + "/none", "no such folder"},
                     {out + " --out " + out + "/results.json", ".html"},
                     {MOE_SOURCE_DIR, "has neither results.json nor runs.jsonl"}};
  for (const auto& w : wrong) {
    const Outcome o = run(program + " report " + w.arguments);
    INFO(o.text);
    CHECK(o.exit == 1);
    CHECK(o.text.find(w.says) != std::string::npos);
  }
  nlohmann::json results = nlohmann::json::parse(std::ifstream(out + "/results.json"));
  results["runs"] = nullptr;
  std::ofstream(out + "/results.json") << results;
  const Outcome null = run(program + " report " + out);
  INFO(null.text);
  CHECK(null.text.find("/results.json: runs: is null, but must be a table") != std::string::npos);
  std::ofstream(out + "/results.json") << "{\"schema\": 1e999}";
  const Outcome huge = run(program + " report " + out);
  CHECK(huge.exit == 1);
  CHECK(huge.text.find(out + "/results.json") != std::string::npos);
}

namespace {

/// A folder of one test, removed at its end, with a recipe that trains a tiny model.
class Scratch : public Folder {
 public:
  Outcome train(const std::string& options, const std::string& more_args = "",
                const std::string& before = "") const {
    const std::string recipe = write("train.lua",
                                     "local moe = require 'moe'\n"
                                     "local r = moe.train { ranks = 2, steps = 4, " +
                                         options +
                                         ",\n"
                                         "  model = moe.model.gpt2_moe { vocab = 256, layers = 2, "
                                         "hidden = 32, heads = 4, seq = 32,\n"
                                         "    batch_per_device = 2, experts = 4 } }\n"
                                         "print('digest ' .. r.digest)\n");
    return run(before + std::string(MOEBENCH_BINARY) + " run " + recipe + " --out " + path("out") +
               " " + more_args);
  }
};

/// What went wrong is said once.
void check_error(const Outcome& o, int exit, const std::vector<std::string>& says) {
  INFO(o.text);
  CHECK(o.exit == exit);
  const size_t last = o.text.rfind("moebench: ");
  CHECK((last == std::string::npos || o.text.find(o.text.substr(last)) == last));
  for (const std::string& part : says) CHECK(o.text.find(part) != std::string::npos);
}

const std::string kText(5000, 'a');

}  // namespace

TEST_CASE("a text that cannot be trained on is named, with what is wrong") {
  const Scratch s;
  auto text = [&](const std::string& path) { return "text = '" + path + "'"; };
  check_error(s.train(text(s.path("no.txt"))), 1, {"no.txt", "train.lua:2:"});
  check_error(s.train(text(s.write("empty.txt", ""))), 1, {"empty.txt", "empty"});
  check_error(s.train(text(s.write("short.txt", "too short"))), 1, {"short.txt"});
  check_error(s.train(text(s.write("latin1.txt", kText + "caf\xe9 " + kText))), 1,
              {"latin1.txt", "UTF-8", "5003"});
  check_error(s.train(text(s.write("good.txt", kText))), 0, {"digest "});
}

TEST_CASE("what stands at the name of the cache and is no file is refused before anything runs") {
  const Scratch s;
  fs::create_directory(s.path("folder"));
  fs::create_symlink("nowhere", s.path("link"));
  for (const std::string& cache : {s.path("folder"), s.path("link"), std::string("/dev/null")}) {
    const Outcome o = s.train("tokens = 'reference'", "--cache " + cache);
    check_error(o, 1, {"--cache " + cache + ": is not a regular file"});
    CHECK_FALSE(fs::exists(cache + ".lock"));
  }
}

TEST_CASE("files and paths that nobody meant to give are named, in few words") {
  const Scratch s;
  const auto config = [&](const std::string& text) {
    return run(MOEBENCH_BINARY " run " +
               s.write("c.lua",
                       "require('moe').model.from_config '" + s.write("config.json", text) + "'") +
               " --out " + s.path("out"));
  };
  check_error(config(std::string(300000, '[')), 1, {"c.lua:1:", "config.json: ", "more than 64"});
  check_error(config(std::string("{}\0junk", 7)), 1,
              {"c.lua:1:", "config.json: ", "byte 3", "NUL"});
  check_error(config("{\"a\": {\"b\": 1, \"\\u0062\": 2}}"), 1,
              {"c.lua:1:", "config.json: ", "\"b\" is there twice"});
  check_error(run(MOEBENCH_BINARY " run " + s.write("bc.lua", "\033LJ\002")), 1,
              {"bc.lua: the file has bytecode"});
  check_error(run(MOEBENCH_BINARY " run " MOE_SOURCE_DIR "/recipes/lancet_gpt2.lua --executor "
                                  "simulate --out /proc/nowhere"),
              1, {"/proc/nowhere"});
  const std::string recipe = s.write("r.lua", "print(1)");
  for (const std::string& text : {std::string(4200, 'y'), [] {
                                    std::string deep;
                                    while (deep.size() < 4200) deep += "y/";
                                    return deep;
                                  }()}) {
    check_error(run(MOEBENCH_BINARY " run " + recipe + " --out " + text), 2, {"--out", "bytes"});
  }
  const Outcome large =
      run(MOEBENCH_BINARY " run " + s.write("e.lua", "error(('x'):rep(5e7) .. ' the end')"));
  check_error(large, 1, {"e.lua:1: xxx", "bytes are left out", "the end"});
  CHECK(large.text.size() < 20000);
  for (const char* home : {"HOME= ", "HOME=. "}) {
    check_error(run("cd " + s.path("") + "; XDG_CACHE_HOME= TMPDIR=" + s.path("") + " " + home +
                    MOEBENCH_BINARY " run r.lua"),
                0, {"1"});
    CHECK_FALSE(fs::exists(s.path(".cache")));
  }
}

TEST_CASE("what was printed stays when a deadline ends the process") {
  const Scratch s;
  const auto start = [&](const std::string& name, const std::string& policy,
                         const std::string& more) {
    const std::string recipe =
        s.write(name + ".lua",
                "local moe = require 'moe'\nprint 'before'\nlocal p = moe.policy." + policy +
                    " } {}\nmoe.train { ranks = 2, steps = 1, tokens = 'reference', model = "
                    "moe.model.gpt2_moe { layers = 2, hidden = 32, heads = 4, seq = 16, vocab = "
                    "256, batch_per_device = 1, experts_per_device = 2, " +
                    more + " }");
    return moe::test::start(MOEBENCH_BINARY " run " + recipe + " --out " + s.path(name));
  };
  const std::string loop = " = function(ctx) while true do end end";
  // Their deadlines pass at the same time.
  FILE* const gate =
      start("gate", "gate { name = 'loop', scope = 'batch', k = 1, route" + loop, "gate = p }");
  FILE* const place =
      start("place", "placement { name = 'loop', place" + loop, "}, system = moe.system 'x' { p }");
  check_error(moe::test::finish(gate), 3,
              {"before", "gate 'loop', rank", "passed the deadline of 5 s"});
  check_error(moe::test::finish(place), 3,
              {"before", "placement 'loop', rank", "passed the deadline of 5 s"});
}

TEST_CASE("a limit on the size of files is an error, as a full disk") {
  const Scratch s;
  const std::string recipe = s.write("print.lua",
                                     "local moe = require 'moe'\n"
                                     "moe.train { ranks = 2, steps = 1, tokens = 'reference', "
                                     "checkpoint_to = 'a.ckpt', model = moe.model.gpt2_moe { "
                                     "layers = 2, hidden = 64, heads = 4, seq = 16, vocab = 256, "
                                     "batch_per_device = 1, experts_per_device = 2 } }");
  check_error(run("ulimit -f 20; " + std::string(MOEBENCH_BINARY) + " run " + recipe +
                  " --cache :memory: --out " + s.path("out")),
              3, {"a.ckpt", "too large"});
}

TEST_CASE("a corrupt profile cache is named, set aside and replaced") {
  const Scratch s;
  const std::string cache = s.write("cache.sqlite", "this is not a database, not at all" + kText);
  const Outcome o =
      s.train("tokens = 'reference', system = moe.system 'lancet' {}", "--cache " + cache);
  check_error(o, 0, {"cache.sqlite", "corrupt"});
  CHECK(fs::exists(cache + ".corrupt-1"));
}

TEST_CASE("a disk that fills up is an error that names the file") {
  const Scratch s;
  const std::string recipe =
      s.write("big.lua",
              "local moe = require 'moe'\n"
              "return moe.experiment { name = 'big', over = { nodes = { 2, 4 } }, case = "
              "function(p) return {\n"
              "  model = moe.model.gpt2_moe { layers = 4, hidden = 64, heads = 4, seq = 64,\n"
              "    batch_per_device = 2, experts_per_device = 2 },\n"
              "  cluster = moe.cluster.p4de { nodes = p.nodes }, systems = { moe.system 'raf' {} } "
              "} end }\n");
  const Outcome o = run("trap '' XFSZ; ulimit -f 1; exec " + std::string(MOEBENCH_BINARY) +
                        " run " + recipe + " --out " + s.path("out"));
  check_error(o, 3, {"out/"});
}
