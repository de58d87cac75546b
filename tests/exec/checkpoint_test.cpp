// Checkpoints: a run that is cut in two is the same run; a file that is not whole is never used.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include "engine/base/errors.h"
#include "engine/exec/checkpoint.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

using Catch::Contains;
namespace fs = std::filesystem;

/// A folder of its own for each test case, removed at the end.
class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_(fs::temp_directory_path() / ("moebench_test_" + name)) {
    fs::remove_all(path_);
    fs::create_directory(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string file(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::shared_ptr<const Plan> small_plan(int64_t num_ranks, Precision precision = Precision::kF32) {
  return plan_of(spec_of(small_model("switch", 4 / num_ranks), num_ranks, precision));
}

std::string written(const Folder& folder, const Plan& plan, int64_t steps) {
  RunOptions options = options_of(plan, steps);
  options.train.checkpoints.write_to = folder.file("run.ckpt");
  run_cpu(plan, options);
  return options.train.checkpoints.write_to;
}

RunResult resumed(const std::string& file, const Plan& plan, int64_t steps) {
  RunOptions options = options_of(plan, steps);
  options.train.checkpoints.resume_from = file;
  return run_cpu(plan, options);
}

TEST_CASE("three steps and three resumed ones are the bits of six") {
  for (const Precision precision : {Precision::kF32, Precision::kF64}) {
    const Folder folder("halves");
    const auto plan = small_plan(2, precision);
    const RunResult whole = run_cpu(*plan, options_of(*plan, 6));
    const RunResult rest = resumed(written(folder, *plan, 3), *plan, 3);
    CHECK(rest.digest == whole.digest);
    CHECK(rest.losses == std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
    for (size_t s = 0; s < 3; ++s) CHECK(rest.moe[s][0].checksum == whole.moe[s + 3][0].checksum);
  }
}

TEST_CASE("a checkpoint of two ranks goes on with four and with one") {
  const Folder folder("ranks");
  const auto two = small_plan(2, Precision::kF64);
  const std::string file = written(folder, *two, 2);
  const uint64_t digest = run_cpu(*two, options_of(*two, 2)).digest;
  for (const int64_t ranks : {1, 4}) {
    const auto plan = small_plan(ranks, Precision::kF64);
    CHECK(resumed(file, *plan, 0).digest == digest);
    CHECK(resumed(file, *plan, 1).losses.size() == 1);
  }
}

TEST_CASE("checkpoint_every leaves the last complete multiple when a later step fails") {
  const Folder folder("every");
  const auto plan = small_plan(2);
  RunOptions options = options_of(*plan, 9);
  options.train.checkpoints.write_to = folder.file("run.ckpt");
  options.train.checkpoints.every_steps = 2;
  options.on_step = [](int64_t step, double) {
    if (step == 4) throw run_error("power cut");
    return true;
  };
  CHECK_THROWS_WITH(run_cpu(*plan, options), Contains("power cut"));
  CHECK(resumed(options.train.checkpoints.write_to, *plan, 0).digest ==
        run_cpu(*plan, options_of(*plan, 4)).digest);
}

TEST_CASE("parameters of a deeper model are not those of this one, states of an optimizer are") {
  const Folder folder("deeper");
  const auto plan = small_plan(2);
  const PersistentTensors all = persistent_tensors(*plan);
  RankBuffers a(*plan, 4), b(*plan, 4);
  const AllBuffers ranks = {&a, &b};
  Gpt2 deeper = small_model();
  deeper.layers += 1;
  CHECK_THROWS_WITH(
      read_parameters(written(folder, *plan_of(spec_of(deeper, 2)), 1), all, ranks, 4),
      Contains("of another model: the model has no parameter b2.ln1.w"));
  PlanSpec adamw = spec_of(small_model(), 2);
  adamw.optimizer = Adamw();
  CHECK_NOTHROW(read_parameters(written(folder, *plan_of(adamw), 1), all, ranks, 4));
}

TEST_CASE("nothing but the checkpoint is left in its folder") {
  const Folder folder("only");
  written(folder, *small_plan(1), 1);
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
}

void check_refused(const std::string& file, const std::string& why) {
  const auto size = fs::file_size(file);
  const auto plan = small_plan(2);
  RunOptions options = options_of(*plan, 1);
  options.train.checkpoints.resume_from = file;
  try {
    run_cpu(*plan, options);
    FAIL("resumed from it");
  } catch (const UserError& e) {
    CHECK_THAT(e.what(), Contains(file) && Contains(why));
    // A corrupt one is set aside; one that is only not ours to read stays where it is.
    const bool corrupt = std::string(e.what()).find("corrupt") != std::string::npos;
    CHECK(fs::exists(file) == !corrupt);
    CHECK(fs::file_size(corrupt ? file + ".corrupt" : file) == size);
  }
}

void flip_byte(const std::string& file, std::streamoff at) {
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(at);
  const char c = static_cast<char>(f.get() ^ 0x10);
  f.seekp(at);
  f.put(c);
}

TEST_CASE("a checkpoint with one changed byte is refused wherever the byte is") {
  const Folder folder("flipped");
  const std::string good = written(folder, *small_plan(2), 1);
  const auto size = static_cast<std::streamoff>(fs::file_size(good));
  const auto check = [&](std::streamoff at, const std::string& why) {
    INFO("byte " << at << " of " << size);
    const std::string file = folder.file("flipped.ckpt");
    fs::copy_file(good, file, fs::copy_options::overwrite_existing);
    flip_byte(file, at);
    check_refused(file, why);
  };
  check(3, "not a checkpoint");
  for (const std::streamoff at : {std::streamoff{8}, std::streamoff{12}, std::streamoff{16},
                                  std::streamoff{40}, size / 2, size - 1}) {
    check(at, "it is corrupt: its checksum is wrong");
  }
}

TEST_CASE("a checkpoint that is cut off or goes on too long is refused") {
  const Folder folder("cut");
  const std::string good = written(folder, *small_plan(2), 1);
  const std::string file = folder.file("cut.ckpt");
  const auto copy = [&] {
    fs::copy_file(good, file, fs::copy_options::overwrite_existing);
    return fs::file_size(file);
  };
  copy();
  std::ofstream(file, std::ios::app) << "more";
  check_refused(file, "it is corrupt: its checksum is wrong");
  fs::resize_file(file, copy() - 5);
  check_refused(file, "it is corrupt: its checksum is wrong");
  copy();
  fs::resize_file(file, 10);
  check_refused(file, "it is corrupt: its checksum is wrong");
  copy();
  fs::resize_file(file, 0);
  check_refused(file, "not a checkpoint");
}

TEST_CASE("a checkpoint of another model or precision is refused and says what differs") {
  const Folder folder("model");
  Gpt2 other = small_model("switch", 2);
  other.hidden = 32;
  check_refused(written(folder, *plan_of(spec_of(other, 2)), 1),
                "tensor wte 1024 in the file, tensor wte 512 in this run");
  check_refused(written(folder, *small_plan(2, Precision::kF64), 1), "its floats have 8 bytes");
}

/// A checkpoint with the header and body of a good one, changed, and a checksum that fits.
struct Crafted {
  int64_t next_step;
  std::optional<uint64_t> text_bytes;  // that its header says, where not the text's
  std::string text, body;

  explicit Crafted(const std::string& good) {
    std::ifstream in(good, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    head_ = bytes.substr(0, 16);
    uint64_t length = 0;
    std::memcpy(&next_step, bytes.data() + 16, 8);
    std::memcpy(&length, bytes.data() + 24, 8);
    text = bytes.substr(32, length);
    body = bytes.substr(32 + length, bytes.size() - 40 - length);
  }
  std::string write(const std::string& file) const {
    const uint64_t length = text_bytes.value_or(text.size());
    std::string bytes = head_ + std::string(16, ' ') + text + body;
    std::memcpy(bytes.data() + 16, &next_step, 8);
    std::memcpy(bytes.data() + 24, &length, 8);
    const uint64_t hash = fnv1a(kFnvStart, bytes.data(), bytes.size());
    bytes.append(reinterpret_cast<const char*>(&hash), 8);
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }
  /// The first tensor has another number of elements.
  void resize(const std::string& elements) {
    const size_t line = text.find("tensor "), end = text.find('\n', line);
    const size_t number = text.rfind(' ', end) + 1;
    text.replace(number, end - number, elements);
  }

 private:
  std::string head_;
};

/// Neither way of reading takes it: each says what is wrong, sets it aside and touches no rank.
void check_damaged(const Folder& folder, const Crafted& crafted, const std::string& why) {
  INFO(why);
  const auto plan = small_plan(2);
  const PersistentTensors all = persistent_tensors(*plan);
  RankBuffers a(*plan, 4), b(*plan, 4);
  const AllBuffers ranks = {&a, &b};
  for (const RankBuffers* rank : ranks) {
    std::fill(rank->persistent().begin(), rank->persistent().end(), std::byte{7});
  }
  for (const bool all_of_it : {true, false}) {
    const std::string file = crafted.write(folder.file("crafted.ckpt"));
    try {
      if (all_of_it) {
        read_checkpoint(file, all, ranks, 4);
      } else {
        read_parameters(file, all, ranks, 4);
      }
      FAIL_CHECK("it was read");
    } catch (const UserError& e) {
      CHECK_THAT(e.what(), Contains("checkpoint " + file + ": damaged: " + why));
    }
    CHECK_FALSE(fs::exists(file));
    CHECK(fs::exists(file + ".corrupt"));
    for (const RankBuffers* rank : ranks) {
      CHECK(std::all_of(rank->persistent().begin(), rank->persistent().end(),
                        [](std::byte x) { return x == std::byte{7}; }));
    }
  }
}

TEST_CASE("a checkpoint with a right checksum and wrong content is damaged") {
  const Folder folder("crafted");
  const Crafted good(written(folder, *small_plan(2), 1));
  const auto check = [&](const std::function<void(Crafted&)>& change, const std::string& why) {
    Crafted crafted = good;
    change(crafted);
    check_damaged(folder, crafted, why);
  };
  for (const int64_t step : {int64_t{-5}, std::numeric_limits<int64_t>::max(),
                             std::numeric_limits<int64_t>::min(), int64_t{10'000'000'001}}) {
    check([&](Crafted& c) { c.next_step = step; },
          fmt::format("its next step is {}; allowed", step));
  }
  for (const char* n : {"-1", "-9223372036854775808", "9223372036854775808", "1e3", "", "0x10"}) {
    check([&](Crafted& c) { c.resize(n); }, "the line 'tensor ");
  }
  for (const char* n : {"9223372036854775807", "4611686018427387904", "1000000000000"}) {
    check([&](Crafted& c) { c.resize(n); }, "its text lists 'wte' with ");
  }
  check([](Crafted& c) { c.resize("0"); }, fmt::format("it has {} bytes after", 4 * 32 * 16));
  check([](Crafted& c) { c.body += "abcd"; }, "it has 4 bytes after its last tensor");
  check([](Crafted& c) { c.body.resize(c.body.size() - 4); }, "its text lists '");
  check([](Crafted& c) { c.body.clear(); }, "its text lists '");
  check([](Crafted& c) { c.text_bytes = c.text.size() + c.body.size() + 1; },
        "by its header it has a text of ");
  check([](Crafted& c) { c.text_bytes = std::numeric_limits<uint64_t>::max(); },
        "by its header it has a text of ");
  check([](Crafted& c) { c.text_bytes = 0; }, "its text ends within a line");
  check([](Crafted& c) { c.text.pop_back(); }, "its text ends within a line");
  check([](Crafted& c) { c.text += "nothing\n"; }, "the line 'nothing'");
}

TEST_CASE("a missing checkpoint, and a place that cannot be written, are told with the path") {
  const auto plan = small_plan(1);
  RunOptions options = options_of(*plan, 1);
  options.train.checkpoints.resume_from = "/nowhere/run.ckpt";
  CHECK_THROWS_WITH(run_cpu(*plan, options), Contains("cannot read /nowhere/run.ckpt"));
  options.train.checkpoints.resume_from.clear();
  options.train.checkpoints.write_to = "/nowhere/run.ckpt";
  CHECK_THROWS_AS(run_cpu(*plan, options), RunError);
}

}  // namespace
}  // namespace moe::test
