// A config.json of Hugging Face, and the model that is made of it. Models of few blocks are built.
#include <vector>

#include "tests/fuzz/lua_loader.h"

using namespace moe;

namespace {

/// The configs of all kinds of models.
const std::vector<std::string>& samples() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> texts;
    const char* const folder = MOE_SOURCE_DIR "/tests/data/transformers";
    for (const auto& model : std::filesystem::directory_iterator(folder)) {
      texts.push_back(fuzz::content(model.path() / "config.json"));
    }
    return texts;
  }();
  return all;
}

std::string mutate(std::string_view text, fuzz::Random& random) {
  const std::string& sample = samples()[random() % samples().size()];
  return fuzz::mutate_json(text.size() <= 1 ? sample : text, random, sample);
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max, unsigned seed) {
  return fuzz::mutated(data, size, max, seed, mutate);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string path = fuzz::folder() + "/config.json";
  static fuzz::LuaLoader loader(R"(
    local moe, spec = require "moe", require "moe.spec.model"
    return function()
      local model = moe.model.from_config(")" +
                                path + R"(") { seq = 16, batch_per_device = 1 }
      spec.resolve(model, 2, "bf16")
      if model.layers <= 4 then spec.counts(model) end
    end)");
  fuzz::write(path, {reinterpret_cast<const char*>(data), size});
  return fuzz::loaded([] { loader.load(); });
}
