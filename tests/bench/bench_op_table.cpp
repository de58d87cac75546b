// Tables of measured op times: how long it takes to open a file, the first look-up of an op (which
// fills missing cells) and further look-ups, and how far rates times a constant are from the
// measured times of GEMMs.
//
//   bench_op_table GPU...   names of scripts/moe/gpus/, default: h100
#include <fmt/format.h>

#include <cmath>

#include "engine/cost/expert_table.h"
#include "engine/cost/op_table.h"
#include "tests/bench/measure.h"

namespace {

constexpr int kLookups = 10'000;

/// ns per look-up of points that change from call to call.
template <class F>
std::string lookup(const F& at) {
  double sum = 0;
  const moe::bench::Spread all = moe::bench::spread_ns(20, [&] {
    for (int i = 0; i < kLookups; ++i) sum += at(1 + (i * 37) % 1000);
  });
  return fmt::format("{:6.0f} [{:.0f}, {:.0f}] ns{}", all.median / kLookups, all.low / kLookups,
                     all.high / kLookups, sum > 0 ? "" : "?");
}

/// Errors of GEMMs of 1,024 rows or more by max(flops / (peak * share), bytes / (rate * 0.8)).
std::string by_constant(const moe::OpGrid& grid, double share) {
  std::vector<double> errors;
  for (const double m : grid.axes()[0].values) {
    if (m < 1024) continue;
    for (const double n : grid.axes()[1].values) {
      for (const double k : grid.axes()[2].values) {
        const double ns =
            1e9 * std::max(2 * m * n * k / (grid.peak().flops_per_s * share),
                           2 * (m * n + m * k + n * k) / (grid.peak().memory_bytes_per_s * 0.8));
        errors.push_back(std::abs(ns / grid.at(std::array{m, n, k}).ns - 1));
      }
    }
  }
  std::sort(errors.begin(), errors.end());
  return fmt::format("{:.0f}% in the median, {:.0f}% at the 95th percentile",
                     100 * errors[errors.size() / 2], 100 * errors[errors.size() * 95 / 100]);
}

void measure(const std::string& gpu) {
  const std::string path = MOE_SOURCE_DIR "/scripts/moe/gpus/" + gpu + ".times";
  fmt::print("{}\n  open       {} us\n", gpu,
             moe::bench::in_us(moe::bench::spread_ns(9, [&] { moe::OpTables tables(path); })));
  const moe::OpTables tables(path);
  const moe::OpGrid &gemm = *tables.find("gemm", "bf16"),
                    &attention = *tables.find("attention", "bf16");
  const moe::ExpertTable& experts = *tables.experts("bf16");
  const auto first = [&](const char* op, const moe::OpGrid& grid, const std::vector<double>& p) {
    const auto took = moe::bench::spread_ns(1, [&] { grid.at(p); });
    fmt::print("  first {:9} {:8.1f} us\n", op, took.median / 1e3);
  };
  first("gemm", gemm, {1000, 1000, 1000});
  first("attention", attention, {3, 1000, 16, 16, 128});
  fmt::print("  gemm       {}\n", lookup([&](double x) {
               return gemm.at(std::array{x * 7, x + 500, 3000 - x}).ns;
             }));
  fmt::print("  attention  {}\n", lookup([&](double x) {
               return attention.at(std::array{1 + x / 500, x * 3, 16.0, 8.0, 100.0}).ns;
             }));
  fmt::print(
      "  experts    {}\n", lookup([&](double x) {
        return experts.at({.hidden = 3000, .inner = 1000, .experts = 64, .k = 4}, x * 10, 0).ns;
      }));
  for (const double share : {0.30, 0.55}) {
    fmt::print("  GEMMs of 1,024 rows or more by {:.2f} of the peak: off by {}\n", share,
               by_constant(gemm, share));
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> gpus(argv + 1, argv + argc);
  if (gpus.empty()) gpus = {"h100"};
  for (const std::string& gpu : gpus) measure(gpu);
}
