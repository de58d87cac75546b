#include "tests/gpu/bench_products.h"

#include <algorithm>

namespace moe::test {
namespace {

/// y[e] = x[e] w[e]^T of 8 experts with rows[e] rows each, of `capacity`, in every way.
void expert_products(Bench& bench, const std::string& name, const std::vector<int64_t>& rows,
                     int64_t capacity, int64_t n, int64_t k, double target_tflops) {
  using kernels::ProductsWay;
  constexpr std::pair<const char*, ProductsWay> kWays[] = {{"batch", ProductsWay::kBatch},
                                                           {"streams", ProductsWay::kStreams},
                                                           {"grouped", ProductsWay::kGrouped},
                                                           {"each", ProductsWay::kEach}};
  const bool padded =
      std::all_of(rows.begin(), rows.end(), [&](int64_t r) { return r == rows[0]; });
  const auto wanted = [&](const char* way) { return bench.wants(name + " " + way); };
  if (std::none_of(std::begin(kWays), std::end(kWays), [&](auto& w) { return wanted(w.first); }))
    return;
  const auto experts = static_cast<int64_t>(rows.size());
  const DeviceArray<float> x = bench.random(experts * capacity * k),
                           w = bench.random(experts * n * k);
  const DeviceArray<float> y = bench.random(experts * capacity * n);
  std::vector<kernels::Product<float>> products;
  int64_t all_rows = 0;
  for (int64_t e = 0; e < experts; ++e) {
    products.push_back({rows[static_cast<size_t>(e)], n, k, x.data() + e * capacity * k,
                        w.data() + e * n * k, y.data() + e * capacity * n});
    all_rows += products.back().m;
  }
  const std::string what = std::to_string(experts) + " experts, " + std::to_string(all_rows) +
                           " rows in all, " + (padded ? "equally many each" : "unequal") + ", " +
                           std::to_string(n) + " x " + std::to_string(k) + ", float32";
  for (const auto& [text, way] : kWays) {
    if (!wanted(text) || (way == ProductsWay::kBatch && !padded)) continue;
    const Call call = [&, way = way](int64_t) {
      bench.kernels().gemm_many(way, false, true, experts, products.data(), 1, k, k, 0, n,
                                bench.stream());
    };
    bench.row(name + " " + text, what, bench.time(call),
              {.flops = 2.0 * static_cast<double>(all_rows) * static_cast<double>(n) *
                        static_cast<double>(k)},
              Target{target_tflops, "TFLOP/s", false, "set for bfloat16 and a padded batch"});
  }
}

}  // namespace

void experts_in_all_ways(Bench& bench) {
  const std::vector<int64_t> padded(8, 2048);
  const std::vector<int64_t> ragged = {6000, 3001, 2500, 2047, 1500, 1000, 336, 0};
  struct Shape {
    const char* name;
    int64_t n, k;
    double tflops;
  };
  for (const Shape& s : {Shape{"768", 3072, 768, 540}, Shape{"2048", 8192, 2048, 610},
                         Shape{"4096", 14336, 4096, 640}}) {
    expert_products(bench, std::string("experts ") + s.name + " padded", padded, 2048, s.n, s.k,
                    s.tflops);
    // Within 10% of padded.
    expert_products(bench, std::string("experts ") + s.name + " ragged", ragged, 6000, s.n, s.k,
                    0.9 * s.tflops);
  }
}

}  // namespace moe::test
