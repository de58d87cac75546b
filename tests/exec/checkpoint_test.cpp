// Checkpoints: a run that is cut in two is the same run; a file that is not whole is never used.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include "engine/base/errors.h"
#include "engine/exec/checkpoint.h"
#include "tests/base/folder.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

using Catch::Contains;
namespace fs = std::filesystem;

std::shared_ptr<const Plan> small_plan(int64_t num_ranks, Precision precision = Precision::kF32) {
  return plan_of(spec_of(small_model("switch", 4 / num_ranks), num_ranks, precision));
}

std::string written(const Folder& folder, const Plan& plan, int64_t steps) {
  RunOptions options = options_of(plan, steps);
  options.train.checkpoints.write_to = folder.path("run.ckpt");
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
    const Folder folder;
    const auto plan = small_plan(2, precision);
    const RunResult whole = run_cpu(*plan, options_of(*plan, 6));
    const RunResult rest = resumed(written(folder, *plan, 3), *plan, 3);
    CHECK(rest.digest == whole.digest);
    CHECK(rest.losses == std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
    for (size_t s = 0; s < 3; ++s) CHECK(rest.moe[s][0].checksum == whole.moe[s + 3][0].checksum);
  }
}

TEST_CASE("a checkpoint of two ranks goes on with four and with one") {
  const Folder folder;
  const auto two = small_plan(2, Precision::kF64);
  const std::string file = written(folder, *two, 2);
  const uint64_t digest = run_cpu(*two, options_of(*two, 2)).digest;
  for (const int64_t ranks : {1, 4}) {
    const auto plan = small_plan(ranks, Precision::kF64);
    CHECK(resumed(file, *plan, 0).digest == digest);
    CHECK(resumed(file, *plan, 1).losses.size() == 1);
  }
}

TEST_CASE("a checkpoint of split products goes on with other groups over tp, bit for bit") {
  const Folder folder;
  const auto split = [](int64_t tp) {
    Gpt2 model = small_model("switch", 2 * tp);  // four sequences on two ranks
    model.tp = tp;
    return plan_of(spec_of(model, 2, Precision::kF64));
  };
  for (const int64_t tp : {1, 2}) {
    const std::string file = written(folder, *split(tp), 2);
    const uint64_t digest = run_cpu(*split(tp), options_of(*split(tp), 2)).digest;
    CHECK(resumed(file, *split(3 - tp), 0).digest == digest);
    CHECK(resumed(file, *split(3 - tp), 1).losses.size() == 1);
  }
}

TEST_CASE("checkpoint_every leaves the last complete multiple when a later step fails") {
  const Folder folder;
  const auto plan = small_plan(2);
  RunOptions options = options_of(*plan, 9);
  options.train.checkpoints.write_to = folder.path("run.ckpt");
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
  const Folder folder;
  const auto plan = small_plan(2);
  const PersistentTensors all = persistent_tensors(*plan);
  RankBuffers a(*plan, 4), b(*plan, 4);
  const AllBuffers ranks = {&a, &b};
  Gpt2 deeper = small_model();
  deeper.layers += 1;
  CHECK_THROWS_WITH(
      read_parameters(written(folder, *plan_of(spec_of(deeper, 2)), 1), all, ranks, 4),
      Contains("tensor b2.ln1.w [16] F32 in the file, tensor lnf.w [16] F32 in this run"));
  PlanSpec adamw = spec_of(small_model(), 2);
  adamw.optimizer = Adamw();
  CHECK_NOTHROW(read_parameters(written(folder, *plan_of(adamw), 1), all, ranks, 4));
}

TEST_CASE("nothing but the checkpoint is left in its folder") {
  const Folder folder;
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
  const Folder folder;
  const std::string good = written(folder, *small_plan(2), 1);
  const auto size = static_cast<std::streamoff>(fs::file_size(good));
  const auto check = [&](std::streamoff at, const std::string& why) {
    INFO("byte " << at << " of " << size);
    const std::string file = folder.path("flipped.ckpt");
    fs::copy_file(good, file, fs::copy_options::overwrite_existing);
    flip_byte(file, at);
    check_refused(file, why);
  };
  for (const std::streamoff at : {8, 12, 20, 40}) check(at, "not a checkpoint");
  for (const std::streamoff at : {std::streamoff{0}, std::streamoff{7}, std::streamoff{60},
                                  std::streamoff{400}, size / 2, size - 9, size - 8, size - 1}) {
    check(at, "it is corrupt: its checksum is wrong");
  }
}

TEST_CASE("a checkpoint that is cut off or goes on too long is refused") {
  const Folder folder;
  const std::string good = written(folder, *small_plan(2), 1);
  const std::string file = folder.path("cut.ckpt");
  const auto copy = [&] {
    fs::copy_file(good, file, fs::copy_options::overwrite_existing);
    return fs::file_size(file);
  };
  copy();
  std::ofstream(file, std::ios::app) << "more";
  check_refused(file, "it is corrupt: its checksum is wrong");
  fs::resize_file(file, copy() - 5);
  check_refused(file, "it is corrupt: its checksum is wrong");
  for (const uintmax_t bytes : {60, 47}) {
    copy();
    fs::resize_file(file, bytes);
    check_refused(file, "it is corrupt: its checksum is wrong");
  }
  for (const uintmax_t bytes : {46, 10, 0}) {
    copy();
    fs::resize_file(file, bytes);
    check_refused(file, "not a checkpoint");
  }
}

TEST_CASE("a checkpoint of another model or precision is refused and says what differs") {
  const Folder folder;
  Gpt2 other = small_model("switch", 2);
  other.hidden = 32;
  check_refused(written(folder, *plan_of(spec_of(other, 2)), 1),
                "tensor wte [32,32] F32 in the file, tensor wte [32,16] F32 in this run; give the");
  check_refused(written(folder, *small_plan(2, Precision::kF64), 1),
                "tensor wte [32,16] F64 in the file, tensor wte [32,16] F32 in this run; give the");
}

TEST_CASE("a checkpoint of another gate, batch or source of tokens is refused with both") {
  const Folder folder;
  const std::string file = written(folder, *small_plan(2), 1);
  check_refused(written(folder, *plan_of(spec_of(small_model("hash", 2), 2)), 1),
                "model.gate 'hash, k = 1' in the file, model.gate 'switch, k = 1' in this run; "
                "give the same");
  check_refused(written(folder, *plan_of(spec_of(small_model("switch", 4), 2)), 1),
                "batch '8 rows of 8 tokens' in the file, batch '4 rows of 8 tokens' in this run; "
                "give the same");
  const auto plan = small_plan(2);
  RunOptions options = options_of(*plan, 1);
  options.train.checkpoints.write_to = file;
  options.train.tokens = "text of a.txt";
  run_cpu(*plan, options);
  check_refused(file, "tokens 'text of a.txt' in the file, tokens '' in this run; give the same");
}

TEST_CASE("a file of the format of before, or of other tensors, is refused and stays") {
  const Folder folder;
  const std::string file = folder.path("old.ckpt");
  std::ofstream(file) << "MOEBENCH and so on";
  check_refused(file, "scripts/convert_checkpoint.py OLD LIKE NEW");
  const std::string header = safetensors_header({{"format", "pt"}}, {{"wte", "F32", {1}, 4}});
  std::ofstream(file) << header << "1234";
  check_refused(file, "not a checkpoint of moebench");
}

/// A checkpoint with the header and content of a good one, changed, and a checksum that fits.
struct Crafted {
  std::string header, content;

  explicit Crafted(const std::string& good) {
    std::ifstream in(good, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    header = bytes.substr(8, length);
    content = bytes.substr(8 + length, bytes.size() - 16 - length);
  }
  std::string write(const std::string& file) const {
    const uint64_t length = header.size();
    std::string bytes = std::string(reinterpret_cast<const char*>(&length), 8) + header + content;
    const uint64_t hash = fnv1a(kFnvStart, bytes.data(), bytes.size());
    bytes.append(reinterpret_cast<const char*>(&hash), 8);
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }
  void replace(const std::string& from, const std::string& to) {
    REQUIRE(header.find(from) != std::string::npos);
    header.replace(header.find(from), from.size(), to);
  }
};

/// It is not read: the error says what is wrong, and no rank is touched.
void check_untouched(const Folder& folder, const Plan& plan, const Crafted& crafted,
                     const std::string& why, bool only_parameters) {
  INFO(why);
  const PersistentTensors all = persistent_tensors(plan);
  RankBuffers a(plan, 4), b(plan, 4);
  for (const RankBuffers* rank : {&a, &b}) {
    std::fill(rank->persistent().begin(), rank->persistent().end(), std::byte{7});
  }
  const std::string file = crafted.write(folder.path("crafted.ckpt"));
  try {
    if (only_parameters) {
      read_parameters(file, all, {&a, &b}, 4);
    } else {
      read_checkpoint(file, all, {&a, &b}, 4, {});
    }
    FAIL_CHECK("it was read");
  } catch (const UserError& e) {
    CHECK_THAT(e.what(), Contains(file + ": ") && Contains(why));
  }
  for (const RankBuffers* rank : {&a, &b}) {
    CHECK(std::all_of(rank->persistent().begin(), rank->persistent().end(),
                      [](std::byte x) { return x == std::byte{7}; }));
  }
}

TEST_CASE("a checkpoint with a right checksum and wrong content is refused") {
  const Folder folder;
  const auto plan = small_plan(2);
  const Crafted good(written(folder, *plan, 1));
  const auto check = [&](const std::function<void(Crafted&)>& change, const std::string& why,
                         bool parameters = true) {
    Crafted crafted = good;
    change(crafted);
    for (const bool only : {false, true}) {
      if (parameters || !only) check_untouched(folder, *plan, crafted, why, only);
    }
  };
  for (const char* step : {"-5", "9223372036854775807", "-9223372036854775808", "10000000001",
                           "99999999999999999999", "", "1e3", " 1", "1 "}) {
    check(
        [&](Crafted& c) {
          c.replace(R"("next_step":"1")", fmt::format(R"("next_step":"{}")", step));
        },
        fmt::format("its next_step is '{}'; allowed: 0 to 10000000000", step), false);
  }
  check([](Crafted& c) { c.replace(R"("next_step":"1")", R"("next_step":1)"); },
        "its next_step is ''", false);
  check([](Crafted& c) { c.replace(R"("next_step":)", R"("last_step":)"); }, "its next_step is ''",
        false);
  check([](Crafted& c) { c.replace("\"wte\"", "\"wtf\""); },
        "tensor wtf [32,16] F32 in the file, tensor wte [32,16] F32 in this run");
  check([](Crafted& c) { c.replace("[32,16]", "[16,32]"); }, "tensor wte [16,32] F32 in the file");
  check([](Crafted& c) { c.replace("wte.v", "wte.m"); },
        "tensor wte.m [32,16] F32 in the file, tensor wte.v [32,16] F32 in this run", false);
  check([](Crafted& c) { c.replace("F32", "I32"); }, "tensor wte [32,16] I32 in the file");
  check([](Crafted& c) { c.replace("[32,16]", "[33,16]"); }, "'wte' [33,16] of type F32 lies");
  check([](Crafted& c) { c.content += "abcd"; }, "but the file has");
  check([](Crafted& c) { c.content.clear(); }, "lies in bytes");
  check([](Crafted& c) { c.replace("}}", "}"); }, "not a JSON object");
}

TEST_CASE("a placement that no run writes, or none, is refused") {
  const Folder folder;
  const auto plan = plan_with(spec_of(small_model("switch", 2), 2), {pass("eplb")});
  Crafted crafted(written(folder, *plan, 1));
  const int32_t owner = 77;
  const size_t codes =
      static_cast<size_t>(Placement::code_size(persistent_tensors(*plan).placed[0].bounds) * 4);
  std::memcpy(crafted.content.data() + crafted.content.size() - codes, &owner, 4);
  check_untouched(folder, *plan, crafted, "its placement.1: ", false);
  check_untouched(folder, *small_plan(2), crafted, "tensor placement.1 [", false);
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
