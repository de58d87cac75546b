#include <algorithm>
#include <catch2/catch.hpp>
#include <ctime>

#include "bindings/host/convert.h"
#include "engine/base/rng.h"
#include "tests/bindings/fixture.h"

using namespace moe::lua;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

// A random JSON value of at most `depth` levels.
json random_value(moe::Rng& rng, int depth) {
  switch (rng.below(depth > 0 ? 6 : 4)) {
    case 0:
      return rng.below(2) == 0;
    case 1:
      return rng.below(1 << 20) - (1 << 19);
    case 2:
      return (rng.uniform() - 0.5) * std::pow(10.0, static_cast<double>(rng.below(40) - 20));
    case 3:
      return std::string(static_cast<size_t>(rng.below(5)), static_cast<char>('a' + rng.below(26)));
    case 4: {
      json list = json::array();
      for (int64_t i = rng.below(4); i > 0; --i) list.push_back(random_value(rng, depth - 1));
      return list;
    }
    default: {
      json object = json::object();
      for (int64_t i = rng.below(4); i > 0; --i) {
        object["k" + std::to_string(rng.below(100))] = random_value(rng, depth - 1);
      }
      return object;
    }
  }
}

}  // namespace

TEST_CASE("a JSON value that goes through Lua comes back the same, to the last bit") {
  LibraryState lua;
  moe::Rng rng(7);
  for (int i = 0; i < 300; ++i) {
    const json value = random_value(rng, 4);
    push_json(lua.L(), value);
    const json back = to_json(lua.L(), -1);
    lua_pop(lua.L(), 1);
    CHECK(json_text(back, -1) == json_text(value, -1));
    CHECK(parse_json(json_text(back, 1)) == back);
  }
}

TEST_CASE("JSON is read in a time that grows with its length, and checked") {
  const auto seconds = [](size_t entries) {
    std::string text = "[{}";
    for (size_t i = 1; i < entries; ++i) text += ",{\"a\":1}";
    const std::clock_t begin = std::clock();
    CHECK(parse_json(text + "]").size() == entries);
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  CHECK(seconds(64000) < 40 * std::max(1e-3, seconds(8000)));  // 64 times by squares
  CHECK_THROWS_WITH(parse_json(R"({"a":{"b":1,"c":2},"d":[{"b":1},{"b":1}],"a":1})"),
                    Contains("the key \"a\" is there twice in one object"));
  const std::string deep(64, '[');
  CHECK(parse_json(deep + std::string(64, ']')).size() == 1);
  CHECK_THROWS_WITH(parse_json(deep + "["), Contains("more than 64 objects and arrays"));
  CHECK_THROWS_WITH(parse_json("[1,"), Contains("is not JSON at byte 4"));
}

TEST_CASE("the library's JSON keeps whole numbers whole and every double exact") {
  LibraryState lua;
  CHECK(lua.text_of("core.json_encode { b = 1, a = 0.1, c = 2^40 }") ==
        R"({"a":0.1,"b":1,"c":1099511627776})");
  CHECK(lua.text_of("core.json_encode { 1e300, -0.5, 3 }") == "[1e+300,-0.5,3]");
  CHECK(lua.text_of("core.json_decode(core.json_encode { 1/3 })[1] == 1/3") == "true");
  CHECK(lua.text_of("core.json_encode { 0/0 }") == "[null]");
}

TEST_CASE("an empty table is an object unless it is marked as an array") {
  LibraryState lua;
  CHECK(lua.text_of("core.json_encode { x = {} }") == R"({"x":{}})");
  CHECK(lua.text_of("core.json_encode { x = core.array {} }") == R"({"x":[]})");
  CHECK(lua.text_of("core.json_encode(core.json_decode '{\"x\":[],\"y\":{}}')") ==
        R"({"x":[],"y":{}})");
  CHECK(lua.text_of("core.json_decode '[null]'[1] == core.null") == "true");
}

TEST_CASE("what JSON cannot hold is refused with the place where it stands") {
  LibraryState lua;
  const auto refused = [&](const std::string& value) {
    return lua.text_of("select(2, pcall(core.json_encode, " + value + "))");
  };
  CHECK_THAT(refused("{ a = { print } }"), Contains(".a[1]: a function"));
  CHECK_THAT(refused("{ 1, 2, x = 3 }"), Contains("both a list and other keys"));
  CHECK_THAT(refused("{ [3] = 1 }"), Contains("a key has the type number"));
  CHECK_THAT(refused("(function() local t = {} t.t = t return t end)()"), Contains("too deep"));
  CHECK_THAT(refused("'\\255'"), Contains("UTF-8"));
  CHECK_THAT(lua.text_of("select(2, pcall(core.json_decode, '{\"a\": tru}'))"), Contains("byte"));
}

TEST_CASE("a field of the wrong type is refused by its path") {
  const json value = {{"model", {{"layers", 2.5}, {"name", 3}}}};
  const Fields model = Fields(value, "plan").at("model");
  CHECK_THROWS_WITH(model.integer("layers"), Contains("plan.model.layers: give a whole number"));
  CHECK_THROWS_WITH(model.text("name"), Contains("plan.model.name: give a string"));
  CHECK_THROWS_WITH(model.number("heads"), Contains("plan.model.heads: is missing"));
  CHECK(model.integer("heads", 7) == 7);
}
