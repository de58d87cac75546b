// Recipes that are wrong in one way, with their messages: wrong.lua.
#include <catch2/catch.hpp>
#include <vector>

#include "tests/bindings/fixture.h"

using namespace moe::lua;

namespace {

// The rows of wrong.lua: texts and numbers.
std::vector<std::vector<std::string>> rows() {
  LibraryState state;
  lua_State* L = state.L();
  state.run("return assert(loadfile('" MOE_SOURCE_DIR "/tests/bindings/wrong.lua'))()", 1);
  std::vector<std::vector<std::string>> all(lua_objlen(L, 1));
  for (size_t row = 0; row < all.size(); ++row, lua_pop(L, 1)) {
    lua_rawgeti(L, 1, static_cast<int>(row + 1));
    for (size_t i = 1; i <= lua_objlen(L, 2); ++i, lua_pop(L, 1)) {
      lua_rawgeti(L, 2, static_cast<int>(i));
      all[row].emplace_back(lua_tostring(L, -1));
    }
  }
  return all;
}

}  // namespace

TEST_CASE("a wrong recipe gets the kind of its error, its line and its message") {
  for (const std::vector<std::string>& row : rows()) {
    INFO(row[2]);
    const Folder folder;
    const auto failure = run_recipe(folder, row[2]);
    REQUIRE(failure);
    INFO(failure->message);
    CHECK(failure->kind == row[0]);
    const auto says = [&](const std::string& part) {
      return failure->message.find(part) != std::string::npos;
    };
    CHECK(says("recipe.lua:" + row[1] + ": "));
    for (size_t i = 3; i < row.size(); ++i) {
      INFO(row[i]);
      CHECK(says(row[i]));
    }
  }
}
