// Runs in an address space that is too short end with an error that says so; they neither abort nor
// wait for ever.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/base/folder.h"
#include "tests/cli/program.h"

using moe::test::Outcome;
using moe::test::run;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they take terabytes of it
namespace {

/// Runs the recipe, which gets a model `m`, in each of these address spaces.
void check_ends(const std::string& recipe, const std::vector<int>& sizes_mib) {
  const moe::test::Folder folder;
  folder.write(
      "short.lua",
      "local moe = require 'moe'\nlocal m = moe.model.gpt2_moe { vocab = 256, layers = 2,\n"
      "  hidden = 32, heads = 4, seq = 16, batch_per_device = 2, experts = 64 }\n" +
          recipe + "\n");
  for (const int mib : sizes_mib) {
    const Outcome o = run("cd " + folder.path() + "; rm -rf out; ulimit -c 0; ulimit -v " +
                          std::to_string(mib * 1024) +
                          "; exec timeout -k 5 60 " MOEBENCH_BINARY
                          " run short.lua --out out --cache c.sqlite 2>&1 >/dev/null");
    INFO(recipe << ", " << mib << " MiB\n" << o.text);
    const bool ended = o.exit == 0 || o.exit == 1 || o.exit == 3;
    CHECK(ended);
    CHECK((o.exit == 0) == o.text.empty());
    CHECK(o.text.find("terminate called") == std::string::npos);
  }
}

}  // namespace

TEST_CASE("a short address space ends a run with a named error, whatever its size") {
  const auto train = [](const char* ranks) {
    return std::string("moe.train { model = m, steps = 2, tokens = 'reference', ranks = ") + ranks +
           " }";
  };
  check_ends(train("2"), {60, 100, 150, 250, 320, 340, 360, 380, 400, 600, 2000});
  check_ends(train("64"), {80, 120, 200, 300, 330, 350, 370, 390, 420, 1000});
}

TEST_CASE("a short address space ends a run with a prediction with a named error") {
  check_ends(
      "return moe.experiment { name = 'e', model = m, systems = { moe.system 'raf' {} },\n"
      "  run = { { 'cpu', ranks = 2, steps = 2, tokens = 'reference' } } }",
      {200, 320, 360, 380, 400, 420, 440, 480, 560, 1200});
}
#endif
