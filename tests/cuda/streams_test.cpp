// What the kernels do with handles of streams, here any addresses: only the emulation takes these.
#include "tests/cuda/on_device.h"

using namespace moe::test;

TEST_CASE("losses on more streams than there is room for are refused") {
  std::vector<char> handles(65);
  double loss = 0;
  for (char& handle : handles) device_table().z_loss(&loss, nullptr, 1, 0, 4, &handle);
  CHECK(device_error() == "cuda: losses on more than 64 streams");
}
