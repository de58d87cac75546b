// Which calls of cuBLAS make experts' products, on which streams, and what of it a recording keeps.
// On the host's emulation, which knows what it was asked for; nothing here runs on a GPU.
#include <cublas_v2.h>

#include <cstring>
#include <memory>

#include "kernels/device.h"
#include "tests/cuda/emulation/emulated.h"

using namespace moe;
using namespace moe::test;
using kernels::GemmVariant;

extern "C" const kernels::DeviceTable* moe_cuda_device();

namespace {

constexpr int64_t kSize = 8, kArea = kSize * kSize;
constexpr GemmVariant kVariants[] = {GemmVariant::kBatch, GemmVariant::kStreams};

const kernels::DeviceTable& device() {
  return *moe_cuda_device();
}

/// A stream of the device, and all that was made for it given back.
struct OneStream {
  OneStream() : alive(emulation::things_alive()), stream(device().make_stream(true)) {}
  ~OneStream() {
    device().end_stream(stream);
    CHECK(kernels::cuda::take_error() == "");
    CHECK(emulation::things_alive() == alive);
    CHECK(emulation::cublas_handles == handles);
  }
  const size_t alive;
  const int handles = emulation::cublas_handles;
  const kernels::Stream stream;
};

/// Products of 8 x 8 matrices: rows[i] rows of the i-th operand, sums one after the other, but
/// where `together` all of one sum.
struct Experts {
  explicit Experts(std::vector<int64_t> rows_, bool together = false)
      : rows(std::move(rows_)), sums(together ? 1 : rows.size()) {}
  void give(GemmVariant variant, kernels::Stream stream) {
    // Gone when the call is over.
    const std::unique_ptr<kernels::Product<float>[]> products(
        new kernels::Product<float>[rows.size()]);
    for (size_t i = 0; i < rows.size(); ++i)
      products[i] = {rows[i],
                     kSize,
                     kSize,
                     a.data() + i * kArea,
                     b.data() + i * kArea,
                     c.data() + i % sums * kArea};
    emulation::cublas_calls = {};
    device().kernels->gemm_many(variant, false, false, static_cast<int64_t>(rows.size()),
                                products.get(), 1, kSize, kSize, 1, kSize, stream);
    std::fill_n(reinterpret_cast<char*>(products.get()), rows.size() * sizeof products[0], '\xff');
  }
  /// What the sums are after one more time.
  std::vector<float> next() const {
    std::vector<float> sum = c;
    for (size_t i = 0; i < rows.size(); ++i)
      kernels::runnable_tables()[0]->gemm(false, false, rows[i], kSize, kSize, 1,
                                          a.data() + i * kArea, kSize, b.data() + i * kArea, kSize,
                                          1, sum.data() + i % sums * kArea, kSize, nullptr);
    return sum;
  }

  std::vector<int64_t> rows;
  size_t sums;
  std::vector<float> a = whole(1), b = whole(2), c = whole(3);

 private:
  /// Whole numbers, of which sums are exact.
  std::vector<float> whole(uint64_t stream) const {
    std::vector<float> v = random_values<float>(static_cast<int64_t>(rows.size()) * kArea, stream);
    for (float& x : v) x = std::round(4 * x);
    return v;
  }
};

}  // namespace

TEST_CASE("equal products are one strided call") {
  const OneStream one;
  Experts experts({8, 8, 8, 8, 8, 8});
  experts.give(GemmVariant::kBatch, one.stream);
  CHECK((emulation::cublas_calls.batched == 1 && emulation::cublas_calls.single == 0));
  CHECK(emulation::cublas_used.stream == one.stream);
  CHECK(emulation::cublas_used.math == CUBLAS_PEDANTIC_MATH);
}

TEST_CASE("products side by side run on four streams beside the caller's, as urgent as it") {
  const OneStream one;
  Experts experts({8, 7, 6, 5, 4, 3, 2});
  experts.give(GemmVariant::kStreams, one.stream);
  CHECK(emulation::cublas_calls.single == 7);
  CHECK(emulation::cublas_calls.streams.size() == 4);
  CHECK(emulation::cublas_calls.streams.count(one.stream) == 0);
  int own = 0;
  cudaStreamGetPriority(one.stream, &own);
  for (const cudaStream_t side : emulation::cublas_calls.streams) {
    int priority = 0;
    CHECK(cudaStreamGetPriority(side, &priority) == cudaSuccess);
    CHECK((priority == own && own < 0));
  }
}

TEST_CASE("where a batch is not possible the products run side by side, or one after the other") {
  const OneStream one;
  const auto singles = [&](Experts experts, GemmVariant variant) {
    const std::vector<float> want = experts.next();
    experts.give(variant, one.stream);
    CHECK(emulation::cublas_calls.batched == 0);
    CHECK(experts.c == want);
    return emulation::cublas_calls.streams.size();
  };
  CHECK(singles(Experts({8, 7}), GemmVariant::kBatch) == 2);        // sizes differ
  CHECK(singles(Experts({8, 0, 8, 8}), GemmVariant::kBatch) == 3);  // distances differ
  for (const GemmVariant variant : kVariants)
    CHECK(singles(Experts({0, 8, 0}), variant) == 1);                  // one is left
  CHECK(singles(Experts({8, 3, 8}, true), GemmVariant::kBatch) == 1);  // into one sum
  CHECK(singles(Experts({8, 3, 8}, true), GemmVariant::kStreams) == 1);
  CHECK(singles(Experts({8, 8, 8}, true), GemmVariant::kBatch) == 1);
  CHECK(singles(Experts({0, 0}), GemmVariant::kBatch) == 0);
}

TEST_CASE("a recording of experts' products keeps all that it needs, in every variant") {
  const OneStream one;
  for (const GemmVariant variant : kVariants)
    for (const auto& rows : std::vector<std::vector<int64_t>>{{8, 8, 8, 8}, {5, 8, 1, 0, 8, 2}}) {
      INFO("variant " << static_cast<int>(variant));
      Experts experts(rows), others(std::vector<int64_t>(12, 8));
      const std::vector<float> before = experts.c;
      device().begin_recording(one.stream);
      experts.give(variant, one.stream);
      const kernels::Recording recording = device().end_recording(one.stream);
      CHECK(kernels::cuda::take_error() == "");
      REQUIRE(recording);
      CHECK(experts.c == before);
      others.give(variant, one.stream);  // takes over the room, and makes it larger
      for (int round = 0; round < 2; ++round) {
        const std::vector<float> want = experts.next();
        device().replay(recording, one.stream);
        CHECK(experts.c == want);
      }
      device().release_recording(recording);
    }
}

TEST_CASE("products without room for their rounded operands say so and touch nothing") {
  const OneStream one;
  void* const all = device().allocate(device().info().free_bytes);
  REQUIRE((all && device().info().free_bytes == 0));
  const std::vector<float> w(kArea, 1);
  const auto x = Arrays<kernels::Bf16>::stored(kArea, 1);
  auto y = Arrays<kernels::Bf16>::stored(kArea, 2);
  const auto before = y;
  const kernels::Product<kernels::Bf16> product = {kSize,    kSize,    kSize,
                                                   x.data(), w.data(), y.data()};
  device().mixed->gemm_many(GemmVariant::kBatch, false, true, 1, &product, 1, kSize, kSize, 0,
                            kSize, one.stream);
  CHECK(kernels::cuda::take_error() == "cuda: gemm: allocate 128 bytes: out of memory");
  CHECK(std::memcmp(y.data(), before.data(), kArea * sizeof y[0]) == 0);
  device().release(all);
}
