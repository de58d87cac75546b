#include "tests/gpu/bench_products.h"

#include <algorithm>

namespace moe::test {
namespace {

/// y[e] = x[e] w[e]^T of 8 experts with rows[e] rows each, of `capacity`, in both variants.
void expert_products(Bench& bench, const std::string& name, const std::vector<int64_t>& rows,
                     int64_t capacity, int64_t n, int64_t k, double target_tflops) {
  using kernels::GemmVariant;
  constexpr std::pair<const char*, GemmVariant> kVariants[] = {{"batch", GemmVariant::kBatch},
                                                               {"streams", GemmVariant::kStreams}};
  const bool padded =
      std::all_of(rows.begin(), rows.end(), [&](int64_t r) { return r == rows[0]; });
  const auto wanted = [&](const char* variant) { return bench.wants(name + " " + variant); };
  if (std::none_of(std::begin(kVariants), std::end(kVariants),
                   [&](auto& w) { return wanted(w.first); }))
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
  for (const auto& [text, variant] : kVariants) {
    if (!wanted(text) || (variant == GemmVariant::kBatch && !padded)) continue;
    const Call call = [&, variant = variant](int64_t) {
      bench.kernels().gemm_many(variant, false, true, experts, products.data(), 1, k, k, 0, n,
                                bench.stream());
    };
    bench.row(name + " " + text, what, bench.time(call),
              {.flops = 2.0 * static_cast<double>(all_rows) * static_cast<double>(n) *
                        static_cast<double>(k)},
              Target{target_tflops, "TFLOP/s", false, "set for bfloat16 and a padded batch"});
  }
}

using kernels::Bf16;

/// y[m,n] = op(x[m,k] w) as `make` makes it, in two ways.
struct Layer {
  DeviceArray<Bf16> x, w, y, z;
  DeviceArray<float> bias;
};
constexpr int64_t kRows = 16384;

void layer_rows(Bench& bench, const std::string& name, int64_t n, int64_t k,
                const std::function<void(const Layer&)>& fused,
                const std::function<void(const Layer&)>& apart) {
  const auto sets = each_set(Bench::sets(2.0 * static_cast<double>(kRows * (k + 2 * n))), [&] {
    return Layer{bench.random<Bf16>(kRows * k), bench.random<Bf16>(n * k),
                 bench.random<Bf16>(kRows * n), bench.random<Bf16>(kRows * n), bench.random(n)};
  });
  const std::string what =
      std::to_string(kRows) + " x " + std::to_string(n) + " x " + std::to_string(k) + ", bfloat16";
  for (const auto& [text, make] : {std::pair(" fused", &fused), std::pair(" apart", &apart)})
    if (bench.wants(name + text))
      bench.row(name + text, what,
                bench.time([&, make = make](int64_t number) { (*make)(turn(sets, number)); }),
                {.flops = 2.0 * static_cast<double>(kRows) * static_cast<double>(n) *
                          static_cast<double>(k)});
}

}  // namespace

void products_and_gelu(Bench& bench) {
  if (bench.gpu().mixed == nullptr) return;
  const auto& table = *bench.gpu().mixed;
  const kernels::Stream stream = bench.stream();
  for (const int64_t hidden : {768, 2048}) {
    const int64_t n = 4 * hidden, k = hidden;
    const auto many = [=, &table](const Layer& l, bool transpose_b, kernels::Epilogue<Bf16> then) {
      const kernels::Product<Bf16> product = {kRows,      n,          k,   l.x.data(),
                                              l.w.data(), l.y.data(), then};
      table.gemm_many(kernels::GemmVariant::kBatch, false, transpose_b, 1, &product, 1, k,
                      transpose_b ? k : n, 0, n, stream);
    };
    const std::string size = std::to_string(hidden);
    layer_rows(
        bench, "linear gelu " + size, n, k,
        [=](const Layer& l) { many(l, true, {.bias = l.bias.data(), .before_gelu = l.z.data()}); },
        [=, &table](const Layer& l) {
          many(l, true, {.bias = l.bias.data()});
          table.gelu(l.z.data(), l.y.data(), nullptr, kRows, n, stream);
        });
    layer_rows(
        bench, "gelu linear dx " + size, n, k,
        [=](const Layer& l) { many(l, false, {.gelu_at = l.z.data()}); },
        [=, &table](const Layer& l) {
          many(l, false, {});
          table.gelu_dx(l.y.data(), l.y.data(), l.z.data(), nullptr, kRows, n, stream);
        });
  }
}

void experts_in_both_variants(Bench& bench) {
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
