// When products of bfloat16 are cublasLt's, with what follows them, and what happens where it has
// nothing for them. On the host's emulation, which knows what it was asked for.
#include <cublasLt.h>

#include "kernels/device.h"
#include "tests/cuda/emulation/emulated.h"
#include "tests/cuda/epilogues.h"

using namespace moe;
using namespace moe::test;
using emulation::LtOffers;
using kernels::Bf16;

extern "C" const kernels::DeviceTable* moe_cuda_device();

namespace {

const kernels::DeviceTable& device() {
  return *moe_cuda_device();
}

/// Sizes that no other test has, so that nobody has asked for their algorithms.
int64_t fresh_size() {
  static int64_t last = 4096;
  return last += 8;
}

/// The library as it is, again when this goes.
struct Library {
  Library() { emulation::lt_calls = {}; }
  ~Library() {
    emulation::lt_offers = LtOffers::kAll;
    emulation::lt_one_size = emulation::lt_refuses = false;
  }
};

/// GELU(x w^T + bias) in bfloat16, of `rows` rows.
struct Layer {
  explicit Layer(int64_t n_, int64_t k_ = 8) : n(n_), k(k_) {}
  void run(int64_t rows, kernels::Stream stream = nullptr) {
    run(GemmVariant::kBatch, {rows}, stream);
  }
  /// Of so many rows a product, one after the other.
  void run(GemmVariant variant, const std::vector<int64_t>& rows, kernels::Stream stream) {
    std::vector<kernels::Product<Bf16>> products;
    int64_t first = 0;
    for (const int64_t m : rows) {
      products.push_back({m,
                          n,
                          k,
                          x.data() + first * k,
                          w.data(),
                          y.data() + first * n,
                          {.bias = bias.data(), .before_gelu = z.data() + first * n}});
      first += m;
    }
    device().mixed->gemm_many(variant, false, true, static_cast<int64_t>(products.size()),
                              products.data(), 1, k, k, 0, n, stream);
    REQUIRE(kernels::cuda::take_error() == "");
  }
  static constexpr int64_t kRows = 300;
  const int64_t n, k;
  std::vector<Bf16> x = Arrays<Bf16>::stored(kRows * k, 1), w = Arrays<Bf16>::stored(n * k, 2);
  std::vector<float> bias = std::vector<float>(static_cast<size_t>(n), 0.5F);
  std::vector<Bf16> y = Arrays<Bf16>::stored(kRows * n, 3), z = y;
};

}  // namespace

TEST_CASE("what follows a product is in its call, and within one rounding") {
  const Library library;
  for (const bool ragged : {false, true})
    for (const GemmVariant variant : kVariants)
      for (const int given : {kBias, kAdd, kBias | kAdd, kBeforeGelu, kBeforeGelu | kBias, kGeluAt})
        for (const bool tb : {false, true}) {
          const Sizes& s = kSizes[ragged ? 1 : 0];
          INFO("ragged " << ragged << ", variant " << static_cast<int>(variant) << ", given "
                         << given);
          const auto body = [&](const auto& k, auto arrays) {
            return followed(k, arrays, variant, s, given, false, tb);
          };
          agree_mixed(1e-5, body);
          emulation::lt_calls = {};
          const uint64_t launches = emulation::num_launches();
          body(device_mixed(), Arrays<Bf16>());
          const bool batch = variant == GemmVariant::kBatch && given != kGeluAt;
          const int products = batch && !ragged ? 1 : 3;
          CHECK(emulation::lt_calls.made == products);
          CHECK(emulation::lt_calls.fused == (given == kAdd ? 0 : products));
          // Nothing is a kernel of ours but the rounding of biases that lie side by side.
          const int rounded = (given & kBias) == 0 ? 0 : ragged ? 2 : 1;
          CHECK(emulation::num_launches() == launches + static_cast<uint64_t>(rounded));
        }
}

TEST_CASE("where cublasLt offers less, nothing or refuses, cuBLAS and own kernels do the rest") {
  const Library library;
  for (const LtOffers offers : {LtOffers::kAll, LtOffers::kPlain, LtOffers::kNone})
    for (const GemmVariant variant : kVariants)
      for (const int given : {0, kBias, kBias | kAdd, kBeforeGelu | kBias, kGeluAt}) {
        // The library is asked anew.
        const Sizes s = {{16, 16}, 24, fresh_size(), 0};
        emulation::lt_offers = offers;
        emulation::lt_refuses = offers == LtOffers::kAll;
        emulation::lt_calls = {};
        emulation::cublas_calls = {};
        const auto body = [&](const auto& k, auto arrays) {
          return followed(k, arrays, variant, s, given, false, true);
        };
        INFO("variant " << static_cast<int>(variant) << ", given " << given);
        agree_mixed(0.25, body);  // sums of some thousand products
        CHECK(emulation::lt_calls.fused == 0);
        CHECK((emulation::lt_calls.made > 0) == (offers == LtOffers::kPlain && given == 0));
        CHECK(emulation::cublas_calls.single + emulation::cublas_calls.batched > 0);
      }
}

TEST_CASE("an algorithm is asked for once per bucket of rows, also by another stream") {
  const Library library;
  const int64_t n = fresh_size();
  Layer layer(n);
  for (const int64_t rows : {129, 200, 256, 131}) layer.run(rows);
  CHECK(emulation::lt_calls.asked == 1);
  for (const int64_t rows : {257, 300}) layer.run(rows);
  CHECK(emulation::lt_calls.asked == 2);
  for (const int64_t rows : {65, 128, 100}) layer.run(rows);
  CHECK(emulation::lt_calls.asked == 3);
  const kernels::Stream stream = device().make_stream(false);
  layer.run(150, stream);
  device().end_stream(stream);
  CHECK(emulation::lt_calls.asked == 3);
  CHECK(emulation::lt_calls.fused == 10);
}

TEST_CASE("a bucket's algorithm that does not make a product is asked for by its own size") {
  const Library library;
  emulation::lt_one_size = true;
  Layer layer(fresh_size());
  layer.run(128);
  CHECK(emulation::lt_calls.asked == 1);
  for (int round = 0; round < 2; ++round) {
    layer.run(100);
    CHECK(emulation::lt_calls.asked == 2);
  }
  CHECK(emulation::lt_calls.fused == 3);
}

TEST_CASE("sums over ragged rows share the algorithm of a bucket") {
  const Library library;
  const int64_t n = fresh_size();
  const auto dy = Arrays<Bf16>::stored(300 * 8, 1), x = Arrays<Bf16>::stored(300 * n, 2);
  std::vector<float> dw(static_cast<size_t>(8 * n));
  std::vector<double> want(dw.size());
  std::vector<double> dy64, x64;
  for (const Bf16 v : dy) dy64.push_back(to_float(v));
  for (const Bf16 v : x) x64.push_back(to_float(v));
  for (const int64_t rows : {200, 256, 129}) {
    device().mixed->gemm(true, false, 8, n, rows, 1, dy.data(), 8, x.data(), n, 1, dw.data(), n,
                         nullptr);
    kernels::reference_table().gemm(true, false, 8, n, rows, 1, dy64.data(), 8, x64.data(), n, 1,
                                    want.data(), n, nullptr);
  }
  CHECK(kernels::cuda::take_error() == "");
  CHECK(relative_l2(dw, want) < kMaxRelativeL2);
  CHECK((emulation::lt_calls.asked == 1 && emulation::lt_calls.made == 3));
}

TEST_CASE("where memory lies does not choose the algorithm, beyond 16 bytes") {
  const Library library;
  const int64_t n = fresh_size();
  Layer layer(n);
  const auto x = Arrays<Bf16>::stored(8 * 20, 1);
  std::vector<Bf16> y(static_cast<size_t>(n + 64));
  const auto run = [&](int64_t shift) {
    device().mixed->gemm(false, true, 1, n, 8, 1, x.data() + shift, 8, layer.w.data(), 8, 0,
                         y.data(), n, nullptr);
    return emulation::lt_calls.asked;
  };
  CHECK(run(0) == 1);
  for (const int64_t shift : {8, 16, 64, 128}) CHECK(run(shift) == 1);
  CHECK(run(1) == 2);
  CHECK(run(3) == 2);
  CHECK(run(2) == 3);
}

TEST_CASE("a recording of products and what follows them is replayed, in every variant") {
  const Library library;
  const size_t alive = emulation::things_alive();
  const kernels::Stream stream = device().make_stream(false);
  Layer layer(24), other(fresh_size(), 64);
  for (const GemmVariant variant : kVariants)
    for (const auto& rows : std::vector<std::vector<int64_t>>{{100, 100, 100}, {40, 0, 259, 1}}) {
      INFO("variant " << static_cast<int>(variant));
      layer.run(variant, rows, stream);
      const std::vector<Bf16> y = layer.y, z = layer.z;
      device().begin_recording(stream);
      layer.run(variant, rows, stream);
      const kernels::Recording recording = device().end_recording(stream);
      REQUIRE(recording);
      other.run(300, stream);  // takes over the room, and makes it larger
      std::fill(layer.y.begin(), layer.y.end(), Bf16());
      std::fill(layer.z.begin(), layer.z.end(), Bf16());
      for (Bf16& v : layer.x) v = kernels::to_bf16(2 * to_float(v));
      for (Bf16& v : layer.w) v = kernels::to_bf16(to_float(v) / 2);
      device().replay(recording, stream);
      CHECK(std::memcmp(layer.y.data(), y.data(), y.size() * sizeof(Bf16)) == 0);
      CHECK(std::memcmp(layer.z.data(), z.data(), z.size() * sizeof(Bf16)) == 0);
      device().release_recording(recording);
    }
  device().end_stream(stream);
  CHECK(emulation::things_alive() == alive);
  CHECK(kernels::cuda::take_error() == "");
}

TEST_CASE("products side by side have workspaces of their own") {
  const Library library;
  const Sizes s = {{16, 16, 16, 16, 16, 16, 16}, 24, 16, 0};
  followed(device_mixed(), Arrays<Bf16>(), GemmVariant::kStreams, s, kBias, false, true);
  CHECK(emulation::lt_calls.workspaces.size() == 4);
  std::set<void*> places;
  for (const auto& [stream, place] : emulation::lt_calls.workspaces) places.insert(place);
  CHECK(places.size() == 4);
}

TEST_CASE("a product without room for a workspace says so and touches nothing") {
  const kernels::Stream stream = device().make_stream(false);
  void* const all = device().allocate(device().info().free_bytes);
  REQUIRE(all);
  const auto x = Arrays<Bf16>::stored(64, 1);
  auto y = Arrays<Bf16>::stored(64, 2);
  const auto before = y;
  device().mixed->gemm(false, true, 8, 8, 8, 1, x.data(), 8, x.data(), 8, 0, y.data(), 8, stream);
  CHECK(kernels::cuda::take_error() == "cuda: gemm: allocate 4096 bytes: out of memory");
  CHECK(std::memcmp(y.data(), before.data(), 64 * sizeof(Bf16)) == 0);
  device().release(all);
  device().end_stream(stream);
}
