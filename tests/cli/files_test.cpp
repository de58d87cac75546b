// Folders that somebody has prepared: links, FIFOs and leftovers where the program reads and
// writes. Nothing outside the output folder is written, and nothing outside is read or told.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/base/folder.h"
#include "tests/cli/program.h"

namespace fs = std::filesystem;
using moe::test::Outcome;

namespace {

const std::string kTiny = R"(local moe = require "moe"
local model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 16, heads = 2, seq = 8,
  batch_per_device = 1, experts = 2 }
local function train(t)
  t.model, t.tokens = model, "reference"
  return moe.train(t)
end
)";

/// all_fail(list, part): each function of the list raises an error that has the part.
const std::string kPcallAll = R"(
local function all_fail(list, part)
  for i, f in ipairs(list) do
    local ok, e = pcall(f)
    assert(not ok and tostring(e):find(part, 1, true), i .. ': ' .. tostring(e))
  end
end
)";

/// A folder of its own that the program is started in.
class Place : public moe::test::Folder {
 public:
  Place() {
    write("secret.txt", kSecret);
    fs::create_directories(path("work"));
  }

  static constexpr const char* kSecret = "the secret 12345";
  Outcome shell(const std::string& command) const {
    return moe::test::run("cd " + path("work") + "; " + command);
  }
  /// Runs the text as work/recipe.lua. 124: it hung.
  Outcome run(const std::string& recipe, const std::string& more = "") const {
    write("work/recipe.lua", recipe);
    return shell("timeout 30 " MOEBENCH_BINARY " run recipe.lua --cache :memory: " + more);
  }
  std::vector<std::string> names(const std::string& folder) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path(folder))) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
};

}  // namespace

TEST_CASE("a link that stands where a temporary file was is not written through") {
  const Place at;
  for (const char* link : {"m.ckpt.tmp", "m.ckpt", "sub"}) {
    INFO(link);
    fs::create_directories(at.path("work/out/recipe"));
    fs::create_symlink(link == std::string("sub") ? at.path("") : at.path("secret.txt"),
                       at.path(std::string("work/out/recipe/") + link));
    const Outcome plain = at.run(kTiny + "train { checkpoint_to = 'm.ckpt' }");
    INFO(plain.text);
    CHECK(plain.exit == (link == std::string("m.ckpt") ? 1 : 0));
    const Outcome below = at.run(kTiny + "train { checkpoint_to = 'sub/secret.txt' }");
    INFO(below.text);
    CHECK(below.exit == (link == std::string("sub") ? 1 : 0));
    CHECK(at.text("secret.txt") == Place::kSecret);
    fs::remove_all(at.path("work/out"));
  }
}

TEST_CASE("a hard link in the output folder is replaced, not written through") {
  const Place at;
  fs::create_directories(at.path("work/out/recipe"));
  fs::create_hard_link(at.path("secret.txt"), at.path("work/out/recipe/m.ckpt"));
  const Outcome o = at.run(kTiny + "train { checkpoint_to = 'm.ckpt' }");
  INFO(o.text);
  CHECK(o.exit == 0);
  CHECK(at.text("secret.txt") == Place::kSecret);
  CHECK(fs::file_size(at.path("work/out/recipe/m.ckpt")) > 1000);
}

TEST_CASE("an output folder that is a link is neither written nor a place to read from") {
  const Place at;
  const std::string reads =
      "local moe = require 'moe'\nmoe.machine '" + at.path("secret.txt") + "'";
  fs::create_directory_symlink(at.path(""), at.path("work/out"));
  for (const char* out : {"", "--out out", "--out out/work", "--out ./out", "--out out/"}) {
    INFO(out);
    const Outcome writes = at.run(kTiny + "train { checkpoint_to = 'm.ckpt' }", out);
    INFO(writes.text);
    CHECK(writes.exit == 1);
    CHECK(writes.text.find("link") != std::string::npos);
    CHECK(at.names("") == std::vector<std::string>{"secret.txt", "work"});
  }
  // The folder "out" of the working folder may be read, whatever the output is.
  const Outcome o = at.run(reads, "--out elsewhere");
  INFO(o.text);
  CHECK(o.exit == 1);
  CHECK(o.text.find("12345") == std::string::npos);
  CHECK(o.text.find("outside") != std::string::npos);
}

TEST_CASE("what is said of a place outside does not depend on what is there") {
  const Place at;
  at.write("folder/file", "x");
  REQUIRE(mkfifo(at.path("fifo").c_str(), 0600) == 0);
  fs::create_symlink(at.path("nowhere"), at.path("dangling"));
  fs::create_symlink(at.path("work"), at.path("link"));
  const Outcome o = at.run("local moe = require 'moe'\nfor _, prefix in ipairs { '" + at.path("") +
                           R"(', '../' } do
  local first
  for _, name in ipairs { 'secret.txt', 'none.txt', 'folder', 'folder/none', 'fifo', 'dangling',
    'none/../secret.txt', 'folder/../secret.txt', 'link/../secret.txt' } do
    local path = prefix .. name
    local ok, e = pcall(moe.trace.read, path)
    local i, j = tostring(e):find(path, 1, true)
    local said = tostring(e):sub(1, i - 1) .. tostring(e):sub(j + 1)
    first = first or said
    assert(not ok and said == first, said)
  end
end)");
  INFO(o.text);
  CHECK(o.exit == 0);
}

TEST_CASE("a link inside that leads outside says the same whether something is there") {
  const Place at;
  std::string said[2];
  for (int there = 0; there < 2; ++there) {
    fs::remove(at.path("work/x"));
    fs::create_symlink(at.path(there == 0 ? "none.txt" : "secret.txt"), at.path("work/x"));
    const Outcome o = at.run("local moe = require 'moe'\nmoe.trace.read 'x'");
    CHECK(o.exit == 1);
    CHECK(o.text.find("12345") == std::string::npos);
    said[there] = o.text;
  }
  CHECK(said[0] == said[1]);
}

TEST_CASE("only regular files are read") {
  const Place at;
  REQUIRE(mkfifo(at.path("work/fifo").c_str(), 0600) == 0);
  REQUIRE(mkfifo(at.path("work/mod.lua").c_str(), 0600) == 0);
  fs::create_directories(at.path("work/folder"));
  const Outcome o = at.run(kTiny + kPcallAll + R"(for _, name in ipairs { 'fifo', 'folder' } do
  all_fail({
    function() moe.trace.read(name) end,
    function() moe.machine(name) end,
    function() moe.nccl_tests(name) end,
    function() train { resume_from = '../../' .. name } end,
    function() moe.trace.import { format = 'csv', files = { name }, to = 't', experts = 2, k = 1 }
      end,
    function() moe.train { model = model, text = name == 'fifo' and name or 'none' } end,
    function() require 'mod' end }, '')
end)");
  INFO(o.text);
  CHECK(o.exit == 0);
  const Outcome recipe = at.shell("timeout 30 " MOEBENCH_BINARY " run fifo");
  INFO(recipe.text);
  CHECK(recipe.exit == 1);
  CHECK(recipe.text.find("FIFO") != std::string::npos);
}

TEST_CASE("a recipe is a file or -: other names of standard input are refused") {
  const Place at;
  at.write("work/recipe.lua", "print 'it ran'");
  for (const char* command : {"cat recipe.lua | @ run /dev/stdin", "@ run /dev/stdin < recipe.lua",
                              "@ run /dev/null", "cat recipe.lua | @ check /dev/fd/0"}) {
    std::string text = command;
    text.replace(text.find('@'), 1, "timeout 30 " MOEBENCH_BINARY);
    const Outcome o = at.shell(text);
    INFO(text << "\n" << o.text);
    CHECK(o.exit == 1);
    CHECK(o.text.find("moebench: ") != std::string::npos);
    CHECK(o.text.find("file") != std::string::npos);
  }
}

TEST_CASE("a NUL in a path is refused wherever a path is taken") {
  const Place at;
  at.write("work/t.lua", "return 1");
  const Outcome o = at.run(kTiny + kPcallAll + R"(train { checkpoint_to = 'm.ckpt' }
all_fail({
  function() require 't\0x' end,
  function() moe.trace.read 't.lua\0x' end,
  function() moe.machine 't.lua\0' end,
  function() moe.results 'out\0' end,
  function() train { checkpoint_to = 'a\0b' } end,
  function() train { resume_from = 'm.ckpt\0' } end,
  function() train { record = 'r\0' } end,
  function() moe.trace 't.lua\0' {} end,
  function() moe.nccl_tests 't.lua\0' end,
  function() moe.train { model = model, text = 't.lua\0' } end,
  function() moe.trace.import { format = 'csv', files = { 't.lua\0' }, to = 't', experts = 2,
    k = 1 } end }, 'NUL'))");
  INFO(o.text);
  CHECK(o.exit == 0);
  CHECK(at.names("work/out/recipe") == std::vector<std::string>{"m.ckpt"});
}

TEST_CASE("what a killed run leaves is removed by the next, what others write is not") {
  const Place at;
  const std::string folder = "work/out/recipe/";
  for (const char* name : {".moebench-0123456789abcdef.tmp", "sub/.moebench-0123456789abcdef.tmp",
                           ".moebench-mine.tmp", "m.ckpt.tmp", ".moebench-fedcba9876543210.tmp"}) {
    at.write(folder + name, "half");
  }
  // Whoever writes a file holds its lock.
  const int fd = open(at.path(folder + ".moebench-fedcba9876543210.tmp").c_str(), O_RDWR);
  REQUIRE(flock(fd, LOCK_EX) == 0);
  fs::create_symlink(at.path("secret.txt"), at.path(folder + ".moebench-aaaaaaaaaaaaaaaa.tmp"));
  const Outcome o = at.run(kTiny + "train { checkpoint_to = 'sub/m.ckpt' }");
  close(fd);
  INFO(o.text);
  CHECK(o.exit == 0);
  CHECK(at.names("work/out/recipe") ==
        std::vector<std::string>{".moebench-aaaaaaaaaaaaaaaa.tmp", ".moebench-fedcba9876543210.tmp",
                                 ".moebench-mine.tmp", "m.ckpt.tmp", "sub"});
  CHECK(at.names("work/out/recipe/sub") == std::vector<std::string>{"m.ckpt"});
  CHECK(at.text("secret.txt") == Place::kSecret);
}

TEST_CASE("earlier results are moved to folders of their own, whoever wrote them") {
  const Place at;
  const auto recipe = [](int nodes, const std::string& more) {
    return "local moe = require 'moe'\nreturn moe.experiment { name = 'e', over = { nodes = { 1" +
           std::string(nodes == 2 ? ", 2" : "") +
           " } },\n  case = function(p) return { systems = { moe.system 'raf' {} }, cluster = "
           "moe.cluster.p4de { nodes = p.nodes },\n  model = moe.model.gpt2_moe { layers = 2, "
           "hidden "
           "= 64, heads = 4, seq = 64, batch_per_device = 2, experts_per_device = 1 } } end } " +
           more;
  };
  const auto ends = [&](const std::string& text) {
    const Outcome o = at.run(text, "--out o");
    INFO(o.text);
    CHECK(o.exit == 0);
    return o.text;
  };
  const std::vector<std::string> one = {"results.json", "runs.jsonl",
                                        "trace-001-raf-simulated.json"};
  std::vector<std::string> two = one, with_folder = one;
  two.emplace_back("trace-002-raf-simulated.json");
  with_folder.insert(with_folder.begin(), "1");
  ends(recipe(2, ""));
  CHECK(at.names("work/o") == two);
  const std::string first = at.text("work/o/results.json");
  CHECK(ends(recipe(1, "-- changed")).find("now in o/1") != std::string::npos);
  CHECK(at.names("work/o") == with_folder);
  CHECK(at.names("work/o/1") == two);
  CHECK(at.text("work/o/1/results.json") == first);
  // A file of the recipe stays, and a folder that exists is not written into.
  at.write("work/o/m.ckpt", "mine");
  at.write("work/o/2/mine", "mine");
  ends(recipe(1, ""));
  CHECK(at.names("work/o/3") == one);
  CHECK(at.text("work/o/m.ckpt") == "mine");
  CHECK(at.names("work/o/2") == std::vector<std::string>{"mine"});
  // What a killed process had finished is kept, what it had only begun is not; a move that was cut
  // off is finished.
  fs::remove(at.path("work/o/results.json"));
  ends(recipe(1, ""));
  CHECK(at.names("work/o/4") == std::vector<std::string>{one[1], one[2]});
  fs::remove(at.path("work/o/results.json"));
  at.write("work/o/runs.jsonl", "{\"schema\":1}\n");
  ends(recipe(1, ""));
  CHECK_FALSE(fs::exists(at.path("work/o/5")));
  fs::create_directories(at.path("work/o/.earlier"));
  fs::rename(at.path("work/o/runs.jsonl"), at.path("work/o/.earlier/runs.jsonl"));
  ends(recipe(1, ""));
  CHECK(at.names("work/o/5") == one);
  CHECK_FALSE(fs::exists(at.path("work/o/.earlier")));
  const Outcome diff = at.shell(MOEBENCH_BINARY " diff o/5 o/results.json");
  INFO(diff.text);
  CHECK(diff.exit == 0);
  CHECK(diff.text.find("The results are equal: times, memory and plans of 1 runs") !=
        std::string::npos);
  CHECK(at.shell(MOEBENCH_BINARY " diff o/5 o/nowhere").exit == 1);
  CHECK(at.shell(MOEBENCH_BINARY " diff o/5").exit == 2);
  CHECK(at.run(recipe(1, ""), "--set nodes=1 --set nodes=2").exit == 2);
  // The folder may be named by a link where it is read.
  fs::create_directory_symlink("o", at.path("work/latest"));
  const Outcome page = at.shell(MOEBENCH_BINARY " report latest");
  INFO(page.text);
  CHECK(page.exit == 0);
  CHECK(fs::exists(at.path("work/o/report.html")));
  const Outcome figures = at.shell(MOEBENCH_BINARY " export latest");
  INFO(figures.text);
  CHECK(figures.exit == 0);
  CHECK(fs::is_directory(at.path("work/o/figures")));
}

TEST_CASE("a folder that another process writes into is waited for, and both have their results") {
  const Place at;
  const std::string sweep =
      "local moe = require 'moe' local n = {} for i = 1, 20 do n[i] = 2 * i end\n"
      "return moe.experiment { name = 'x', over = { layers = n }, case = function(p) return { "
      "systems = { moe.system 'raf' {} }, cluster = moe.cluster.p4de { nodes = 1 }, model = "
      "moe.model.gpt2_moe { layers = p.layers, hidden = 64, heads = 4, seq = 64, "
      "batch_per_device = 2, experts_per_device = 1 } } end }";
  at.write("work/a.lua", sweep);
  at.write("work/b.lua", "-- b\n" + sweep);
  const std::string program = "timeout 100 " MOEBENCH_BINARY " run --out o --cache :memory: ";
  const Outcome both =
      at.shell(program + "a.lua > a.txt & " + program + "b.lua > b.txt; s=$?; wait $! && exit $s");
  INFO(both.text);
  CHECK(both.exit == 0);
  CHECK(at.text("work/o/results.json").size() > 1000);
  CHECK(at.text("work/o/1/results.json").size() > 1000);
  // A signal ends the wait.
  const int folder = open(at.path("work/o").c_str(), O_RDONLY);
  REQUIRE(flock(folder, LOCK_EX) == 0);
  const Outcome stopped =
      at.shell("timeout -s TERM 3 " MOEBENCH_BINARY " run a.lua --out o --cache :memory:");
  close(folder);
  INFO(stopped.text);
  CHECK(stopped.text.find("process " + std::to_string(getpid())) != std::string::npos);
  CHECK(stopped.text.find("interrupted") != std::string::npos);
  CHECK(fs::exists(at.path("work/o/results.json")));
  CHECK_FALSE(fs::exists(at.path("work/o/2")));
}

TEST_CASE("an export writes charts and tables into the folder that it is told, and nothing else") {
  const Place at;
  REQUIRE(at.run("local moe = require 'moe' return moe.experiment { name = 'x', systems = "
                 "{ moe.system 'raf' {}, moe.system 'deepspeed' {} }, cluster = moe.cluster.p4de "
                 "{ nodes = 1 }, model = moe.model.gpt2_moe { layers = 2, hidden = 64, heads = 4, "
                 "seq = 64, batch_per_device = 2, experts_per_device = 1 } }",
                 "--out o")
              .exit == 0);
  const Outcome made = at.shell(MOEBENCH_BINARY " export o --to figures --where system=raf");
  INFO(made.text);
  REQUIRE(made.exit == 0);
  size_t count = 0;
  for (const auto& entry : fs::directory_iterator(at.path("work/figures"))) {
    const std::string ending = entry.path().extension().string();
    CHECK((ending == ".svg" || ending == ".csv" || ending == ".tex"));
    CHECK(made.text.find(entry.path().filename().string()) != std::string::npos);
    ++count;
  }
  CHECK(count > 3);
  CHECK_FALSE(fs::exists(at.path("work/o/figures")));
  CHECK(at.shell(MOEBENCH_BINARY " export").exit == 2);
  CHECK(at.shell(MOEBENCH_BINARY " export o o").exit == 2);
  CHECK(at.shell(MOEBENCH_BINARY " export none").text.find("no such folder") != std::string::npos);
  const Outcome none = at.shell(MOEBENCH_BINARY " export o --where system=raff");
  CHECK(none.exit == 1);
  CHECK(none.text.find("have: deepspeed, raf") != std::string::npos);
}

TEST_CASE("a huge file is refused by its size before it is read, with what is allowed") {
  const Place at;
  struct Row {
    std::string name, recipe;
  };
  const Row rows[] = {
      {"config.json", "moe.model.from_config 'config.json'"},
      {"tokens.json", "moe.train { model = model, tokens = 'tokens.json' }"},
      {"text.txt", "moe.train { model = model, text = 'text.txt' }"},
      {"m.csv", "moe.op_table 'm.csv'"},
      {"machine.lua", "moe.machine 'machine.lua'"},
      {"more.lua", "require 'more'"},
      {"trace.csv",
       "moe.trace.import { format = 'csv', files = { 'trace.csv' }, experts = 2, k = 1, "
       "to = 't.bin' }"},
      {"t.bin", "moe.trace.read 't.bin'"},
      {"results.json", "moe.results '.'"},
      {"runs.jsonl", "moe.results '.'"},
      {"recipe.lua", ""},
  };
  for (const Row& row : rows) {
    INFO(row.name);
    at.write("work/recipe.lua", kTiny + row.recipe);
    if (row.name != "recipe.lua") at.write("work/" + row.name, "");
    fs::resize_file(at.path("work/" + row.name), uintmax_t{64} << 30);
    const Outcome o = at.shell("ulimit -v 8000000; timeout 30 " MOEBENCH_BINARY
                               " run recipe.lua --cache :memory:");
    INFO(o.text);
    CHECK(o.exit == 1);
    CHECK(o.text.find(row.name + ": it has 68719476736 bytes (64.0 GiB); allowed: at most ") !=
          std::string::npos);
    fs::remove(at.path("work/" + row.name));
  }
}

TEST_CASE("JSON whose values take much more memory than its text is refused") {
  const Place at;
  std::string many = "[";
  for (int i = 0; i < 6'000'000; ++i) many += "[],";
  many += "[]]";
  for (const char* recipe : {"moe.model.from_config 'x.json'",
                             "moe.train { model = model, tokens = 'x.json' }", "moe.results '.'"}) {
    at.write("work/x.json", many);
    at.write("work/results.json", many);
    const Outcome o = at.run(kTiny + recipe);
    INFO(o.text);
    CHECK(o.exit == 1);
    CHECK(o.text.find("the values of its JSON text would take about 8") != std::string::npos);
  }
}
