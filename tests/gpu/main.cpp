// test_gpu: Catch's options. Where there is no GPU it says so, runs nothing and returns 77.
#include <cstdio>

#include "tests/gpu/gpu.h"
#include "tests/session.h"

namespace {

const moe::kernels::DeviceTable* opened = nullptr;

}  // namespace

const moe::kernels::DeviceTable& moe::test::gpu() {
  return *opened;
}

int main(int argc, char** argv) {
  const moe::test::OpenedPlugin plugin = moe::test::open_plugin();
  if (plugin.table == nullptr) {
    std::printf("%s: %s\n", plugin.skip ? "skipped" : "failed", plugin.reason.c_str());
    return plugin.skip ? 77 : 1;
  }
  opened = plugin.table;
  const moe::kernels::DeviceInfo info = opened->info();
  std::printf("%s; %s\n", info.name, info.versions);
  return moe::test::run_cases(argc, argv);
}
