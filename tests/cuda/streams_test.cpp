// What the kernels keep for streams, here any addresses: only the emulation takes these as handles.
#include "kernels/cuda/device_functions.h"
#include "tests/cuda/emulation/emulated.h"

using namespace moe;

TEST_CASE(
    "losses on more streams than there is room for are refused, those that ended not counted") {
  std::vector<char> handles(65);
  double loss = 0;
  const auto z_loss = [&](char& handle) {
    kernels::cuda::table().z_loss(&loss, nullptr, 1, 0, 4, &handle);
    return kernels::cuda::take_error();
  };
  for (int round = 0; round < 3; ++round) {
    std::string errors;
    for (char& handle : handles) errors += z_loss(handle);
    CHECK(errors.find("cuda: losses run on more than 64 streams") == 0);
    for (char& handle : handles) kernels::cuda::forget_losses(&handle);
  }
  CHECK(z_loss(handles[64]) == "");
  kernels::cuda::forget_losses(&handles[64]);
}
