// Parameters of a few tensors in the safetensors format, one file or the index of several.
#include "engine/exec/safetensors.h"
#include "engine/ops/ops.h"
#include "tests/fuzz/mutate.h"

using namespace moe;

namespace {

/// A vector, a matrix, and experts whose tensors are together or apart, transposed or interleaved.
Model a_few() {
  Model model(ModelSpec{}, Graph(op_table()));
  model.parameters = {{"vector", {4}},
                      {"matrix", {4, 6}},
                      {"together", {2, 4, 32}, true},
                      {"apart", {2, 4, 6}, true}};
  model.states = {{"state", {2}}};
  return model;
}

const TensorSources kSources = {{"vector", {{"v"}}},
                                {"matrix", {{"a", "b"}}},
                                {"together", {{"t"}, true}},
                                {"apart", {{"e.%d"}, true, true}},
                                {"state", {{"s"}}}};

struct World {
  const Model model = a_few();
  std::string path = fuzz::folder() + "/x.safetensors", good;
  World() {
    write_safetensors(path, model, kSources, FileType::kBF16, [](uint64_t, uint64_t) { return 1; });
    good = fuzz::content(path);
  }
};

const World& world() {
  static const World world;
  return world;
}

std::string mutate(std::string_view bytes, fuzz::Random& random) {
  return fuzz::mutate_safetensors(bytes, random, world().good);
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max, unsigned seed) {
  return fuzz::mutated(data, size, max, seed, mutate);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const World& w = world();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  fuzz::write(w.path, input);
  fuzz::loaded([&] {
    const LoadedParameters loaded(std::make_shared<Safetensors>(std::vector{w.path}), w.model,
                                  kSources);
    const std::vector<ParamInfo>& parameters = w.model.parameters;
    for (size_t t = 0; t < parameters.size(); ++t) {
      const int64_t last = num_elements(parameters[t].shape) - 1;
      for (const int64_t i : {int64_t{0}, last}) loaded.value(static_cast<uint64_t>(i), t);
    }
  });
  fuzz::loaded([&] { files_of_index(input, w.path); });
  return 0;
}
