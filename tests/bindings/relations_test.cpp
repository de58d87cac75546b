// What any simulation must obey, on every built-in cluster: relations.lua.
#include <catch2/catch.hpp>

#include "tests/bindings/fixture.h"

using namespace moe::lua;

TEST_CASE("wider numbers, more work, more nodes and skew take no less time on any cluster") {
  LibraryState state;
  state.run("return assert(loadfile('" MOE_SOURCE_DIR "/tests/bindings/relations.lua'))()", 1);
  CHECK(std::string(lua_tostring(state.L(), -1)) == "");
}
