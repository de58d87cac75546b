// A matrix product of bfloat16 in a recording.
#include "tests/gpu/gpu.h"

using namespace moe;
using namespace moe::test;

TEST_CASE("a recorded product of bfloat16 keeps its room beside a larger one", "[gemm]") {
  const OwnStream stream;
  const DeviceArray<float> x(gpu(), std::vector<float>(16, 2)), y(gpu(), 16);
  const DeviceArray<float> large(gpu(), std::vector<float>(256 * 256, 1)), sums(gpu(), 256 * 256);
  const auto multiply = [&](const DeviceArray<float>& in, const DeviceArray<float>& out,
                            int64_t n) {
    gpu().mixed->gemm(false, false, n, n, n, 1, in.data(), n, in.data(), n, 0, out.data(), n,
                      stream);
  };
  multiply(x, y, 4);
  gpu().begin_recording(stream);
  multiply(x, y, 4);
  const kernels::Recording recording = gpu().end_recording(stream);
  INFO(gpu().take_error());
  REQUIRE(recording);
  multiply(large, sums, 256);
  stream.finish();
  x.write(std::vector<float>(16, 3));
  gpu().replay(recording, stream);
  stream.finish();
  CHECK(y.read() == std::vector<float>(16, 36));
  CHECK(sums.read() == std::vector<float>(256 * 256, 256));
  gpu().release_recording(recording);
}
