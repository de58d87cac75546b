// Machine files, and the cluster that is made of one.
#include "tests/fuzz/lua_loader.h"

using namespace moe;

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max, unsigned seed) {
  return fuzz::mutated(data, size, max, seed, fuzz::mutate_text);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string path = fuzz::folder() + "/machine.lua";
  static fuzz::LuaLoader loader(
      "local moe = require 'moe' return function() "
      "moe.cluster.custom(moe.machine('" +
      path + "')) end");
  fuzz::write(path, {reinterpret_cast<const char*>(data), size});
  return fuzz::loaded([] { loader.load(); });
}
