#include <catch2/catch.hpp>

#include "bindings/host/library_code.h"
#include "tests/bindings/fixture.h"

using namespace moe::lua;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

TEST_CASE("a recipe does not reach files, processes, the clock, chance or the library's insides") {
  for (const char* name : {"io", "os", "ffi", "jit", "package", "dofile", "loadfile", "loadstring",
                           "getfenv", "setfenv", "module", "newproxy", "collectgarbage"}) {
    const std::string message = message_of(std::string("local x = 1\nlocal y = ") + name);
    INFO(message);
    CHECK_THAT(message,
               Contains(std::string("recipe.lua:2: '") + name + "' is not available to recipes"));
  }
  CHECK_THAT(message_of("return debug.getinfo(1)"), Contains("attempt to call field 'getinfo'"));
  CHECK_THAT(message_of("return debug.getregistry()"), Contains("getregistry"));
  CHECK_THAT(message_of("return math.random()"), Contains("attempt to call field 'random'"));
  CHECK_THAT(message_of("return string.dump(print)"), Contains("attempt to call field 'dump'"));
  CHECK_THAT(message_of("return ('').dump(print)"), Contains("attempt to call field 'dump'"));
}

TEST_CASE("metatables of texts, globals and handles are out of reach") {
  CHECK_THAT(message_of("assert(getmetatable('') == false) getmetatable('').__index = nil"),
             Contains("attempt to index"));
  CHECK_THAT(message_of("setmetatable(_G, {})"), Contains("protected metatable"));
  CHECK_THAT(message_of("assert(getmetatable(_G) == false) x = nil return y"),
             Contains("undefined global 'y'"));
}

TEST_CASE("bytecode is refused wherever a text of Lua is taken") {
  const std::string bytecode = "\x1bLJ\x02\x02";
  const Folder folder;
  folder.write("module.lua", bytecode);
  const auto failure = run_recipe(folder, "require 'module'");
  REQUIRE(failure);
  CHECK_THAT(failure->message, Contains("module.lua: the file has bytecode, not Lua"));
  CHECK_THAT(message_of(bytecode), Contains("the file has bytecode, not Lua"));
  CHECK_THAT(message_of("local f, why = load('\\27LJ\\2\\2') assert(not f) error(why)"),
             Contains("wrong mode"));
  CHECK_THAT(message_of("load('io.open(\"/etc/passwd\")')()"),
             Contains("'io' is not available to recipes"));
}

TEST_CASE("require finds moe and files beside the recipe, once, and nothing else") {
  const Folder folder;
  folder.write("sizes.lua", "count = (rawget(_G, 'count') or 0) + 1 return { layers = 4 }");
  folder.write("sub/more.lua", "return require('sizes').layers + 1");
  CHECK_FALSE(run_recipe(folder,
                         "local s = require 'sizes' assert(require 'sub.more' == 5)\n"
                         "assert(require 'sizes' == s and count == 1)\n"
                         "assert(type(require 'moe') == 'table')"));
  for (const char* name : {"moe.core", "../secret", "..secret", "/etc/passwd", "string", "ffi",
                           "_G", "package", "sub/../sizes", ""}) {
    const auto failure = run_recipe(folder, std::string("\nrequire '") + name + "'");
    INFO(name);
    REQUIRE(failure);
    CHECK_THAT(failure->message, Contains("recipe.lua:2: require '"));
  }
}

TEST_CASE("a link that leads out of the recipe's folder is not followed") {
  const Folder outside, folder;
  outside.write("secret.lua", "return 'secret'");
  fs::create_symlink(outside.path("secret.lua"), folder.path("inside.lua"));
  const auto failure = run_recipe(folder, "return require 'inside'");
  REQUIRE(failure);
  CHECK_THAT(failure->message, Contains("outside the recipe's folder"));
}

TEST_CASE("modules that require each other in a circle are an error, not a hang") {
  const Folder folder;
  folder.write("a.lua", "local b = require 'b' return b");
  folder.write("b.lua", "local a = require 'a' return a");
  const auto failure = run_recipe(folder, "return require 'a'");
  REQUIRE(failure);
  CHECK_THAT(failure->message,
             Contains("b.lua:1: require 'a': the module is being loaded already"));
}

TEST_CASE("an undefined global is an error at its line, with the nearest name") {
  const Folder folder;
  const auto failure = run_recipe(folder, "local moe = require 'moe'\n\nreturn tonumbr('1')");
  REQUIRE(failure);
  CHECK(failure->kind == "user");
  CHECK_THAT(failure->message,
             Contains("recipe.lua:3: undefined global 'tonumbr'. Did you mean 'tonumber'?"));
  CHECK_THAT(message_of("x = 1 return x + 0 + y"), Contains("undefined global 'y'"));
  CHECK_THAT(message_of("return moe.model"), Contains("local moe = require \"moe\""));
}

TEST_CASE("pairs goes through keys in order, numbers before texts; rawpairs is Lua's own") {
  const Folder folder;
  const auto failure = run_recipe(folder, R"(
    local t = { zeta = 1, alpha = 2, [10] = 3, [2] = 4, mid = 5, [true] = 6, [0.5] = 7 }
    local keys = {}
    for k, v in pairs(t) do
      assert(t[k] == v)
      keys[#keys + 1] = tostring(k)
    end
    assert(table.concat(keys, ' ') == '0.5 2 10 alpha mid zeta true', table.concat(keys, ' '))
    for k in pairs(t) do t[k] = nil end
    assert(next(t) == nil)
    local sum = 0
    for _, v in rawpairs { 1, 2, 3 } do sum = sum + v end
    assert(sum == 6))");
  CHECK_FALSE(failure);
}

TEST_CASE("only files of the recipe, the output and what --set names can be read") {
  const Folder folder, elsewhere;
  const std::string other = elsewhere.write("other.txt", "text");
  Files::Options options;
  options.recipe_dir = folder.path();
  options.out_dir = folder.path("out");
  const std::string mine = folder.write("mine.txt", "text");
  CHECK(Files(options).readable(mine) == fs::canonical(mine));
  CHECK(Files(options).readable("mine.txt") == fs::canonical(mine));
  CHECK_THROWS_WITH(Files(options).readable(other), Contains("outside the recipe's folder"));
  CHECK_THROWS_WITH(Files(options).readable(folder.path(
                        "../" + fs::path(other).parent_path().filename().string() + "/other.txt")),
                    Contains("outside"));
  CHECK_THROWS_WITH(Files(options).readable("none.txt"), Contains("none.txt"));
  options.named = {other};
  CHECK_NOTHROW(Files(options).readable(other));
  options.named = {};
  options.trust = true;
  CHECK_NOTHROW(Files(options).readable(other));
}

TEST_CASE("output names that lead out of the output folder are refused") {
  const Folder folder;
  Files::Options options;
  options.out_dir = folder.path("out");
  fs::create_directories(options.out_dir);
  fs::create_symlink(folder.path(), folder.path("out/link"));
  const Files files(options);
  for (const char* name : {"../x", "/tmp/x", "", "a/../../x", "link/x", "."}) {
    INFO(name);
    CHECK_THROWS_WITH(files.writable(name), Contains("does not name a file in the output folder"));
  }
  write_file(files.writable("a/b.json"), "1");
  write_file(files.writable("a/b.json"), "22");
  CHECK(read_file(folder.path("out/a/b.json")) == "22");
  CHECK(std::distance(fs::directory_iterator(folder.path("out/a")), {}) == 1);
}

TEST_CASE("a failed write leaves the old file and no half of the new one") {
  const Folder folder;
  const std::string file = folder.write("x.json", "old");
  {
    moe::AtomicFile half(file);
    half.write("new", 3);
  }
  CHECK(read_file(file) == "old");
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
  fs::create_directory(folder.path("folder"));
  CHECK_THROWS_AS(write_file(folder.path("folder"), "new"), moe::RunError);
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 2);
}

TEST_CASE("the bytecode of the build is that of the library's files, and a changed file is read") {
  const std::string scripts = MOE_SOURCE_DIR "/scripts/";
  CHECK(kLibraryFiles.size() > 100);
  for (const LibraryFile& file : kLibraryFiles) {
    INFO(file.name);
    CHECK(file.hash == std::hash<std::string>()(read_file(scripts + std::string(file.name))));
  }
  const Folder folder;
  fs::create_directories(folder.path("long/" + std::string(150, 'x')));
  const std::string copy = folder.path("long/" + std::string(150, 'x') + "/scripts");
  fs::copy(scripts, copy, fs::copy_options::recursive);
  const auto list_gates = [&] {
    HostOptions options;
    options.scripts_dir = copy;
    options.mode = "list";
    Host host(options);
    return host.main("gatez")->message;
  };
  write_file(copy + "/moe/list.lua", "error 'changed'");
  CHECK_THAT(list_gates(), Contains("xx/scripts/moe/list.lua:1: changed"));
}

TEST_CASE("--trust lifts the sandbox") {
  const Folder folder;
  const auto trusted = [](HostOptions& o) { o.trust = true; };
  const auto failure = run_recipe(
      folder, "assert(io.open and os.time() > 0 and require 'ffi') assert(math.random)", trusted);
  CHECK((failure ? failure->message : "") == "");
}
