// gemm_many, in one of two variants. Products of bfloat16 and their epilogues are computed by
// cublasLt (lt.h). Products of float32 and products that cublasLt does not support are computed by
// cuBLAS, and their epilogues by this project's kernels.
//
// kBatch: one strided call, for equal sizes and operands at equal distances. Where that is not
// possible, and with gelu_at, kStreams is used: products with the same c run in sequence on one of
// four side streams, which begin after the earlier work of the caller's stream and are waited for
// by its later work, also in a recording. In both variants the products run one after the other on
// the caller's stream if there is only one, if any has k = 0, or if all have the same c.
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/products/lt.h"

namespace moe::kernels::cuda {
namespace {

// --- epilogues by this project's kernels

template <class T>
void fill(const GemmCall& p, Stream stream) {
  fill_bias(static_cast<T*>(p.sum()), p.bias, static_cast<const T*>(p.add), p.m, p.n, stream);
}

template <class T>
void end(const GemmCall& p, Stream stream) {
  auto* const c = static_cast<T*>(p.c);
  if (p.before_gelu != nullptr)
    gelu(c, static_cast<const T*>(p.before_gelu), nullptr, p.m, p.n, stream);
  if (p.gelu_at != nullptr)
    gelu_dx(c, c, static_cast<const T*>(p.gelu_at), nullptr, p.m, p.n, stream);
}

/// Writes bias and summand, if p has any, to p.sum(); the product is then added to them.
void begin(const Common& s, const GemmCall& p, Stream stream) {
  if (p.filled()) s.exact ? fill<float>(p, stream) : fill<Bf16>(p, stream);
}
/// Computes c from p.sum().
void end(const Common& s, const GemmCall& p, Stream stream) {
  s.exact ? end<float>(p, stream) : end<Bf16>(p, stream);
}
float beta_of(const Common& s, const GemmCall& p) {
  return p.filled() ? 1 : s.beta;
}

// --- one after the other

bool multiply_alone(cublasHandle_t handle, const Common& s, const GemmCall& p) {
  const float beta = beta_of(s, p);
  if (s.exact)
    return accepted(
        cublasSgemm_64(handle, s.op_b(), s.op_a(), p.n, p.m, p.k, &s.alpha,
                       static_cast<const float*>(p.b), s.ldb, static_cast<const float*>(p.a), s.lda,
                       &beta, static_cast<float*>(p.sum()), s.ldc),
        "gemm");
  return accepted(cublasGemmEx_64(handle, s.op_b(), s.op_a(), p.n, p.m, p.k, &s.alpha, p.b,
                                  s.type_ab(), s.ldb, p.a, s.type_ab(), s.lda, &beta, p.sum(),
                                  s.type_c(), s.ldc, s.compute(), CUBLAS_GEMM_DEFAULT),
                  "gemm");
}

void each(const Lane& lane, const Common& s, GemmCalls products) {
  for (const GemmCall& p : products) {
    if (!s.exact && multiply_by_lt(lane, s, p, {})) continue;
    begin(s, p, lane.stream);
    if (!multiply_alone(lane.handle, s, p)) return;
    end(s, p, lane.stream);
  }
}

/// Returns the chains: products with the same c, which are adjacent.
std::vector<GemmCalls> chains_of(GemmCalls products) {
  std::vector<GemmCalls> chains;
  for (size_t begin = 0, end = 0; begin < products.size(); begin = end) {
    while (end < products.size() && products[end].c == products[begin].c) ++end;
    chains.push_back(products.subspan(begin, end - begin));
  }
  return chains;
}

// --- one strided call

std::optional<int64_t> step(const void* from, const void* to, int64_t bytes) {
  const int64_t between = static_cast<const char*>(to) - static_cast<const char*>(from);
  if (between < 0 || between % bytes != 0) return std::nullopt;
  return between / bytes;
}

/// Returns the distances of operands if one strided call can compute all products, else nullopt.
std::optional<Batch> equally_apart(const Common& s, GemmCalls all) {
  const GemmCall &first = all[0], &second = all[1];
  Batch batch = {.count = static_cast<int64_t>(all.size())};
  struct Operand {
    int64_t& apart;
    int64_t bytes;
    const void* (*of)(const GemmCall&);
  };
  const Operand operands[] = {
      {batch.a, s.bytes_ab(), [](const GemmCall& p) { return p.a; }},
      {batch.b, s.bytes_ab(), [](const GemmCall& p) { return p.b; }},
      {batch.c, s.bytes_c(), [](const GemmCall& p) -> const void* { return p.c; }},
      {batch.add, s.bytes_c(), [](const GemmCall& p) { return p.add; }},
      {batch.aux, s.bytes_c(), [](const GemmCall& p) { return p.aux(); }},
      {batch.bias, 2, [](const GemmCall& p) { return p.rounded_bias; }},
  };
  for (const Operand& x : operands) {
    const auto apart = step(x.of(first), x.of(second), x.bytes);
    if (!apart) return std::nullopt;
    x.apart = *apart;
    for (size_t i = 2; i < all.size(); ++i)
      if (step(x.of(all[i - 1]), x.of(all[i]), x.bytes) != apart) return std::nullopt;
  }
  const auto as_large = [&](const GemmCall& p) {
    return p.m == first.m && p.n == first.n && p.k == first.k;
  };
  const int64_t size = (first.m - 1) * s.ldc + first.n;
  if (batch.c < size || (first.before_gelu != nullptr && batch.aux < size) ||
      !std::all_of(all.begin(), all.end(), as_large))
    return std::nullopt;
  return batch;
}

void batch(const Lane& lane, const Common& s, GemmCalls all, const Batch& apart) {
  const GemmCall& p = all[0];
  if (!s.exact && multiply_by_lt(lane, s, p, apart)) return;
  for (const GemmCall& product : all) begin(s, product, lane.stream);
  const float beta = beta_of(s, p);
  accepted(cublasGemmStridedBatchedEx_64(lane.handle, s.op_b(), s.op_a(), p.n, p.m, p.k, &s.alpha,
                                         p.b, s.type_ab(), s.ldb, apart.b, p.a, s.type_ab(), s.lda,
                                         apart.a, &beta, p.sum(), s.type_c(), s.ldc,
                                         p.before_gelu != nullptr ? apart.aux : apart.c,
                                         apart.count, s.compute(), CUBLAS_GEMM_DEFAULT),
           "gemm_many as a batch");
  for (const GemmCall& product : all) end(s, product, lane.stream);
}

// --- on several streams

/// Queues each chain on the side stream that has the fewest multiplications so far.
void share(const std::vector<GemmCalls>& chains, const std::vector<Lane>& sides, const Common& s) {
  std::vector<int64_t> load(sides.size());
  for (const GemmCalls chain : chains) {
    const auto least = std::min_element(load.begin(), load.end());
    each(sides[static_cast<size_t>(least - load.begin())], s, chain);
    for (const GemmCall& p : chain) *least += p.m * p.n * p.k;
  }
}

void side_by_side(StreamResources& resources, const Common& s, const std::vector<GemmCalls>& chains,
                  Stream stream) {
  if (!have_sides(resources, stream)) return;
  auto* const caller = static_cast<cudaStream_t>(stream);
  const std::span<SideStream> sides(resources.sides.data(), std::min(kSides, chains.size()));
  std::vector<Lane> lanes;
  for (SideStream& side : sides) {
    lanes.push_back({handle_of(side.handles, s.exact, side.stream), side.stream, &side.workspace,
                     kWorkspaceBytes / static_cast<int64_t>(kSides)});
    if (lanes.back().handle == nullptr) return;
  }
  if (!worked(cudaEventRecordWithFlags(resources.fork, caller, cudaEventRecordDefault),
              "gemm: fork to side streams"))
    return;
  for (const SideStream& side : sides)
    if (!worked(cudaStreamWaitEvent(side.stream, resources.fork, cudaEventWaitDefault),
                "gemm: fork to side streams"))
      return;
  share(chains, lanes, s);
  for (const SideStream& side : sides)
    if (worked(cudaEventRecordWithFlags(side.done, side.stream, cudaEventRecordDefault),
               "gemm: join side streams"))
      worked(cudaStreamWaitEvent(caller, side.done, cudaEventWaitDefault),
             "gemm: join side streams");
}

void run(GemmVariant variant, StreamResources& resources, const Common& s, GemmCalls all,
         Stream stream) {
  const Lane lane = {handle_of(resources.handles, s.exact, stream), stream, &resources.workspace,
                     kWorkspaceBytes};
  if (lane.handle == nullptr) return;
  const bool no_depth =
      std::any_of(all.begin(), all.end(), [](const GemmCall& p) { return p.k == 0; });
  if (all.size() < 2 || no_depth) return each(lane, s, all);
  // With GELU's slope, one call took 2.5 times as long as the streams on an H200 (cuBLAS 13.1).
  if (variant == GemmVariant::kBatch && all[0].gelu_at == nullptr)
    if (const auto apart = equally_apart(s, all)) return batch(lane, s, all, *apart);
  const std::vector<GemmCalls> chains = chains_of(all);
  if (chains.size() == 1) return each(lane, s, all);
  side_by_side(resources, s, chains, stream);
}

template <class T>
GemmCall gemm_call_of(const Product<T>& p, const void* a, const void* b, void* c) {
  return {p.m, p.n, p.k, a, b, c, p.then.bias, p.then.add, p.then.before_gelu, p.then.gelu_at};
}

}  // namespace

void gemm_many(GemmVariant variant, bool transpose_a, bool transpose_b, int64_t count,
               const Product<float>* products, float alpha, int64_t lda, int64_t ldb, float beta,
               int64_t ldc, Stream stream) {
  std::vector<GemmCall> all;
  for (const Product<float>* p = products; p != products + count; ++p)
    if (p->m > 0 && p->n > 0) all.push_back(gemm_call_of(*p, p->a, p->b, p->c));
  if (all.empty()) return;
  StreamResources* const resources = resources_of(stream);
  if (resources == nullptr) return;
  run(variant, *resources, {transpose_a, transpose_b, alpha, lda, ldb, beta, ldc, true, true}, all,
      stream);
}

void gemm_many_mixed(GemmVariant variant, bool transpose_a, bool transpose_b, int64_t count,
                     const Product<Bf16>* products, float alpha, int64_t lda, int64_t ldb,
                     float beta, int64_t ldc, Stream stream) {
  std::vector<GemmCall> all;
  Operands a(lda), b(ldb), bias(ldc);
  bool wide_c = false, has_bias = false;
  for (const Product<Bf16>* p = products; p != products + count; ++p) {
    if (p->m == 0 || p->n == 0) continue;
    a.add(p->a, transpose_a ? p->k : p->m, transpose_a ? p->m : p->k);
    b.add(p->b, transpose_b ? p->n : p->k, transpose_b ? p->k : p->n);
    wide_c = p->c.wide;
    has_bias = p->then.bias != nullptr;
    if (has_bias) bias.add(p->then.bias, 1, p->n);
    all.push_back(gemm_call_of(*p, nullptr, nullptr, p->c.data));
  }
  if (all.empty()) return;
  StreamResources* const resources = resources_of(stream);
  if (resources == nullptr) return;
  char* begin = nullptr;
  if (const int64_t bytes = a.bytes() + b.bytes() + bias.bytes(); bytes > 0) {
    begin = static_cast<char*>(bytes_of(resources->operands, bytes));
    if (begin == nullptr) return;
  }
  a.round(begin, stream);
  b.round(begin + a.bytes(), stream);
  bias.round(begin + a.bytes() + b.bytes(), stream);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].a = a.at(i);
    all[i].b = b.at(i);
    if (has_bias) all[i].rounded_bias = bias.at(i);
  }
  run(variant, *resources,
      {transpose_a, transpose_b, alpha, a.stride(), b.stride(), beta, ldc, false, wide_c}, all,
      stream);
}

}  // namespace moe::kernels::cuda
