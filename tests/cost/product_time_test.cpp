// Which measured time a product of a training step takes.
#include "engine/cost/product_time.h"

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

namespace moe {
namespace {

using Kind = MatrixWork::Kind;
using Of = MatrixWork::Of;

const std::string kGpuFolder = MOE_SOURCE_DIR "/scripts/moe/gpus/";

ProductTimes times(const char* alone, const char* in_step, double ratio = 1) {
  Device device{.step_ratio = ratio};
  if (*alone != 0) device.op_times = kGpuFolder + alone + ".times";
  if (*in_step != 0) device.step_times = kGpuFolder + in_step + ".times";
  return ProductTimes(device);
}

MatrixWork experts(double count, double rows, Of of) {
  return {.kind = Kind::kExperts,
          .of = of,
          .n = 4096,
          .k = 2048,
          .experts = count,
          .rows = rows,
          .grad_bytes = of == Of::kDw ? 4.0 : 0};
}

MatrixWork attention(double heads, double head_dim, double value_dim, bool backward) {
  return {.kind = Kind::kAttention,
          .batch = 1,
          .seq = 4096,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = head_dim,
          .value_dim = value_dim,
          .backward = backward};
}

TEST_CASE("a product takes its time inside a step, else that alone times the device's ratio") {
  const ProductTimes both = times("b200", "b200_step", 2), alone = times("b200", "", 2);
  const MatrixWork forward = gemm_of(4096, 4096, 8192);
  const auto in_step = both.at(forward, "bf16"), other = alone.at(forward, "bf16");
  REQUIRE((in_step && other));
  CHECK(in_step->tables == both.in_step());
  CHECK(in_step->grid->source().in_step);
  CHECK(in_step->time.ns == in_step->grid->at(std::array{4096., 4096., 8192.}).ns);
  CHECK(other->time.ns ==
        2 * alone.alone()->find("gemm", "bf16")->at(std::array{4096., 4096., 8192.}).ns);
  CHECK(times("", "", 2).at(forward, "bf16") == std::nullopt);
  CHECK(both.at({}, "bf16") == std::nullopt);
  // Adding to a sum of f32 moves more bytes than to one of bf16.
  MatrixWork dw = gemm_of(4096, 8192, 4096, Of::kDw);
  dw.grad_bytes = 2;
  const double narrow = both.at(dw, "bf16")->time.ns;
  dw.grad_bytes = 4;
  CHECK(both.at(dw, "bf16")->time.ns > narrow);
}

TEST_CASE("a weight's gradient in fp8 takes its own table, where one was measured") {
  MatrixWork dw = gemm_of(7168, 16384, 4096, Of::kDw);
  dw.grad_bytes = 4;
  const auto found = times("h100", "", 2).at(dw, "fp8_block");
  REQUIRE(found);
  CHECK(found->op == "gemm_dw");
  const double flops = 2.0 * 7168 * 16384 * 4096;
  CHECK(found->time.ns == Approx(2 * 1e9 * flops / 994e12).epsilon(1e-3));
  CHECK(times("h100", "").at(dw, "bf16")->op == "gemm");
}

TEST_CASE("products of experts take the sum of their GEMMs where no table has them together") {
  const ProductTimes h100 = times("h100", "");
  const OpGrid& gemm = *h100.alone()->find("gemm", "bf16");
  for (const Of of : {Of::kResult, Of::kDx, Of::kDw}) {
    const std::array one =
        of == Of::kDw ? std::array{4096., 2048., 301.} : std::array{301., 4096., 2048.};
    CHECK(h100.at(experts(8, 300.2, of), "bf16")->time.ns == Approx(8 * gemm.at(one).ns));
    CHECK(h100.at(experts(1, 300.2, of), "bf16")->time.ns == gemm.at(one).ns);
  }
  CHECK(h100.at(experts(8, 0, Of::kResult), "bf16") == std::nullopt);
  const ProductTimes b200 = times("b200", "b200_step");
  CHECK(b200.at(experts(8, 300, Of::kDx), "bf16")->op == "grouped_gemm_dx");
  CHECK(b200.at(experts(1, 300, Of::kDx), "bf16")->op == "gemm_dx");
}

TEST_CASE("attention has a backward of its own, and DeepSeek's head sizes a table of their own") {
  const ProductTimes b200 = times("b200", "b200_step"), h100 = times("h100", "");
  CHECK(b200.at(attention(32, 128, 128, true), "bf16")->op == "attention_dx");
  CHECK(b200.at(attention(32, 192, 128, false), "bf16")->op == "latent_attention");
  const double forward = h100.at(attention(32, 128, 128, false), "bf16")->time.ns;
  CHECK(h100.at(attention(32, 128, 128, true), "bf16")->time.ns == Approx(2.9 * forward));
  // A window leaves out pairs: the rate of the whole holds for the rest.
  MatrixWork window = attention(32, 128, 128, false);
  window.share = 0.25;
  CHECK(h100.at(window, "bf16")->time.ns == Approx(forward / 4));
  CHECK(h100.at(window, "bf16")->time.extrapolated);
}

TEST_CASE("large products of every table of a step are within what their GPU can do") {
  for (const auto& entry : std::filesystem::directory_iterator(kGpuFolder)) {
    const std::string name = entry.path().stem().string();
    if (!name.ends_with("_step")) continue;
    CAPTURE(name);
    const ProductTimes step = times("", name.c_str());
    const auto share_of_peak = [&](const MatrixWork& work, double flops) {
      const auto found = step.at(work, "bf16");
      REQUIRE(found);
      CHECK(found->grid->source().in_step);
      return flops / (1e-9 * found->time.ns) / found->grid->peak().flops_per_s;
    };
    for (const Of of : {Of::kResult, Of::kDx, Of::kDw}) {
      CAPTURE(static_cast<int>(of));
      MatrixWork gemm = gemm_of(4096, 8192, 4096, of);
      gemm.grad_bytes = of == Of::kDw ? 4 : 0;
      const double one = share_of_peak(gemm, 2. * 4096 * 8192 * 4096);
      const double grouped = share_of_peak(experts(8, 2048, of), 16. * 2048 * 4096 * 2048);
      CHECK((one > 0.35 && one < 1));
      CHECK((grouped > 0.25 && grouped < 1));
    }
  }
}

TEST_CASE("a product and its point in tables are inverse") {
  for (const MeasuredOp& op : measured_ops()) {
    std::vector<double> sizes;
    for (size_t i = 0; i < op.axes.size(); ++i) sizes.push_back(64 * static_cast<double>(i + 1));
    const MatrixWork work = product_of(op.name, sizes);
    if (work.kind == Kind::kNone) continue;
    const ProductPoint point = product_point(work);
    CAPTURE(op.name);
    CHECK(point.op == std::string(op.name));
    CHECK(point.sizes == sizes);
  }
}

}  // namespace
}  // namespace moe
