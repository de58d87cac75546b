// Runs in an address space that is too short end with an error that says so; they neither abort nor
// wait for ever.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/cli/program.h"

using moe::test::Outcome;
using moe::test::run;
namespace fs = std::filesystem;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they take terabytes of it
TEST_CASE("a short address space ends a run with a named error, whatever its size") {
  const fs::path folder =
      fs::temp_directory_path() / ("moebench-memory-" + std::to_string(getpid()));
  fs::create_directories(folder);
  for (const int ranks : {2, 64}) {
    std::ofstream(folder / "short.lua")
        << "local moe = require 'moe'\nmoe.train { ranks = " << ranks
        << ", steps = 2, tokens = 'reference', model = moe.model.gpt2_moe { vocab = 256,\n"
           "  layers = 2, hidden = 32, heads = 4, seq = 16, batch_per_device = 2, experts = 64 } "
           "}\n";
    for (const int mib : {60,  80,  100, 120, 150, 200, 250, 300, 320,  330, 340,
                          350, 360, 370, 380, 390, 400, 420, 600, 1000, 2000}) {
      const Outcome o =
          run("cd " + folder.string() + "; ulimit -c 0; ulimit -v " + std::to_string(mib * 1024) +
              "; exec timeout 60 " MOEBENCH_BINARY " run short.lua --out out --cache :memory:");
      INFO(ranks << " ranks, " << mib << " MiB\n" << o.text);
      const bool ended = o.exit == 0 || o.exit == 1 || o.exit == 3;
      CHECK(ended);
      CHECK((o.exit == 0) == o.text.empty());
      CHECK(o.text.find("terminate called") == std::string::npos);
    }
  }
  fs::remove_all(folder);
}
#endif
