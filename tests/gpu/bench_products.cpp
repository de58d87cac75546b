#include "tests/gpu/bench_products.h"

#include <algorithm>
#include <numeric>

namespace moe::test {
namespace {

using kernels::Bf16;
using kernels::GemmVariant;

/// The products of a training step of 8 experts with w [n,k] and rows[e] rows each, of `capacity`:
/// y = x w^T with bias and GELU, dx = dy w with GELU's slope and without, dw = dy^T x.
void expert_products(Bench& bench, const std::string& name, const std::vector<int64_t>& rows,
                     int64_t capacity, int64_t n, int64_t k, double target_tflops) {
  constexpr std::pair<const char*, GemmVariant> kVariants[] = {{" batch", GemmVariant::kBatch},
                                                               {" streams", GemmVariant::kStreams}};
  if (!bench.wants(name)) return;
  const auto experts = static_cast<int64_t>(rows.size()), slots = experts * capacity;
  const auto wide = std::max(n, k);
  const auto x = bench.random<Bf16>(slots * wide), y = bench.random<Bf16>(slots * wide),
             z = bench.random<Bf16>(slots * wide), w = bench.random<Bf16>(experts * n * k);
  const DeviceArray<float> bias = bench.random(experts * n), dw = bench.random(experts * n * k);
  using Products = std::vector<kernels::Product<Bf16>>;
  Products forward, slope, plain, weights;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t m = rows[static_cast<size_t>(e)], at = e * capacity;
    Bf16* const we = w.data() + e * n * k;
    forward.push_back({m,
                       n,
                       k,
                       x.data() + at * k,
                       we,
                       y.data() + at * n,
                       {.bias = bias.data() + e * n, .before_gelu = z.data() + at * n}});
    plain.push_back({m, k, n, x.data() + at * n, we, y.data() + at * k});
    slope.push_back(
        {m, k, n, x.data() + at * n, we, y.data() + at * k, {.gelu_at = z.data() + at * k}});
    weights.push_back({n, k, m, x.data() + at * n, z.data() + at * k, dw.data() + e * n * k});
  }
  const int64_t all = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  const std::string what = "8 experts, " + std::to_string(all) + " rows in all, " +
                           std::to_string(n) + " x " + std::to_string(k) + ", bfloat16";
  const auto show = [&](const std::string& kind, const Products& products, bool ta, bool tb,
                        int64_t lda, int64_t ldb, float beta, int64_t ldc) {
    for (const auto& [text, variant] : kVariants)
      bench.row(name + kind + text, what, bench.time([&, variant = variant](int64_t) {
        bench.gpu().mixed->gemm_many(variant, ta, tb, experts, products.data(), 1, lda, ldb, beta,
                                     ldc, bench.stream());
      }),
                {.flops = 2.0 * static_cast<double>(all) * static_cast<double>(n * k)},
                Target{target_tflops, "TFLOP/s", false, "on an H200"});
  };
  show(" gelu", forward, false, true, k, k, 0, n);
  show(" dx", plain, false, false, n, k, 0, k);
  show(" dx gelu", slope, false, false, n, k, 0, k);
  show(" dw", weights, true, false, n, k, 0, k);
  show(" dw added", weights, true, false, n, k, 1, k);
}

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

/// The three products of a head of GPT-2's width with logits [rows, vocab], whose rows are `pitch`
/// numbers apart; `weights` rows of the weight are multiplied forward.
void head_rows(Bench& bench, int64_t vocab, int64_t weights, int64_t pitch) {
  constexpr int64_t kTokens = 12288, kHidden = 768;
  const std::string size = " " + std::to_string(vocab) + " of " + std::to_string(weights) +
                           " pitch " + std::to_string(pitch);
  if (!bench.wants("head" + size)) return;
  const DeviceArray<Bf16> x = bench.random<Bf16>(kTokens * kHidden),
                          w = bench.random<Bf16>(weights * kHidden),
                          logits = bench.random<Bf16>(kTokens * pitch);
  const DeviceArray<float> dw = bench.random(vocab * kHidden);
  const auto show = [&](const char* name, const Call& call) {
    bench.row(name + size, "12288 x 768, bfloat16", bench.time(call),
              {.flops = 2.0 * kTokens * kHidden * static_cast<double>(vocab)});
  };
  const auto& k = *bench.gpu().mixed;
  show("head", [&](int64_t) {
    k.gemm(false, true, kTokens, weights, kHidden, 1, x.data(), kHidden, w.data(), kHidden, 0,
           logits.data(), pitch, bench.stream());
  });
  show("head dx", [&](int64_t) {
    k.gemm(false, false, kTokens, kHidden, weights, 1, logits.data(), pitch, w.data(), kHidden, 0,
           x.data(), kHidden, bench.stream());
  });
  show("head dw", [&](int64_t) {
    k.gemm(true, false, vocab, kHidden, kTokens, 1, logits.data(), pitch, x.data(), kHidden, 0,
           dw.data(), kHidden, bench.stream());
  });
}

}  // namespace

void products_and_gelu(Bench& bench) {
  if (bench.gpu().mixed == nullptr) return;
  head_rows(bench, 50257, 50257, 50257);
  head_rows(bench, 50257, 50257, 50304);
  head_rows(bench, 50257, 50304, 50304);
  const auto& table = *bench.gpu().mixed;
  const kernels::Stream stream = bench.stream();
  for (const int64_t hidden : {768, 2048}) {
    const int64_t n = 4 * hidden, k = hidden;
    const auto many = [=, &table](const Layer& l, bool transpose_b, kernels::Epilogue<Bf16> then) {
      const kernels::Product<Bf16> product = {kRows,      n,          k,   l.x.data(),
                                              l.w.data(), l.y.data(), then};
      table.gemm_many(GemmVariant::kBatch, false, transpose_b, 1, &product, 1, k,
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
  if (bench.gpu().mixed == nullptr) return;
  const std::vector<int64_t> padded(8, 2048);
  const std::vector<int64_t> ragged = {6000, 3001, 2500, 2047, 1500, 1000, 336, 0};
  // The second product of an expert has w [hidden, ffn].
  const auto both = [&](const std::string& name, int64_t hidden, int64_t ffn, double tflops) {
    expert_products(bench, "experts " + name + " padded", padded, 2048, ffn, hidden, tflops);
    expert_products(bench, "experts " + name + " second", padded, 2048, hidden, ffn, tflops);
    expert_products(bench, "experts " + name + " ragged", ragged, 6000, ffn, hidden, 0.9 * tflops);
  };
  both("768", 768, 3072, 540);
  both("2048", 2048, 8192, 610);
  both("4096", 4096, 14336, 640);
}

}  // namespace moe::test
