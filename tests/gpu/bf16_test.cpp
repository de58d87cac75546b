// Matrix products of bfloat16 by the plugin's second table, against the double reference.
#include "tests/cuda/on_device.h"
#include "tests/gpu/gpu.h"

using namespace moe;
using namespace moe::test;

namespace {

constexpr int64_t kM = 70, kN = 48, kK = 130;

/// Numbers of at most 8 bits, which rounding leaves as they are.
std::vector<float> short_numbers(int64_t n, uint64_t stream) {
  std::vector<float> all;
  for (const int32_t i : random_ints(n, stream, 511)) all.push_back(static_cast<float>(i - 255));
  return all;
}

/// y [m,n] = x [m,k] w' with w [n,k], on the device and as it should be, and their distance.
double off(const std::vector<float>& x, const std::vector<float>& w) {
  const OwnStream stream;
  const DeviceArray<float> a(gpu(), x), b(gpu(), w), c(gpu(), kM * kN);
  gpu().mixed->gemm(false, true, kM, kN, kK, 1, a.data(), kK, b.data(), kK, 0, c.data(), kN,
                    stream);
  stream.finish();
  const std::vector<double> a64(x.begin(), x.end()), b64(w.begin(), w.end());
  std::vector<double> want(static_cast<size_t>(kM * kN));
  kernels::reference_table().gemm(false, true, kM, kN, kK, 1, a64.data(), kK, b64.data(), kK, 0,
                                  want.data(), kN, nullptr);
  return relative_l2(c.read(), want);
}

}  // namespace

TEST_CASE("products of bfloat16 are exact but for their sums", "[gemm]") {
  REQUIRE(gpu().mixed);
  CHECK(off(short_numbers(kM * kK, 1), short_numbers(kN * kK, 2)) < 1e-5);
  const double rounded = off(random_values<float>(kM * kK, 1), random_values<float>(kN * kK, 2));
  CHECK(rounded < 1e-2);
  CHECK(rounded > 1e-4);  // it was bfloat16
}

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
