// Memory of the device: copies, fills, the search for numbers that are not finite and for a row's
// largest.
#include <algorithm>
#include <cstring>

#include "tests/cuda/on_device.h"
#include "tests/gpu/gpu.h"

using namespace moe;
using namespace moe::test;

namespace {

using Bytes = std::vector<char>;

Bytes random_bytes(int64_t n, uint64_t stream) {
  Bytes bytes(static_cast<size_t>(n));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(random24(i, stream));
  return bytes;
}

/// The index that note_nonfinite leaves where `first` was before.
template <class T>
int64_t nonfinite(const std::vector<T>& x, int64_t first) {
  const DeviceArray<T> on_device(gpu(), x);
  const DeviceArray<int64_t> found(gpu(), std::vector<int64_t>{first});
  const OwnStream stream;
  gpu().note_nonfinite(found.data(), on_device.data(), on_device.size(), stream);
  stream.finish();
  return found.read()[0];
}

constexpr int64_t kNone = -1;

}  // namespace

TEST_CASE("the device says what it is") {
  const kernels::DeviceInfo info = gpu().info();
  CHECK(std::strlen(info.name) > 0);
  CHECK(std::string(info.versions).find("driver") != std::string::npos);
  CHECK((info.memory_bytes > 0 && info.free_bytes > 0 && info.free_bytes <= info.memory_bytes));
  CHECK((info.multiprocessors > 0 && info.major >= 7));
}

TEST_CASE("bytes come back from the device as they went, by every way") {
  const OwnStream stream;
  for (const int64_t n : {1, 3, 16, 4097, 1 << 22}) {
    const Bytes sent = random_bytes(n, 1);
    Bytes received(sent.size());
    const DeviceArray<char> a(gpu(), n), b(gpu(), n);
    auto* pinned = static_cast<char*>(gpu().allocate_host(n));
    REQUIRE(pinned);
    gpu().copy(a.data(), sent.data(), n, stream);
    gpu().copy(b.data(), a.data(), n, stream);
    gpu().copy(pinned, b.data(), n, stream);
    gpu().copy(a.data(), pinned, n, stream);
    gpu().copy(received.data(), a.data(), n, stream);
    stream.finish();
    CHECK((received == sent));
    CHECK(std::memcmp(pinned, sent.data(), sent.size()) == 0);
    gpu().release_host(pinned);
  }
}

TEST_CASE("a copy and a fill touch their own bytes and none beside them") {
  const OwnStream stream;
  const int64_t n = 1000, at = 13, count = 501;
  Bytes want = random_bytes(n, 2);
  const Bytes from = random_bytes(n, 3);
  const DeviceArray<char> to(gpu(), want), source(gpu(), from);
  gpu().copy(to.data() + at, source.data() + 7, count, stream);
  gpu().fill(to.data() + 700, 0xa5, 33, stream);
  gpu().fill(to.data() + 800, 0, 0, stream);
  stream.finish();
  std::copy_n(from.begin() + 7, count, want.begin() + at);
  std::fill_n(want.begin() + 700, 33, static_cast<char>(0xa5));
  CHECK((to.read() == want));
}

TEST_CASE("allocations do not overlap, and what is released can be had again") {
  const OwnStream stream;
  for (int round = 0; round < 3; ++round) {
    std::vector<DeviceArray<char>> arrays;
    for (int i = 0; i < 20; ++i) {
      arrays.emplace_back(gpu(), 1000 + i);
      gpu().fill(arrays.back().data(), i, arrays.back().size(), stream);
    }
    stream.finish();
    for (int i = 0; i < 20; ++i)
      CHECK(
          (arrays[static_cast<size_t>(i)].read() == Bytes(static_cast<size_t>(1000 + i), char(i))));
  }
}

TEST_CASE("more memory than there is gives null and a reason, and the device goes on") {
  CHECK(gpu().allocate(int64_t{1} << 60) == nullptr);
  CHECK(std::string(gpu().take_error()) != "");
  CHECK(std::string(gpu().take_error()) == "");
  CHECK(DeviceArray<float>(gpu(), std::vector<float>{1, 2}).read() == std::vector<float>{1, 2});
}

TEMPLATE_TEST_CASE("the first number that is not finite is found, wherever it stands", "", float,
                   kernels::Bf16) {
  using A = Arrays<TestType>;
  const int64_t n = 100003;
  const auto clean = A::stored(n, 4, 1e30);
  CHECK(nonfinite(clean, kNone) == kNone);
  CHECK(nonfinite(std::vector<TestType>(), kNone) == kNone);
  for (const int64_t at : {int64_t{0}, int64_t{1}, int64_t{31}, int64_t{4096}, n - 1})
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      auto x = clean;
      x[static_cast<size_t>(at)] = A::of(bad);
      x.back() = A::of(NAN);
      CHECK(nonfinite(x, kNone) == at);
    }
}

TEST_CASE("an index that was found before stays where it is the lesser") {
  auto x = random_values<float>(5000, 5);
  x[1234] = NAN;
  CHECK(nonfinite(x, 1233) == 1233);
  CHECK(nonfinite(x, 1235) == 1234);
  CHECK(nonfinite(random_values<float>(5000, 5), 17) == 17);
}

TEMPLATE_TEST_CASE("the largest number of each row is found, of equal ones the first", "", float,
                   kernels::Bf16) {
  using A = Arrays<TestType>;
  const int64_t rows = 129, cols = 50257;
  auto x = A::stored(rows * cols, 6, 1e30);
  for (int64_t r = 0; r < rows; ++r) {
    for (const int64_t at : {cols - 1, (r * 391) % cols})
      x[static_cast<size_t>(r * cols + at)] = A::of(2e30f);
    x[static_cast<size_t>(r * cols + r % 3)] = A::of(NAN);  // of each third row the first
  }
  const DeviceArray<TestType> on_device(gpu(), x);
  const DeviceArray<int32_t> column(gpu(), std::vector<int32_t>(static_cast<size_t>(rows), -7));
  const OwnStream stream;
  gpu().largest_columns(column.data(), on_device.data(), rows, cols, cols, stream);
  stream.finish();
  const auto found = column.read();
  const auto less = [](TestType a, TestType b) {
    return kernels::to_float(a) < kernels::to_float(b);
  };
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = x.begin() + r * cols;
    CHECK(found[static_cast<size_t>(r)] == std::max_element(row, row + cols, less) - row);
  }
}
