// results.json, read by a recipe and made into a page.
#include "tests/fuzz/lua_loader.h"

using namespace moe;

namespace {

constexpr std::string_view kSample = R"({"schema": 1, "runs": []})";

std::string mutate(std::string_view text, fuzz::Random& random) {
  return fuzz::mutate_json(text, random, kSample);
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max, unsigned seed) {
  return fuzz::mutated(data, size, max, seed, mutate);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string path = fuzz::folder() + "/results.json";
  static fuzz::LuaLoader loader(R"(
    local moe, page = require "moe", require "moe.results.page"
    return function()
      local ok, why = pcall(moe.results, ")" +
                                fuzz::folder() + R"(")
      if not ok and (type(why) ~= "table" or why.kind ~= "user") then error(why, 0) end
      page.report "report.html"
    end)");
  fuzz::write(path, {reinterpret_cast<const char*>(data), size});
  return fuzz::loaded([] { loader.load(); });
}
