// Whole trainings: the curve of an independent implementation, and learning on real text.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/exec/data.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

std::vector<double> torch_curve() {
  std::ifstream file(MOE_SOURCE_DIR "/tests/data/curve20.json");
  REQUIRE(file.good());
  return nlohmann::json::parse(file)["losses"].get<std::vector<double>>();
}

TEST_CASE("twenty float32 steps stay within float32's spread of PyTorch's float64 curve") {
  const auto expected = torch_curve();
  const auto plan = plan_of(spec_of(reference_model("switch", 1), 1));
  const RunResult r = run_cpu(*plan, options_of(*plan, 20));
  REQUIRE(r.losses.size() == expected.size());
  // PyTorch's own float32 curve is up to 2e-6 away in the first 12 steps; rounding grows from
  // there.
  for (size_t i = 0; i < expected.size(); ++i) {
    INFO("step " << i);
    CHECK(std::abs(r.losses[i] - expected[i]) < (i < 12 ? 4e-6 : 4e-5));
  }
}

TEST_CASE("training on two ranks gets below the corpus's unigram entropy on held-out text",
          "[slow]") {
  Gpt2 model = reference_model("switch", 2);
  model.vocab = 256;
  model.layers = 2;
  auto corpus =
      std::make_shared<TextCorpus>(read_text(default_corpus_path(MOE_SOURCE_DIR), model.seq));
  const auto plan = plan_of(spec_of(model, 2));
  RunOptions o = options_of(*plan, 600);
  o.data = text_data(corpus, false, model.batch_per_device, 2, model.seq, 1);
  o.train.eval_batches = 16;
  o.train.eval_data = text_data(corpus, true, model.batch_per_device, 2, model.seq, 2);
  const RunResult r = run_cpu(*plan, o);
  INFO("held-out " << r.eval_loss << ", unigram entropy " << corpus->unigram_entropy);
  CHECK(corpus->unigram_entropy > 2.5);  // a real text, not a constant
  CHECK(r.eval_loss < corpus->unigram_entropy);
  CHECK(r.losses.back() < r.losses.front());
}

}  // namespace
}  // namespace moe::test
