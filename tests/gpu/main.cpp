// test_gpu: Catch's options. Where there is no GPU it says so, runs nothing and returns 77.
#include <cstdio>
#include <cstdlib>

#include "tests/gpu/gpu.h"

namespace {

/// Before Catch's main function.
const moe::kernels::DeviceTable& opened = []() -> const moe::kernels::DeviceTable& {
  const moe::test::OpenedPlugin plugin = moe::test::open_plugin();
  if (plugin.table == nullptr) {
    std::printf("%s: %s\n", plugin.skip ? "skipped" : "failed", plugin.reason.c_str());
    std::exit(plugin.skip ? 77 : 1);
  }
  const moe::kernels::DeviceInfo info = plugin.table->info();
  std::printf("%s; %s\n", info.name, info.versions);
  return *plugin.table;
}();

}  // namespace

const moe::kernels::DeviceTable& moe::test::gpu() {
  return opened;
}
