#include "tests/gpu/plugin.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>

namespace moe::test {

OpenedPlugin open_plugin() {
  const char* named = std::getenv("MOEBENCH_CUDA_PLUGIN");
  const std::string path = named != nullptr && *named != '\0' ? named : MOE_CUDA_PLUGIN;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {nullptr, false, dlerror()};
  const auto table =
      reinterpret_cast<const kernels::DeviceTable* (*)()>(dlsym(library, "moe_cuda_device"));
  if (table == nullptr) return {nullptr, false, path + " has no moe_cuda_device"};
  const kernels::DeviceTable* gpu = table();
  if (gpu->num_devices() == 0)
    return {nullptr, true, "no GPU: the driver is missing or shows none"};
  gpu->use_device(0);
  if (const std::string error = gpu->take_error(); !error.empty()) return {nullptr, false, error};
  return {gpu, false, ""};
}

void finish(const kernels::DeviceTable& gpu, kernels::Stream stream, double timeout_s) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
  const kernels::Event event = gpu.make_event(false);
  gpu.record(event, stream);
  std::string problem;
  while (problem.empty() && !gpu.over(event)) {
    problem = gpu.take_error();
    if (std::chrono::steady_clock::now() > give_up)
      problem = "the device is still busy after " + std::to_string(timeout_s) + " s";
  }
  gpu.end_event(event);
  if (problem.empty()) problem = gpu.take_error();
  if (!problem.empty()) throw std::runtime_error(problem);
}

}  // namespace moe::test
