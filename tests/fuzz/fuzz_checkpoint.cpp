// Checkpoints of a tiny model on two ranks, with placed experts, read whole and for the parameters
// alone.
#include "engine/exec/checkpoint.h"
#include "tests/exec/support.h"
#include "tests/fuzz/mutate.h"

using namespace moe;

namespace {

const Metadata kFacts = {{"gate", "switch"}, {"tokens", "a text"}};

/// Smaller than run.sh's -max_len, so that a whole checkpoint can be an input.
PlanSpec tiny() {
  test::Gpt2 model = test::small_model();
  model.vocab = model.hidden = model.ffn = 4;
  model.heads = model.layers = model.moe_every = 1;
  model.seq = 2;
  return test::spec_of(model, 2);
}

struct World {
  std::shared_ptr<const Plan> plan = test::plan_with(tiny(), {test::pass("eplb")});
  PersistentTensors all = persistent_tensors(*plan);
  RankBuffers first{*plan, 4}, second{*plan, 4};
  AllBuffers ranks = {&first, &second};
  std::string path = fuzz::folder() + "/x.ckpt", good;
  World() {
    const RunOptions options = test::options_of(*plan, 1);
    for (size_t r = 0; r < ranks.size(); ++r) {
      initialise<float>(*plan, all, *ranks[r], static_cast<int64_t>(r), options);
    }
    write_checkpoint(path, all, ranks, 4, 3, kFacts);
    good = fuzz::content(path);
  }
};

const World& world() {
  static const World world;
  return world;
}

std::string mutate(std::string_view bytes, fuzz::Random& random) {
  std::string out = fuzz::mutate_safetensors(bytes, random, world().good);
  if (random() % 16 != 0) fuzz::repair_checksum(out);
  return out;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max, unsigned seed) {
  return fuzz::mutated(data, size, max, seed, mutate);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const World& w = world();
  for (const auto read :
       {+[](const World& v) { read_checkpoint(v.path, v.all, v.ranks, 4, kFacts); },
        +[](const World& v) { read_parameters(v.path, v.all, v.ranks, 4); }}) {
    fuzz::write(w.path, {reinterpret_cast<const char*>(data), size});
    fuzz::loaded([&] { read(w); });
  }
  return 0;
}
