// Every documented number at the ends of its range: ranges.lua.
#include <catch2/catch.hpp>
#include <sstream>

#include "tests/bindings/fixture.h"

using namespace moe::lua;

namespace {

std::string ranges(LibraryState& state, const std::string& expression) {
  state.run(
      "return assert(loadfile('" MOE_SOURCE_DIR "/tests/bindings/ranges.lua'))()" + expression, 1);
  std::string text = lua_tostring(state.L(), -1);
  lua_pop(state.L(), 1);
  return text;
}

}  // namespace

TEST_CASE("documented numbers at the ends of their ranges give figures or are refused by name") {
  LibraryState state;
  std::istringstream names(ranges(state, ".names()"));
  for (std::string name; std::getline(names, name);) {
    INFO(name);
    CHECK(ranges(state, ".run('" + name + "')") == "");
  }
}
