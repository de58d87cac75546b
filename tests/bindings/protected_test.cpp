#include <catch2/catch.hpp>

#include "tests/bindings/fixture.h"

using namespace moe::lua;
using Catch::Matchers::Contains;

namespace {

struct Counted {
  static inline int alive = 0;
  Counted() { ++alive; }
  ~Counted() { --alive; }
};

int throw_user(lua_State*) {
  throw moe::UserError("field: wrong");
}
int throw_run(lua_State*) {
  throw moe::RunError("lost rank 1");
}
int throw_check(lua_State*) {
  MOE_CHECK(1 + 1 == 3, "of {}", 7);
  return 0;
}
int throw_standard(lua_State*) {
  throw std::out_of_range("vector");
}
int raise_lua(lua_State* L) {
  const Counted on_the_stack;
  return luaL_error(L, "from Lua");
}
int call_back(lua_State* L) {
  const Counted on_the_stack;
  lua_pushvalue(L, 1);
  call(L, 0, 0);
  return 0;
}

Failure failure_of(LibraryState& lua, lua_CFunction function, const char* argument = nullptr) {
  lua_pushcfunction(lua.L(), function);
  if (argument != nullptr) REQUIRE(luaL_loadstring(lua.L(), argument) == 0);
  Failure failure;
  REQUIRE_FALSE(try_call(lua.L(), argument != nullptr ? 1 : 0, 0, failure));
  REQUIRE(lua_gettop(lua.L()) == 0);
  return failure;
}

}  // namespace

TEST_CASE("each kind of exception arrives in Lua as its own kind of error") {
  LibraryState lua;
  Failure f = failure_of(lua, core_function<throw_user>);
  CHECK(f.kind == "lua");
  CHECK(f.message == "field: wrong");
  f = failure_of(lua, core_function<throw_run>);
  CHECK(f.kind == "run");
  CHECK(f.message == "lost rank 1");
  f = failure_of(lua, core_function<throw_check>);
  CHECK(f.kind == "internal");
  CHECK_THAT(f.message, Contains("1 + 1 == 3") && Contains("of 7"));
  CHECK(failure_of(lua, core_function<throw_standard>).kind == "internal");
  CHECK(failure_of(lua, method<throw_user>).kind == "user");
}

TEST_CASE("Lua errors and exceptions unwind through each other and destroy what they pass") {
  LibraryState lua;
  CHECK(failure_of(lua, core_function<raise_lua>).message.find("from Lua") != std::string::npos);
  CHECK(Counted::alive == 0);
  CHECK(failure_of(lua, core_function<call_back>, "error('inner', 0)").message == "inner");
  CHECK(failure_of(lua, core_function<call_back>, "error(require 'moe.core'.failure('run', 'm'))")
            .kind == "run");
  CHECK(Counted::alive == 0);
}

TEST_CASE("an error with a kind keeps it on its way through C++ and has no traceback") {
  LibraryState lua;
  const Failure f =
      failure_of(lua, core_function<call_back>, "error(require 'moe.core'.failure('stop', 's'))");
  CHECK(f.kind == "stop");
  CHECK(f.traceback.empty());
}

TEST_CASE("a table that says that it has a kind has none") {
  LibraryState lua;
  const Failure f =
      failure_of(lua, core_function<call_back>, "error({ kind = 'internal', message = 'm' })");
  CHECK(f.kind == "lua");
  CHECK(f.message == "m");
}

TEST_CASE("a bare Lua error carries the recipe's traceback without the library's frames") {
  const Folder folder;
  const auto failure =
      run_recipe(folder, "local function f() local t; return t.x end\nlocal x = f()\n");
  REQUIRE(failure);
  CHECK(failure->kind == "lua");
  CHECK_THAT(failure->message, Contains("recipe.lua:1: attempt to index"));
  CHECK_THAT(failure->traceback, Contains("recipe.lua:2: in function") && !Contains("scripts/moe"));
}

TEST_CASE("a syntax error names the line") {
  CHECK_THAT(message_of("local x = 1\nlocal = 2"), Contains("recipe.lua:2: "));
}
