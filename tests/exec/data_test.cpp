#include <catch2/catch.hpp>
#include <filesystem>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/exec/data.h"
#include "tests/base/folder.h"
#include "tests/model/gpt2.h"

namespace moe {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using test::Folder;

std::string as_string(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

std::string letters(size_t n) {
  std::string s(n, ' ');
  for (size_t i = 0; i < n; ++i) s[i] = static_cast<char>('a' + i * i % 26);
  return s;
}

struct Batch {
  std::vector<int32_t> ids, targets;
};

/// The global batch of a step, ranks in order.
Batch global_batch(const DataSource& data, int64_t step, int64_t ranks, int64_t batch,
                   int64_t seq) {
  const size_t part = static_cast<size_t>(batch * seq);
  Batch all{std::vector<int32_t>(part * static_cast<size_t>(ranks)), {}};
  all.targets = all.ids;
  for (int64_t r = 0; r < ranks; ++r) {
    const size_t at = part * static_cast<size_t>(r);
    data(step, r, all.ids.data() + at, all.targets.data() + at);
  }
  return all;
}

TEST_CASE("the reference tokens are the specification's, with any number of ranks") {
  // From the float64 reference: vocab 512, batch 8, seq 64, steps 0 to 4.
  const std::vector<int32_t> first_16 = {39,  480, 170, 491, 337, 99,  388, 236,
                                         286, 331, 74,  22,  428, 169, 148, 128};
  const std::vector<int64_t> input_sums = {85089, 86105, 89796, 83821, 90900};
  const std::vector<int64_t> target_sums = {84976, 86733, 90650, 84647, 90858};
  const int64_t ranks = GENERATE(1, 2, 8);
  const DataSource data = reference_data(512, 8 / ranks, ranks, 64);
  for (int64_t step = 0; step < 5; ++step) {
    const Batch b = global_batch(data, step, ranks, 8 / ranks, 64);
    if (step == 0) {
      CHECK(std::vector<int32_t>(b.ids.begin(), b.ids.begin() + 16) == first_16);
    }
    const size_t s = static_cast<size_t>(step);
    CHECK(std::accumulate(b.ids.begin(), b.ids.end(), int64_t{0}) == input_sums[s]);
    CHECK(std::accumulate(b.targets.begin(), b.targets.end(), int64_t{0}) == target_sums[s]);
  }
}

TEST_CASE("a file is cut into nine tenths and the last tenth") {
  const Folder folder;
  const std::string text = letters(1009);
  const TextCorpus corpus = read_text(folder.write("t.txt", text), 50);
  CHECK(as_string(corpus.train) == text.substr(0, 909));
  CHECK(as_string(corpus.held_out) == text.substr(909));
}

TEST_CASE("a folder is read in the order of names, without links") {
  const Folder folder;
  const std::string a = letters(300), b = std::string(300, 'B');
  folder.write("b.txt", b);
  folder.write("a.txt", a);
  fs::create_symlink("a.txt", folder.path("c.txt"));
  fs::create_directory(folder.path("sub"));
  const TextCorpus corpus = read_text(folder.path(), 10);
  CHECK(as_string(corpus.train) + as_string(corpus.held_out) == a + b);
}

TEST_CASE("unigram entropy is ln 4 for four bytes used equally") {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 100; ++i) text += "abcd";
  CHECK(read_text(folder.write("t", text), 8).unigram_entropy == Approx(std::log(4.0)));
}

TEST_CASE("text that is not UTF-8 is refused with the place of the first wrong byte") {
  const Folder folder;
  const std::string good = letters(995) + "\u00e9\u20ac\U0001F600";  // 2, 3 and 4 bytes
  CHECK_NOTHROW(read_text(folder.write("good", good), 10));
  const auto [bad, offset] = GENERATE(table<std::string, int>({
      {"\xff", 0},              // no first byte
      {"\x80", 0},              // a continuation alone
      {"\xc0\xaf", 0},          // overlong '/'
      {"\xe0\x80\xaf", 0},      // overlong in three
      {"\xf0\x80\x80\xaf", 0},  // overlong in four
      {"\xed\xa0\x80", 0},      // a surrogate
      {"\xf4\x90\x80\x80", 0},  // above U+10FFFF
      {"ok \xe2\x82", 3},       // cut off
      {"ok \xe2\x82q", 3},      // broken off
  }));
  const std::string path = folder.write("bad", good + bad);
  const auto at = std::to_string(good.size() + static_cast<size_t>(offset));
  CHECK_THROWS_WITH(read_text(path, 10),
                    Contains(path) && Contains("not UTF-8") && Contains("at offset " + at));
}

TEST_CASE("a text that cannot serve is refused with its path") {
  const Folder folder;
  const std::string none = folder.path("none");
  CHECK_THROWS_AS(read_text(none, 8), UserError);
  CHECK_THROWS_WITH(read_text(none, 8), Contains("the text '" + none + "' does not exist"));
  const std::string empty = folder.write("empty", "");
  CHECK_THROWS_WITH(read_text(empty, 8), Contains("'" + empty + "' is empty"));
  const std::string brief = folder.write("brief", letters(645));
  CHECK_THROWS_WITH(read_text(brief, 64),
                    Contains(brief) && Contains("64 bytes") && Contains("65"));
  CHECK_NOTHROW(read_text(folder.write("enough", letters(650)), 64));
  fs::create_directory(folder.path("sub"));
  CHECK_THROWS_WITH(read_text(folder.path("sub"), 8), Contains("no regular file"));
  CHECK_THROWS_WITH(read_text("/dev/null", 8), Contains("neither a file nor a folder"));
}

TEST_CASE("rows of a text are stretches of it, with the next byte as the target") {
  const Folder folder;
  const std::string path = folder.write("t", letters(5000));
  const auto corpus = std::make_shared<const TextCorpus>(read_text(path, 32));
  const bool held_out = GENERATE(false, true);
  const std::string text = as_string(held_out ? corpus->held_out : corpus->train);
  const Batch b = global_batch(text_data(corpus, held_out, 4, 2, 32, 7), 3, 2, 4, 32);
  for (size_t row = 0; row < 8; ++row) {
    std::string ids, targets;
    for (size_t i = 0; i < 32; ++i) {
      ids += static_cast<char>(b.ids[row * 32 + i]);
      targets += static_cast<char>(b.targets[row * 32 + i]);
    }
    CHECK(text.find(ids + targets.back()) != std::string::npos);
    CHECK(ids.substr(1) == targets.substr(0, 31));
  }
}

TEST_CASE("the global batch of a text does not depend on the number of ranks") {
  const Folder folder;
  const auto corpus =
      std::make_shared<const TextCorpus>(read_text(folder.write("t", letters(9000)), 16));
  const auto batch = [&](int64_t ranks, int64_t step, uint64_t seed) {
    return global_batch(text_data(corpus, false, 8 / ranks, ranks, 16, seed), step, ranks,
                        8 / ranks, 16);
  };
  const Batch one = batch(1, 2, 5);
  CHECK(batch(4, 2, 5).ids == one.ids);
  CHECK(batch(2, 2, 5).targets == one.targets);
  CHECK(batch(1, 3, 5).ids != one.ids);
  CHECK(batch(1, 2, 6).ids != one.ids);
  CHECK(batch(1, 2, 5 + (uint64_t{1} << 32)).ids != one.ids);
}

TEST_CASE("rows come from all over the text, its last place included") {
  TextCorpus tiny;
  for (int i = 0; i < 12; ++i) tiny.train.push_back(static_cast<uint8_t>(i));
  const auto corpus = std::make_shared<const TextCorpus>(tiny);
  const DataSource data = text_data(corpus, false, 1, 1, 8, 1);
  std::vector<int> seen(12);
  for (int64_t step = 0; step < 400; ++step) {
    std::vector<int32_t> ids(8), targets(8);
    data(step, 0, ids.data(), targets.data());
    ++seen[static_cast<size_t>(ids[0])];
  }
  for (size_t start = 0; start < 12; ++start) {
    CAPTURE(start);
    if (start < 4) CHECK(seen[start] > 60);  // 100 expected
    if (start >= 4) CHECK(seen[start] == 0);
  }
}

TEST_CASE("the default corpus can be read, or is the fallback") {
  const std::string path = default_corpus_path("/nowhere/fallback");
  if (path == "/nowhere/fallback") {
    WARN("this machine has no licence texts; only the fallback was seen");
    return;
  }
  const TextCorpus corpus = read_text(path, 512);
  CHECK(corpus.train.size() > 90'000);
  CHECK(corpus.unigram_entropy > 2.0);
  CHECK(corpus.unigram_entropy < 4.0);
}

TEST_CASE("a run reads a text's two parts, or the reference's tokens, which hold nothing out") {
  const Folder folder;
  const auto corpus =
      std::make_shared<const TextCorpus>(read_text(folder.write("t.txt", letters(400)), 8));
  test::Gpt2 model;
  model.vocab = 256, model.seq = 8, model.batch_per_device = 2;
  const auto same = [](const DataSource& a, const DataSource& b) {
    const Batch x = global_batch(a, 3, 2, 2, 8), y = global_batch(b, 3, 2, 2, 8);
    return x.ids == y.ids && x.targets == y.targets;
  };
  const RunData text = run_data(model, 2, corpus, 7);
  CHECK(same(text.train, text_data(corpus, false, 2, 2, 8, 7)));
  CHECK(same(text.held_out, text_data(corpus, true, 2, 2, 8, 7)));
  const RunData tokens = run_data(model, 2);
  CHECK(same(tokens.train, reference_data(256, 2, 2, 8)));
  CHECK(same(tokens.held_out, tokens.train));
  model.vocab = 255;
  CHECK_THROWS_WITH(run_data(model, 2, corpus, 7),
                    Contains("model.vocab = 255: must be at least 256"));
}

TEST_CASE("LayerNorm weights begin at 1, biases at 0, matrices at random") {
  const test::Gpt2 gpt2;
  const Model model = test::build_model(gpt2, gate_spec(gpt2), 1);
  const ParamInit value = reference_values(model);
  const std::vector<ParamInfo>& infos = model.parameters;
  for (size_t t = 0; t < infos.size(); ++t) {
    INFO(infos[t].name);
    const double one = infos[t].init == ParamInfo::Init::kOne ? 1 : 0;
    const bool random = infos[t].init == ParamInfo::Init::kUniform;
    CHECK(value(5, t) == (random ? reference_init(5, t) : one));
  }
}

}  // namespace
}  // namespace moe
