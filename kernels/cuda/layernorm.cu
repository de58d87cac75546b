// LayerNorm, RMSNorm, and sums of columns (gradients of bias, gamma and beta). A row of a norm is
// read once: its threads keep it in registers between the sums and the result. A few lanes, a warp
// or a block take a row, depending on its length alone, as does the order of its sums. Sums of
// columns take two launches: first each block adds up some columns of a piece of the rows, then the
// sums of the pieces are added in order. The number of pieces depends on the shape alone, so that
// the bits of a sum are the same on every device.
#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/device_functions.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

constexpr float kEps = 1e-5f;

/// load_columns() of a pack of T; if kWhole, all packs are whole and lie at multiples of 16 bytes.
template <class T, bool kWhole, class U>
__device__ Numbers<kPack<T>> load_pack(const U* row, int64_t c, int64_t cols) {
  if constexpr (kWhole) {
    return load<kPack<T>>(row + c);
  } else {
    return load_columns<kPack<T>>(row, c, cols, 0);
  }
}

/// What a thread has of a row that kLanes threads of a block of kThreads share: every kLanes-th
/// pack. kHeld of the packs stay in registers; if kLonger, there may be more, which are read again.
/// Since all threads of a warp must take part in sums, those after the last row have a row without
/// columns.
template <class T, int kLanes, int kHeld, bool kLonger, bool kWhole>
struct RowPart {
  using Type = T;
  static constexpr int N = kPack<T>, kStep = kLanes * N, kRows = kThreads / kLanes;
  template <class Pack>
  struct Held {
    Pack at[kHeld];
  };

  __device__ RowPart(int64_t rows, int64_t cols)
      : number(static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / kLanes),
        end(number < rows ? cols : 0) {}
  __device__ int64_t column(int k) const {
    return k * kStep + static_cast<int>(threadIdx.x) % kLanes * N;
  }
  /// Whether this thread writes what there is once per row.
  __device__ bool first() const { return end > 0 && threadIdx.x % kLanes == 0; }
  /// Whether number i of the pack at column c < end exists.
  __device__ bool has(int64_t c, int i) const { return kWhole || c + i < end; }

  /// The pack at column c of a row; zeros after its end.
  template <class U>
  __device__ Numbers<N> load(const U* row, int64_t c) const {
    return c < end ? load_pack<T, kWhole>(row, c, end) : Numbers<N>{};
  }
  /// If is_stored(), the pack at column c of a row as it is in memory; zeros if `row` is null.
  __device__ uint4 stored(const T* row, int64_t c) const {
    return kWhole && row && c < end ? *reinterpret_cast<const uint4*>(row + c) : uint4{};
  }
  __device__ static constexpr bool is_stored(int k) { return kWhole && k < kHeld; }
  __device__ void store(T* row, int64_t c, const Numbers<N>& v) const {
    if (c >= end) return;
    kWhole ? cuda::store(row + c, v) : store_columns(row, c, end, v);
  }

  /// f(c) of the first packs, where f(c) is computed from the pack at column c.
  template <class F>
  __device__ auto hold(F f) const {
    Held<decltype(f(int64_t{}))> all;
    for (int k = 0; k < kHeld; ++k) all.at[k] = f(column(k));
    return all;
  }
  /// Calls use(c, f(c), k) for the packs k of this thread; f(c) of the first is `held`.
  template <class Pack, class F, class Use>
  __device__ void each(const Held<Pack>& held, F f, Use use) const {
    for (int k = 0; k < kHeld; ++k) use(column(k), held.at[k], k);
    if constexpr (kLonger)
      for (int64_t c = column(kHeld); c < end; c += kStep) use(c, f(c), kHeld);
  }
  /// The sum over the threads of the row, in every one of them. `shared` serves one sum alone.
  __device__ float sum(float v, float (&shared)[kWarps]) const {
    if constexpr (kLanes == kThreads) {
      return block_sum_once(v, shared);
    } else {
      return warp_sum(v, kLanes);
    }
  }

  int64_t number, end;
};

/// Calls run() with the RowPart for rows of `cols` numbers at these pointers, as a type_identity.
template <class T, class Run, class... P>
void with_rows(Run run, int64_t cols, const P*... pointers) {
  constexpr int64_t N = kPack<T>;
  const auto run_in = [&](auto n) {
    constexpr bool kWhole = n > 1;
    constexpr int kFew = kWhole ? 2 : 1, kMany = kWhole ? 4 : 1;
    if (cols <= 16 * N) return run(std::type_identity<RowPart<T, 8, kFew, !kWhole, kWhole>>());
    if (cols <= 128 * N)
      return run(std::type_identity<RowPart<T, kWarp, kMany, !kWhole, kWhole>>());
    run(std::type_identity<RowPart<T, kThreads, kFew, true, kWhole>>());
  };
  in_packs<T>(run_in, cols, pointers...);
}

/// LayerNorm, or RMSNorm if not kCentered. `share` is 1 / cols.
template <class Row, bool kCentered, class T = typename Row::Type>
__global__ void __launch_bounds__(kThreads)
    norm_kernel(T* y, float* mean, float* rstd, const T* x, const float* gamma, const float* beta,
                float eps, float share, int64_t rows, int64_t cols) {
  constexpr int N = Row::N;
  __shared__ float shared[2][kWarps];
  const Row row(rows, cols);
  const auto load = [&](int64_t c) { return row.load(x + row.number * cols, c); };
  const auto held = row.hold(load);
  float m = 0, squares = 0;
  if constexpr (kCentered) {
    float sum = 0;
    row.each(held, load, [&](int64_t, const auto& v, int) {
      for (int i = 0; i < N; ++i) sum += v.at[i];
    });
    m = row.sum(sum, shared[0]) * share;
  }
  row.each(held, load, [&](int64_t c, const auto& v, int) {
    if (c >= row.end) return;
    for (int i = 0; i < N; ++i) {
      const float d = row.has(c, i) ? v.at[i] - m : 0;
      squares += d * d;
    }
  });
  const float r = rsqrtf(row.sum(squares, shared[1]) * share + eps);
  row.each(held, load, [&](int64_t c, const auto& v, int) {
    const auto scale = row.load(gamma, c), shift = kCentered ? row.load(beta, c) : Numbers<N>{};
    row.store(y + row.number * cols, c, numbers<N>([&](int i) {
                const float scaled = (v.at[i] - m) * r * scale.at[i];
                return kCentered ? scaled + shift.at[i] : scaled;
              }));
  });
  if (!row.first()) return;
  if constexpr (kCentered) mean[row.number] = m;
  rstd[row.number] = r;
}

template <int N>
struct Slopes {
  Numbers<N> xhat, dxhat;
};

template <class Row, bool kCentered, class T = typename Row::Type>
__global__ void __launch_bounds__(kThreads, 2)
    norm_dx_kernel(T* dx, const T* dy, const T* x, const float* mean, const float* rstd,
                   const float* gamma, const T* acc, float share, int64_t rows, int64_t cols) {
  constexpr int N = Row::N;
  __shared__ float shared[2][kWarps];
  const Row row(rows, cols);
  const int64_t at = row.number * cols;
  const float m = kCentered && row.end > 0 ? mean[row.number] : 0;
  const float r = row.end > 0 ? rstd[row.number] : 0;
  const auto load = [&](int64_t c) {
    const auto v = row.load(x + at, c), grad = row.load(dy + at, c), scale = row.load(gamma, c);
    return Slopes<N>{numbers<N>([&](int i) { return (v.at[i] - m) * r; }),
                     // Never fused into a sum, so that all forms of a row give the same bits.
                     numbers<N>([&](int i) { return __fmul_rn(grad.at[i], scale.at[i]); })};
  };
  const auto held = row.hold(load);
  float sum = 0, sum_xhat = 0;
  row.each(held, load, [&](int64_t, const auto& s, int) {
    for (int i = 0; i < N; ++i) {
      sum += s.dxhat.at[i];
      sum_xhat = fmaf(s.dxhat.at[i], s.xhat.at[i], sum_xhat);
    }
  });
  // acc may be dx: what is read of it before anything is written arrives together.
  const auto early = row.hold([&](int64_t c) { return row.stored(acc ? acc + at : nullptr, c); });
  const float mean_dxhat = kCentered ? row.sum(sum, shared[0]) * share : 0;
  const float mean_xhat = row.sum(sum_xhat, shared[1]) * share;
  row.each(held, load, [&](int64_t c, const auto& s, int k) {
    Numbers<N> before{};
    if (Row::is_stored(k)) {
      before = cuda::load<N>(reinterpret_cast<const T*>(&early.at[k]));
    } else if (acc) {
      before = row.load(acc + at, c);
    }
    row.store(dx + at, c, numbers<N>([&](int i) {
                const float centered = s.dxhat.at[i] - mean_dxhat;
                return fmaf(r, fmaf(-s.xhat.at[i], mean_xhat, centered), before.at[i]);
              }));
  });
}

constexpr int kSumThreads = 512;
/// Most blocks that sum columns: two for each multiprocessor of an H100, which run side by side.
constexpr int64_t kSumBlocks = 264;

/// How blocks share the sums of columns. A block takes `across` packs of columns in a piece of
/// `piece` rows, of which it reads kSumThreads / across at the same time.
struct ColumnSums {
  int across = 1;
  unsigned groups;  // of columns; blocks that are next to each other take those of one piece
  int64_t piece, pieces;

  ColumnSums(int64_t rows, int64_t packs) {
    while (across < kWarp && across < packs) across *= 2;
    groups = static_cast<unsigned>(blocks_of(packs, across));
    const int64_t lanes = kSumThreads / across;
    const int64_t most = std::max<int64_t>(kSumBlocks / std::max(groups, 1u), 1);
    piece = std::max(blocks_of(rows, lanes * most), int64_t{1}) * lanes;
    pieces = blocks_of(rows, piece);
  }
};

/// parts[s][piece][c] = the sum over a piece: of dy * xhat if kNorm, then of dy if kPlain.
template <class T, bool kNorm, bool kPlain, bool kWhole>
__global__ void __launch_bounds__(kSumThreads, 2)
    column_sums_kernel(float* parts, const T* dy, const T* x, const float* mean, const float* rstd,
                       int64_t rows, int64_t cols, ColumnSums sums) {
  constexpr int N = kPack<T>, kAtOnce = !kWhole ? 1 : kNorm ? 2 : 4;
  __shared__ float shared[kSumThreads * N];
  const auto thread = static_cast<int>(threadIdx.x);
  const int lanes = kSumThreads / sums.across, width = sums.across * N;
  const int64_t group = static_cast<int64_t>(blockIdx.x % sums.groups) * width;
  const int64_t number = blockIdx.x / sums.groups;
  const int64_t c = group + thread % sums.across * N;
  const int64_t last = (number + 1) * sums.piece, end = c >= cols ? 0 : last < rows ? last : rows;
  Numbers<N> of_norm{}, plain{};
  struct Loaded {
    Numbers<N> grad, v;
    float mean, rstd;
  };
  const auto add = [&](auto count, int64_t r) {
    constexpr int kCount = decltype(count)::value;
    Loaded all[kCount];
    for (int k = 0; k < kCount; ++k, r += lanes) {
      all[k].grad = load_pack<T, kWhole>(dy + r * cols, c, cols);
      if constexpr (kNorm) all[k].v = load_pack<T, kWhole>(x + r * cols, c, cols);
      if constexpr (kNorm) all[k].rstd = rstd[r];
      if constexpr (kNorm && kPlain) all[k].mean = mean[r];
    }
    for (const Loaded& row : all)
      for (int i = 0; i < N; ++i) {
        if constexpr (kPlain) plain.at[i] += row.grad.at[i];
        if constexpr (kNorm) {
          const float d = kPlain ? row.v.at[i] - row.mean : row.v.at[i];
          of_norm.at[i] += row.grad.at[i] * (d * row.rstd);
        }
      }
  };
  int64_t r = number * sums.piece + thread / sums.across;
  for (; r + (kAtOnce - 1) * lanes < end; r += kAtOnce * lanes)
    add(std::integral_constant<int, kAtOnce>(), r);
  for (; r < end; r += lanes) add(std::integral_constant<int, 1>(), r);

  // One thread per column adds what the block's threads have, in the order of their first rows.
  const auto write = [&](const Numbers<N>& sum) {
    for (int i = 0; i < N; ++i) shared[thread * N + i] = sum.at[i];
    __syncthreads();
    float all = 0;
    if (thread < width)
      for (int l = 0; l < lanes; ++l) all += shared[l * width + thread];
    if (thread < width && group + thread < cols) parts[number * cols + group + thread] = all;
    __syncthreads();
  };
  if constexpr (kNorm) write(of_norm);
  parts += kNorm ? sums.pieces * cols : 0;
  if constexpr (kPlain) write(plain);
}

/// out[c] = acc[c] + the sum of parts[piece][c] over the pieces; second_out the same of the sums
/// that follow. A block sums kWarp columns.
__global__ void total_columns_kernel(float* out, const float* acc, float* second_out,
                                     const float* second_acc, const float* parts, int64_t pieces,
                                     int64_t cols, unsigned groups) {
  __shared__ float shared[kWarps][kWarp];
  if (blockIdx.x >= groups) {
    out = second_out;
    acc = second_acc;
    parts += pieces * cols;
  }
  const int64_t c = static_cast<int64_t>(blockIdx.x % groups) * kWarp + lane();
  float sum = 0;
  if (c < cols)
    for (int64_t piece = warp(); piece < pieces; piece += kWarps) sum += parts[piece * cols + c];
  shared[warp()][lane()] = sum;
  __syncthreads();
  if (warp() > 0 || c >= cols) return;
  for (int w = 1; w < kWarps; ++w) sum += shared[w][lane()];
  out[c] = (acc ? acc[c] : 0.0f) + sum;
}

/// dgamma if kNorm, and dbeta if kPlain; mean is read if both.
template <class T, bool kNorm, bool kPlain>
void column_sums(float* dgamma, float* dbeta, const T* dy, const T* x, const float* mean,
                 const float* rstd, const float* acc_gamma, const float* acc_beta, int64_t rows,
                 int64_t cols, Stream stream) {
  const ColumnSums sums(rows, blocks_of(cols, kPack<T>));
  const int64_t count = int64_t{kNorm} + int64_t{kPlain}, groups = blocks_of(cols, kWarp);
  const int64_t bytes = count * sums.pieces * cols * static_cast<int64_t>(sizeof(float));
  auto* const parts = static_cast<float*>(work_area(stream, bytes));
  if (parts == nullptr) return;
  const auto run = [&](auto n) {
    launch(column_sums_kernel<T, kNorm, kPlain, (n > 1)>, sums.groups * sums.pieces, kSumThreads,
           stream, parts, dy, x, mean, rstd, rows, cols, sums);
  };
  in_packs<T>(run, cols, dy, x);
  launch(total_columns_kernel, count * groups, kThreads, stream, kNorm ? dgamma : dbeta,
         kNorm ? acc_gamma : acc_beta, dbeta, acc_beta, parts, sums.pieces, cols,
         static_cast<unsigned>(groups));
}

template <class T, bool kCentered>
void norm(T* y, float* mean, float* rstd, const T* x, const float* gamma, const float* beta,
          float eps, int64_t rows, int64_t cols, Stream stream) {
  const auto run = [&](auto row) {
    using Row = typename decltype(row)::type;
    launch(norm_kernel<Row, kCentered>, blocks_of(rows, Row::kRows), kThreads, stream, y, mean,
           rstd, x, gamma, beta, eps, 1 / static_cast<float>(cols), rows, cols);
  };
  with_rows<T>(run, cols, y, x, gamma, beta);
}
template <class T, bool kCentered>
void norm_dx(T* dx, const T* dy, const T* x, const float* mean, const float* rstd,
             const float* gamma, const T* acc, int64_t rows, int64_t cols, Stream stream) {
  const auto run = [&](auto row) {
    using Row = typename decltype(row)::type;
    launch(norm_dx_kernel<Row, kCentered>, blocks_of(rows, Row::kRows), kThreads, stream, dx, dy, x,
           mean, rstd, gamma, acc, 1 / static_cast<float>(cols), rows, cols);
  };
  with_rows<T>(run, cols, dx, dy, x, gamma, acc);
}
}  // namespace

template <class T>
void layernorm_kernels(KernelTable<T>& table) {
  table.bias_grad = [](float* db, const T* dy, const float* acc, int64_t rows, int64_t cols,
                       Stream stream) {
    column_sums<T, false, true>(nullptr, db, dy, nullptr, nullptr, nullptr, nullptr, acc, rows,
                                cols, stream);
  };
  table.layernorm = [](T* y, float* mean, float* rstd, const T* x, const float* gamma,
                       const float* beta, int64_t rows, int64_t cols, Stream stream) {
    norm<T, true>(y, mean, rstd, x, gamma, beta, kEps, rows, cols, stream);
  };
  table.layernorm_dx = norm_dx<T, true>;
  table.layernorm_dw = column_sums<T, true, true>;
  table.rmsnorm = [](T* y, float* rstd, const T* x, const float* gamma, float eps, int64_t rows,
                     int64_t cols, Stream stream) {
    norm<T, false>(y, nullptr, rstd, x, gamma, nullptr, eps, rows, cols, stream);
  };
  table.rmsnorm_dx = [](T* dx, const T* dy, const T* x, const float* rstd, const float* gamma,
                        const T* acc, int64_t rows, int64_t cols, Stream stream) {
    norm_dx<T, false>(dx, dy, x, nullptr, rstd, gamma, acc, rows, cols, stream);
  };
  table.rmsnorm_dw = [](float* dgamma, const T* dy, const T* x, const float* rstd, const float* acc,
                        int64_t rows, int64_t cols, Stream stream) {
    column_sums<T, true, false>(dgamma, nullptr, dy, x, nullptr, rstd, acc, nullptr, rows, cols,
                                stream);
  };
}
template void layernorm_kernels(KernelTable<float>&);
template void layernorm_kernels(KernelTable<Bf16>&);

}  // namespace moe::kernels::cuda
