#include "engine/exec/device/plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

namespace moe {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "MOEBENCH_CUDA_PLUGIN";
constexpr const char* kLibrary = "libmoe_cuda.so";

std::vector<fs::path> places() {
  if (const char* const given = std::getenv(kVariable)) return {given};
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  std::vector<fs::path> all = {folder / kLibrary, folder / "kernels" / "cuda" / kLibrary,
                               folder.parent_path() / "kernels" / "cuda" / kLibrary};
  for (const char* lib : {"lib", "lib64", "lib/x86_64-linux-gnu"}) {
    all.push_back(folder.parent_path() / lib / "moebench" / kLibrary);
  }
  return all;
}

CudaPlugin open() {
  CudaPlugin plugin;
  std::error_code error;
  for (const fs::path& place : places()) {
    if (!fs::exists(place, error)) continue;
    plugin.path = place.string();
    break;
  }
  if (const char* const given = std::getenv(kVariable); plugin.path.empty() && given != nullptr) {
    plugin.missing = fmt::format("{} = {}: this file does not exist", kVariable, given);
    return plugin;
  }
  if (plugin.path.empty()) {
    plugin.missing = fmt::format(
        "the file {} was not found next to the program; build the program with a CUDA compiler, or "
        "set MOEBENCH_CUDA_PLUGIN to the path of the file",
        kLibrary);
    return plugin;
  }
  // Streams that share one of the device's hardware queues wait for each other's kernels. There are
  // 8 queues unless this variable sets more before the device is first used, and the lanes of a few
  // ranks need more.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  // Never closed: threads may still use objects of the library.
  void* const library = dlopen(plugin.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    plugin.missing = dlerror();
    return plugin;
  }
  using Interface = const char* (*)();
  using Table = const kernels::DeviceTable* (*)();
  const auto interface = reinterpret_cast<Interface>(dlsym(library, "moe_cuda_interface"));
  const auto table = reinterpret_cast<Table>(dlsym(library, "moe_cuda_device"));
  if (interface == nullptr || table == nullptr ||
      std::string_view(interface()) != MOE_DEVICE_INTERFACE) {
    plugin.missing =
        plugin.path + " was built with another version of this program; build it again";
    return plugin;
  }
  plugin.table = table();
  return plugin;
}

}  // namespace

const CudaPlugin& cuda_plugin() {
  static const CudaPlugin plugin = open();
  return plugin;
}

}  // namespace moe
