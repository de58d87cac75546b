// What only the CUDA kernels have: a limit of a launch, and an order of atomic-free sums.
#include "tests/cuda/on_device.h"

using namespace moe;
using namespace moe::test;

TEST_CASE("a sum of more tensors than a launch takes is refused by name") {
  const auto check = [](const auto& k) {
    k.sum_n(nullptr, nullptr, 257, 1, nullptr);
    CHECK(device_error().find("sum_n got 257 summands; 1 to 256 are allowed") != std::string::npos);
    CHECK(device_error() == "");
  };
  check(device_table());
  check(device_mixed());
}

TEST_CASE("all tokens with one id add up in their order") {
  const int64_t tokens = 700, hidden = 3;
  const std::vector<int32_t> ids(tokens, 9);
  const auto dx = random_values<float>(tokens * hidden, 1, 1e4);
  std::vector<float> dwte(12 * hidden, NAN), want(hidden);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < hidden; ++c) want[c] += dx[t * hidden + c];
  device_table().embedding_dwte(dwte.data(), ids.data(), dx.data(), nullptr, tokens, 12, hidden,
                                nullptr);
  CHECK(std::vector<float>(dwte.begin() + 9 * hidden, dwte.begin() + 10 * hidden) == want);
  CHECK(dwte[0] == 0);
}
