// gemm_many: the products of experts by cuBLAS, in one of four ways. Row-major as in gemm.cpp: the
// library sees the transposes, so its first operand is b.
//
// kBatch: one strided call, where sizes are equal and operands equally far apart; kGrouped: one
// call a round for any sizes, round i with the i-th product of each c. Where one of the two does
// not apply, kStreams: each c's products on one of four side streams, which begin after what the
// stream was given before and are waited for by what comes after, also in a recording. kEach: one
// after the other, and so run a single product and products of which one has no depth.
#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cuda/blas.h"
#include "kernels/cuda/cast.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/pointers.h"

namespace moe::kernels::cuda {
namespace {

/// What the products of a call have in common. exact: of float32 alone; otherwise operands are
/// bfloat16, and c is float32 where wide_c says so.
struct Common {
  bool transpose_a, transpose_b;
  float alpha;
  int64_t lda, ldb;
  float beta;
  int64_t ldc;
  bool exact, wide_c;

  cublasOperation_t op_a() const { return operation(transpose_a); }
  cublasOperation_t op_b() const { return operation(transpose_b); }
  cudaDataType_t type_ab() const { return exact ? CUDA_R_32F : CUDA_R_16BF; }
  cudaDataType_t type_c() const { return exact || wide_c ? CUDA_R_32F : CUDA_R_16BF; }
  cublasComputeType_t compute() const {
    return exact ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
  }
  int64_t bytes_ab() const { return exact ? 4 : 2; }
  int64_t bytes_c() const { return exact || wide_c ? 4 : 2; }
};

struct One {
  int64_t m, n, k;
  const void *a, *b;
  void* c;
};
using Ones = std::span<const One>;

bool multiply(cublasHandle_t handle, const Common& s, const One& p) {
  if (s.exact)
    return accepted(
        cublasSgemm_64(handle, s.op_b(), s.op_a(), p.n, p.m, p.k, &s.alpha,
                       static_cast<const float*>(p.b), s.ldb, static_cast<const float*>(p.a), s.lda,
                       &s.beta, static_cast<float*>(p.c), s.ldc),
        "gemm_many");
  return accepted(cublasGemmEx_64(handle, s.op_b(), s.op_a(), p.n, p.m, p.k, &s.alpha, p.b,
                                  s.type_ab(), s.ldb, p.a, s.type_ab(), s.lda, &s.beta, p.c,
                                  s.type_c(), s.ldc, s.compute(), CUBLAS_GEMM_DEFAULT),
                  "gemm_many");
}

void each(cublasHandle_t handle, const Common& s, Ones products) {
  for (const One& p : products)
    if (!multiply(handle, s, p)) return;
}

/// Products with the same c, which come one after the other.
std::vector<Ones> chains_of(Ones products) {
  std::vector<Ones> chains;
  for (size_t begin = 0, end = 0; begin < products.size(); begin = end) {
    while (end < products.size() && products[end].c == products[begin].c) ++end;
    chains.push_back(products.subspan(begin, end - begin));
  }
  return chains;
}

// --- one strided call

/// How many numbers lie from each product's operand to the next one's.
struct Apart {
  int64_t a, b, c;
};

std::optional<int64_t> step(const void* from, const void* to, int64_t bytes) {
  const int64_t between = static_cast<const char*>(to) - static_cast<const char*>(from);
  if (between < 0 || between % bytes != 0) return std::nullopt;
  return between / bytes;
}

/// Of products that one strided call can make; nothing where it cannot.
std::optional<Apart> equally_apart(const Common& s, Ones all) {
  const One& first = all[0];
  const auto a = step(first.a, all[1].a, s.bytes_ab()), b = step(first.b, all[1].b, s.bytes_ab());
  const auto c = step(first.c, all[1].c, s.bytes_c());
  if (!a || !b || !c || *c < (first.m - 1) * s.ldc + first.n) return std::nullopt;
  for (size_t i = 1; i < all.size(); ++i) {
    const One &p = all[i], &before = all[i - 1];
    if (p.m != first.m || p.n != first.n || p.k != first.k ||
        step(before.a, p.a, s.bytes_ab()) != a || step(before.b, p.b, s.bytes_ab()) != b ||
        step(before.c, p.c, s.bytes_c()) != c)
      return std::nullopt;
  }
  return Apart{*a, *b, *c};
}

void batch(cublasHandle_t handle, const Common& s, Ones all, const Apart& apart) {
  const One& p = all[0];
  accepted(cublasGemmStridedBatchedEx_64(
               handle, s.op_b(), s.op_a(), p.n, p.m, p.k, &s.alpha, p.b, s.type_ab(), s.ldb,
               apart.b, p.a, s.type_ab(), s.lda, apart.a, &s.beta, p.c, s.type_c(), s.ldc, apart.c,
               static_cast<int64_t>(all.size()), s.compute(), CUBLAS_GEMM_DEFAULT),
           "gemm_many as a batch");
}

// --- one call for groups of equal sizes

/// Sizes as the library's arrays have them, by group; and pointers by product.
struct Groups {
  std::vector<int64_t> m, n, k, size;
  std::vector<const void*> a, b, c;

  void add(const One& p) {
    if (m.empty() || m.back() != p.m || n.back() != p.n || k.back() != p.k) {
      m.push_back(p.m);
      n.push_back(p.n);
      k.push_back(p.k);
      size.push_back(0);
    }
    ++size.back();
    a.push_back(p.a);
    b.push_back(p.b);
    c.push_back(p.c);
  }
};

int64_t table_bytes(size_t products) {
  return static_cast<int64_t>(3 * products * sizeof(void*));
}

/// The library's groups of bfloat16 write bfloat16, and want what vectors of 16 bytes can touch.
bool takes_groups(const Common& s, Ones all) {
  if (s.exact) return true;
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return !s.wide_c && s.lda % 8 == 0 && s.ldb % 8 == 0 && s.ldc % 8 == 0 &&
         std::all_of(all.begin(), all.end(),
                     [&](const One& p) { return aligned(p.a) && aligned(p.b) && aligned(p.c); });
}

void group(cublasHandle_t handle, const Common& s, const Groups& g, const void** a, const void** b,
           void** c) {
  const size_t count = g.m.size();
  const std::vector<cublasOperation_t> op_a(count, s.op_a()), op_b(count, s.op_b());
  const std::vector<float> alpha(count, s.alpha), beta(count, s.beta);
  const std::vector<int64_t> lda(count, s.lda), ldb(count, s.ldb), ldc(count, s.ldc);
  accepted(cublasGemmGroupedBatchedEx_64(
               handle, op_b.data(), op_a.data(), g.n.data(), g.m.data(), g.k.data(), alpha.data(),
               b, s.type_ab(), ldb.data(), a, s.type_ab(), lda.data(), beta.data(), c, s.type_c(),
               ldc.data(), static_cast<int64_t>(count), g.size.data(), s.compute()),
           "gemm_many in groups");
}

/// table: room on the device for table_bytes, this stream's.
void grouped(cublasHandle_t handle, const Common& s, Ones all, void* table, Stream stream) {
  std::vector<Groups> rounds;
  for (const Ones chain : chains_of(all)) {
    if (chain.size() > rounds.size()) rounds.resize(chain.size());
    for (size_t i = 0; i < chain.size(); ++i) rounds[i].add(chain[i]);
  }
  std::vector<const void*> pointers;
  for (const Groups& g : rounds)
    for (const auto* const some : {&g.a, &g.b, &g.c})
      pointers.insert(pointers.end(), some->begin(), some->end());
  auto* at = static_cast<const void**>(table);
  store_pointers(at, pointers, stream);
  for (const Groups& g : rounds) {
    const size_t n = g.a.size();
    group(handle, s, g, at, at + n, const_cast<void**>(at + 2 * n));
    at += 3 * n;
  }
}

// --- side by side

/// Each chain to the side that has least to do so far.
void share(const std::vector<Ones>& chains, const std::vector<cublasHandle_t>& sides,
           const Common& s) {
  std::vector<int64_t> load(sides.size());
  for (const Ones chain : chains) {
    const auto least = std::min_element(load.begin(), load.end());
    each(sides[static_cast<size_t>(least - load.begin())], s, chain);
    for (const One& p : chain) *least += p.m * p.n * p.k;
  }
}

void side_by_side(Kept& kept, const Common& s, const std::vector<Ones>& chains, Stream stream) {
  if (!have_sides(kept, stream)) return;
  auto* const caller = static_cast<cudaStream_t>(stream);
  const std::span<Side> sides(kept.sides.data(), std::min(kSides, chains.size()));
  std::vector<cublasHandle_t> handles;
  for (Side& side : sides) {
    handles.push_back(handle_of(side.handles, s.exact, side.stream));
    if (handles.back() == nullptr) return;
  }
  if (!worked(cudaEventRecordWithFlags(kept.fork, caller, cudaEventRecordDefault), "gemm: fork"))
    return;
  for (const Side& side : sides)
    if (!worked(cudaStreamWaitEvent(side.stream, kept.fork, cudaEventWaitDefault), "gemm: fork"))
      return;
  share(chains, handles, s);
  for (const Side& side : sides)
    if (worked(cudaEventRecordWithFlags(side.done, side.stream, cudaEventRecordDefault),
               "gemm: join"))
      worked(cudaStreamWaitEvent(caller, side.done, cudaEventWaitDefault), "gemm: join");
}

// --- operands of either type

/// One side's operands in bfloat16: as they come, or rounded into room. One that comes again right
/// after itself is rounded once, and those that lie one behind the other in one go.
class Operands {
 public:
  /// ld: numbers from row to row, of all as they come.
  explicit Operands(int64_t ld) : ld_(ld) {}
  /// Requires: all of one type.
  void add(EitherIn x, int64_t rows, int64_t cols) {
    wide_ = x.wide;
    const bool again = !all_.empty() && all_.back().from == x.data && all_.back().rows == rows &&
                       all_.back().cols == cols;
    if (!again) {
      all_.push_back({x.data, rows, cols, rows_});
      rows_ += rows;
      widest_ = std::max(widest_, cols);
    }
    place_.push_back(all_.size() - 1);
  }
  /// Numbers from row to row, of all as they are multiplied: at 16 bytes where they are rounded.
  int64_t stride() const { return wide_ ? Rounded(rows_, widest_).stride : ld_; }
  /// Of room, a multiple of 16.
  int64_t bytes() const { return wide_ ? 2 * rows_ * stride() : 0; }
  void round(void* to, Stream stream) {
    to_ = static_cast<uint16_t*>(to);
    for (size_t begin = 0, end = 1; wide_ && begin < all_.size(); begin = end++) {
      const Operand& first = all_[begin];
      const auto* const from = static_cast<const float*>(first.from);
      int64_t rows = first.rows;
      for (;
           end < all_.size() && all_[end].cols == first.cols && all_[end].from == from + rows * ld_;
           ++end)
        rows += all_[end].rows;
      cast_to_bf16(to_ + first.before * stride(), stride(), from, ld_, rows, first.cols, stream);
    }
  }
  /// Of the i-th that was added. Requires: they are rounded.
  const void* at(size_t i) const {
    const Operand& x = all_[place_[i]];
    return wide_ ? to_ + x.before * stride() : x.from;
  }

 private:
  struct Operand {
    const void* from;
    int64_t rows, cols, before;  // rows of those before it
  };
  const int64_t ld_;
  bool wide_ = false;
  std::vector<Operand> all_;
  std::vector<size_t> place_;
  int64_t rows_ = 0, widest_ = 1;
  uint16_t* to_ = nullptr;
};

/// table: as grouped() wants it; not looked at otherwise.
void run(ProductsWay way, Kept& kept, const Common& s, Ones all, void* table, Stream stream) {
  const cublasHandle_t handle = handle_of(kept.handles, s.exact, stream);
  if (handle == nullptr) return;
  const bool no_depth = std::any_of(all.begin(), all.end(), [](const One& p) { return p.k == 0; });
  if (way == ProductsWay::kEach || all.size() < 2 || no_depth) return each(handle, s, all);
  if (way == ProductsWay::kBatch)
    if (const auto apart = equally_apart(s, all)) return batch(handle, s, all, *apart);
  if (way == ProductsWay::kGrouped && takes_groups(s, all))
    return grouped(handle, s, all, table, stream);
  const std::vector<Ones> chains = chains_of(all);
  if (chains.size() == 1) return each(handle, s, all);
  side_by_side(kept, s, chains, stream);
}

}  // namespace

void gemm_many(ProductsWay way, bool transpose_a, bool transpose_b, int64_t count,
               const Product<float>* products, float alpha, int64_t lda, int64_t ldb, float beta,
               int64_t ldc, Stream stream) {
  std::vector<One> all;
  for (const Product<float>* p = products; p != products + count; ++p)
    if (p->m > 0 && p->n > 0) all.push_back({p->m, p->n, p->k, p->a, p->b, p->c});
  if (all.empty()) return;
  Kept* const kept = kept_of(stream);
  if (kept == nullptr) return;
  void* table = nullptr;
  if (way == ProductsWay::kGrouped) {
    table = room(*kept, table_bytes(all.size()));
    if (table == nullptr) return;
  }
  run(way, *kept, {transpose_a, transpose_b, alpha, lda, ldb, beta, ldc, true, true}, all, table,
      stream);
}

void gemm_many_mixed(ProductsWay way, bool transpose_a, bool transpose_b, int64_t count,
                     const Product<Bf16>* products, float alpha, int64_t lda, int64_t ldb,
                     float beta, int64_t ldc, Stream stream) {
  std::vector<One> all;
  Operands a(lda), b(ldb);
  bool wide_c = false;
  for (const Product<Bf16>* p = products; p != products + count; ++p) {
    if (p->m == 0 || p->n == 0) continue;
    a.add(p->a, transpose_a ? p->k : p->m, transpose_a ? p->m : p->k);
    b.add(p->b, transpose_b ? p->n : p->k, transpose_b ? p->k : p->n);
    wide_c = p->c.wide;
    all.push_back({p->m, p->n, p->k, nullptr, nullptr, p->c.data});
  }
  if (all.empty()) return;
  Kept* const kept = kept_of(stream);
  if (kept == nullptr) return;
  auto* const begin =
      static_cast<char*>(room(*kept, a.bytes() + b.bytes() + table_bytes(all.size())));
  if (begin == nullptr) return;
  a.round(begin, stream);
  b.round(begin + a.bytes(), stream);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].a = a.at(i);
    all[i].b = b.at(i);
  }
  run(way, *kept,
      {transpose_a, transpose_b, alpha, a.stride(), b.stride(), beta, ldc, false, wide_c}, all,
      begin + a.bytes() + b.bytes(), stream);
}

}  // namespace moe::kernels::cuda
