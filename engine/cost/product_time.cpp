#include "engine/cost/product_time.h"

#include <array>
#include <cmath>

namespace moe {
namespace {

using Kind = MatrixWork::Kind;
using Of = MatrixWork::Of;

constexpr std::array kGemms{measured::kGemm, measured::kGemmDx, measured::kGemmDw};
constexpr std::array kGrouped{measured::kGrouped, measured::kGroupedDx, measured::kGroupedDw};

/// The head sizes for which tables have latent attention: DeepSeek-V2's and V3's.
bool is_latent(const MatrixWork& w) {
  return w.head_dim == 192 && w.value_dim == 128 && w.heads == w.kv_heads && w.seen == 1;
}

/// The product of one expert as a GEMM of its own.
MatrixWork one_expert(const MatrixWork& w) {
  const double rows = std::ceil(w.rows);
  MatrixWork one = w.of == Of::kDw ? gemm_of(w.n, w.k, rows, w.of) : gemm_of(rows, w.n, w.k, w.of);
  one.grad_bytes = w.grad_bytes;
  return one;
}

/// Multiplies all of a time.
OpTime times(OpTime time, double factor) {
  return {time.ns * factor, time.lo_ns * factor, time.hi_ns * factor, time.extrapolated};
}

std::optional<ProductTime> in_tables(const OpTables* tables, const ProductPoint& point,
                                     const std::string& dtype) {
  const OpGrid* const grid = tables == nullptr ? nullptr : tables->find(point.op, dtype);
  if (grid == nullptr) return std::nullopt;
  return ProductTime{grid->at(point.sizes), point.op, grid, tables};
}

/// Attention of another share of the flops than its table's is taken to run at the same rate.
std::optional<ProductTime> shared(std::optional<ProductTime> found, double share) {
  if (found && share != 1) {
    found->time = times(found->time, share);
    found->time.extrapolated = true;
    found->factor *= share;
  }
  return found;
}

}  // namespace

ProductPoint product_point(const MatrixWork& w) {
  const auto of = static_cast<size_t>(w.of);
  const bool dw = w.of == Of::kDw;
  ProductPoint point;
  switch (w.kind) {
    case Kind::kNone:
      return point;
    case Kind::kGemm:
      point = {kGemms[of], {w.m, w.n, w.k}};
      break;
    case Kind::kExperts:
      if (w.experts == 1) return product_point(one_expert(w));
      point = {kGrouped[of], {w.experts, w.rows, w.n, w.k}};
      break;
    case Kind::kAttention:
      if (is_latent(w)) {
        return {w.backward ? measured::kLatentAttentionDx : measured::kLatentAttention,
                {w.batch, w.seq, w.heads}};
      }
      return {w.backward ? measured::kAttentionDx : measured::kAttention,
              {w.batch, w.seq, w.heads, w.kv_heads, w.head_dim}};
  }
  if (dw) point.sizes.push_back(w.grad_bytes);
  return point;
}

MatrixWork product_of(std::string_view op, std::span<const double> s) {
  for (const Of of : {Of::kResult, Of::kDx, Of::kDw}) {
    const auto at = static_cast<size_t>(of);
    if (op == kGemms[at]) {
      MatrixWork w = gemm_of(s[0], s[1], s[2], of);
      if (of == Of::kDw) w.grad_bytes = s[3];
      return w;
    }
    if (op == kGrouped[at]) {
      return {.kind = Kind::kExperts,
              .of = of,
              .n = s[2],
              .k = s[3],
              .experts = s[0],
              .rows = s[1],
              .grad_bytes = of == Of::kDw ? s[4] : 0};
    }
  }
  const bool latent = op == measured::kLatentAttention || op == measured::kLatentAttentionDx;
  if (!latent && op != measured::kAttention && op != measured::kAttentionDx) return {};
  return {.kind = Kind::kAttention,
          .batch = s[0],
          .seq = s[1],
          .heads = s[2],
          .kv_heads = latent ? s[2] : s[3],
          .head_dim = latent ? 192 : s[4],
          .value_dim = latent ? 128 : s[4],
          .backward = op == measured::kAttentionDx || op == measured::kLatentAttentionDx};
}

ProductTimes::ProductTimes(const Device& device)
    : step_ratio_(device.step_ratio), attention_backward_(device.attention_backward) {
  if (!device.op_times.empty()) alone_ = OpTables::open(device.op_times);
  if (!device.step_times.empty()) step_ = OpTables::open(device.step_times);
}

std::optional<ProductTime> ProductTimes::at(const MatrixWork& w, const std::string& dtype) const {
  // The tables' axes begin above 0 rows.
  if (w.kind == Kind::kNone || (w.kind == Kind::kExperts && w.rows == 0)) return std::nullopt;
  const ProductPoint point = product_point(w);
  const double share = w.kind == Kind::kAttention && !is_latent(w) ? w.share : 1;
  if (auto found = in_tables(step_.get(), point, dtype)) return shared(found, share);
  return shared(alone_at(w, dtype), share);
}

std::optional<ProductTime> ProductTimes::alone_at(const MatrixWork& w,
                                                  const std::string& dtype) const {
  const auto scaled = [](std::optional<ProductTime> found, double factor) {
    if (found) found->time = times(found->time, factor), found->factor *= factor;
    return found;
  };
  switch (w.kind) {
    case Kind::kNone:
      return std::nullopt;
    case Kind::kGemm: {
      auto found = in_tables(alone_.get(), product_point(w), dtype);
      if (!found) found = in_tables(alone_.get(), {measured::kGemm, {w.m, w.n, w.k}}, dtype);
      return scaled(found, step_ratio_);
    }
    case Kind::kExperts: {
      auto found = scaled(alone_at(one_expert(w), dtype), w.experts);
      if (found && w.experts > 1) found->time.extrapolated = true;
      return found;
    }
    case Kind::kAttention: {
      MatrixWork forward = w;
      forward.backward = false;
      auto found = in_tables(alone_.get(), product_point(forward), dtype);
      if (!found && is_latent(w)) {
        found = in_tables(alone_.get(),
                          {measured::kAttention, {w.batch, w.seq, w.heads, w.kv_heads, w.head_dim}},
                          dtype);
        found = shared(found, w.share);
      }
      return scaled(found, w.backward ? attention_backward_ : 1);
    }
  }
  return std::nullopt;
}

}  // namespace moe
