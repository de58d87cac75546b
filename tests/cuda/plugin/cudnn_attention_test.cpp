// Graphs of attention as the library itself sees them. It knows them as attention, and says what it
// has for a device, of which it needs the properties alone.
#include "kernels/cuda/attention/cudnn_attention.h"

#include <dlfcn.h>

#include <catch2/catch.hpp>

using namespace moe::kernels;
using namespace moe::kernels::cuda;

namespace {

/// Of data sheets and the CUDA programming guide's table of compute capabilities.
struct Gpu {
  std::string name;
  int version, multiprocessors, shared_bytes, l2_bytes, sm_khz, memory_khz, bus_bits;
};
const Gpu kA100 = {"NVIDIA A100", 800, 108, 166912, 40 << 20, 1410000, 1215000, 5120};
const Gpu kH100 = {"NVIDIA H100", 900, 132, 232448, 50 << 20, 1980000, 2619000, 5120};
const Gpu kT4 = {"Tesla T4", 750, 40, 65536, 4 << 20, 1590000, 5001000, 256};

std::string as_json(const Gpu& gpu) {
  const auto number = [](const char* name, int64_t value) {
    return std::string("\"") + name + "\": " + std::to_string(value) + ", ";
  };
  return "{" + number("deviceId", 0) + number("cudaDeviceId", 0) +
         number("deviceVer", gpu.version) + number("driverVer", 13000) +
         number("cudaRuntimeVer", 13000) + number("regsPerBlock", 65536) +
         number("multiProcessorCount", gpu.multiprocessors) + number("warpSize", 32) +
         number("maxSharedMemoryPerBlock", 49152) +
         number("maxSharedMemoryPerBlockOptin", gpu.shared_bytes) +
         number("reservedSharedMemoryPerBlock", 1024) + number("maxRegistersPerSM", 65536) +
         number("maxCtasPerSM", 32) + number("maxThreadsPerBlock", 1024) +
         number("maxThreadsPerSM", 2048) + number("pciDeviceId", 0) + number("isTccDriver", 0) +
         number("supportCoopLaunch", 1) + number("smClockRateKHz", gpu.sm_khz) +
         number("memClockRateKHz", gpu.memory_khz) + number("memoryBusWidth", gpu.bus_bits) +
         number("l2CacheSize", gpu.l2_bytes) + number("totalGlobalMem", int64_t{64} << 30) +
         "\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], " +
         "\"deviceName\": \"" + gpu.name + "\"}";
}

size_t version() {
  static void* const driver = [] {
    void* const real = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    return real != nullptr ? real : dlopen(MOE_DRIVER_STUB, RTLD_NOW | RTLD_GLOBAL);
  }();
  REQUIRE(driver != nullptr);
  REQUIRE(cudnn_version() != 0);
  return cudnn_version();
}

bool offers(const Gpu& gpu, AttentionShape shape, Direction direction) {
  version();
  return cudnn_offers(shape, direction, as_json(gpu), gpu.version / 10);
}

}  // namespace

TEST_CASE("cuDNN knows the graphs as attention and has kernels for them, in each direction") {
  for (const Gpu& gpu : {kA100, kH100})
    for (const AttentionShape& shape :
         {AttentionShape{24, 512, 12, 64}, AttentionShape{8, 1024, 16, 128},
          AttentionShape{2, 200, 3, 32}, AttentionShape{2, 7, 2, 64}, AttentionShape{3, 128, 1, 8},
          AttentionShape{2, 2, 1, 80}}) {
      if (!cudnn_takes(version(), shape)) continue;
      INFO(gpu.name << ", seq " << shape.seq << ", head_dim " << shape.head_dim);
      CHECK(offers(gpu, shape, Direction::kForward));
      CHECK(offers(gpu, shape, Direction::kBackward));
    }
}

TEST_CASE("cuDNN has no attention for devices without bfloat16, nor for heads of any size") {
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    CHECK_FALSE(offers(kT4, {2, 128, 2, 64}, direction));
    CHECK_FALSE(offers(kH100, {2, 128, 2, 20}, direction));
  }
}

TEST_CASE("shapes in which a version of cuDNN is known to fail are not given to it") {
  const AttentionShape usual = {2, 512, 12, 64}, ragged = {2, 500, 12, 64};
  CHECK_FALSE(cudnn_takes(90800, usual));
  CHECK_FALSE(cudnn_takes(91001, usual));
  CHECK(cudnn_takes(91002, usual));
  CHECK_FALSE(cudnn_takes(91500, ragged));
  CHECK(cudnn_takes(91501, ragged));
  CHECK_FALSE(cudnn_takes(91900, {2, 1, 12, 64}));
  CHECK_FALSE(cudnn_takes(91900, {1, 7, 2, 64}));
  CHECK_FALSE(cudnn_takes(91900, {2, 512, 12, 20}));
  CHECK_FALSE(cudnn_takes(91900, {2, 512, 12, 136}));
}
