#include <cstdio>
#include <filesystem>

#include "tests/kernels/compare.h"

using namespace moe;
using namespace moe::test;
using Catch::Matchers::Contains;

TEST_CASE("the fast tables of this machine are complete and named, narrowest first") {
  const auto tables = kernels::runnable_tables();
  REQUIRE_FALSE(tables.empty());
  CHECK(std::string(tables[0]->name) == "cpu-v2");
  for (const auto* table : tables) {
    // The table is a name and function pointers: none may be null.
    const auto* words = reinterpret_cast<void* const*>(table);
    for (size_t i = 0; i < sizeof *table / sizeof *words; ++i) CHECK(words[i] != nullptr);
  }
}

TEST_CASE("the kernel set names OpenBLAS, its core and the table") {
  const std::string set = kernels::kernel_set();
  CHECK_THAT(set, Contains("openblas 0."));
  CHECK_THAT(set, Contains(std::string(", ") + kernels::fast_table().name));
}

// Run by the next case in a process of its own, since a process chooses its table once.
TEST_CASE("print the chosen table", "[.choice]") {
  try {
    std::printf("chosen %s\n", kernels::fast_table().name);
  } catch (const std::runtime_error& e) {
    std::printf("refused %s\n", e.what());
  }
}

TEST_CASE("MOEBENCH_ISA chooses a level, and a wrong one is refused by name") {
  const auto choice_with = [](const std::string& isa) {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    FILE* out = popen(("MOEBENCH_ISA=" + isa + " '" + self + "' '[.choice]'").c_str(), "r");
    REQUIRE(out != nullptr);
    std::string text(4096, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), out));
    pclose(out);
    return text;
  };
  for (const auto* table : kernels::runnable_tables()) {
    const std::string name = table->name;  // cpu-v3
    CHECK_THAT(choice_with(name.substr(4)), Contains("chosen " + name));
  }
  CHECK_THAT(choice_with("v9"), Contains("refused MOEBENCH_ISA=v9") && Contains("v2"));
}
