// Fused causal attention, computed per head and per strip of queries, a QueryBlock
// (FlashAttention's recomputation without its online softmax, since the scores of a strip against
// all keys fit into the second-level cache). Scores are stored transposed, as [key][query of the
// strip]. A vector then runs over queries, so maxima and sums need no operations across SIMD lanes,
// and in all five products the scalar operand is read from consecutive addresses or at constant
// strides. Scores are exponents of 2: log2(e) is contained in the scale of q. Tiles that are wholly
// above the diagonal or before the window are skipped; in a tile on the border of either, scores
// beyond it are masked.
#include "kernels/cpu/fast.h"
#include "kernels/cpu/fast_tile.h"

namespace moe::kernels::MOE_ISA {
namespace {

// For functions whose loop keeps its values in registers; inlined together, they would spill.
#define MOE_NOINLINE __attribute__((noinline))

constexpr int kTileRows = kLanes == 16 ? 8 : 4;
constexpr int64_t kQueryBlock = kTileCols;  // queries per strip: two vectors
constexpr float kLn2 = 0.69314718f, kLog2E = 1.44269504f;
// If the rows of k and v of a sequence cover at most this many floats, tiles may read them in place
// (Layout::in_place).
constexpr int64_t kInPlaceFloats = 128 * 1024;

int64_t round_up(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}
int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/// Rows of floats; row r begins at data + r * ld.
template <class T>
struct Rows {
  T* data;
  int64_t ld;
  T* row(int64_t r) const { return data + r * ld; }
};
using In = Rows<const float>;
using Out = Rows<float>;

/// Sizes of one call. The work area contains four arrays for the keys of a head, two for the scores
/// of a strip, and four for the rows of a strip.
struct Layout {
  explicit Layout(const AttentionShape& s)
      : seq(s.seq),
        first(s.first),
        keys(s.keys()),
        window(s.window > 0 ? smaller(s.window, s.seq) : s.seq),
        dim(s.head_dim),
        value_dim(s.value_dim),
        ctx_pitch(s.heads * s.value_dim),
        largest_pitch(s.k_pitch > s.v_pitch ? s.k_pitch : s.v_pitch),
        dim_padded(round_up(s.head_dim, kTileCols)),
        value_padded(round_up(s.value_dim, kTileCols)),
        keys_padded(round_up(s.keys(), kQueryBlock)),
        scale(s.scale != 0 ? static_cast<float>(s.scale)
                           : 1.0f / __builtin_sqrtf(static_cast<float>(s.head_dim))) {}

  bool whole_tiles() const {
    return dim == dim_padded && value_dim == value_padded && keys == keys_padded;
  }
  /// Whether tiles may read and write k, v and their gradients in the caller's arrays; otherwise
  /// padded copies in the work area are used.
  bool in_place() const { return whole_tiles() && keys * largest_pitch <= kInPlaceFloats; }
  int64_t both_padded() const { return dim_padded + value_padded; }
  int64_t score_floats() const { return keys_padded * kQueryBlock; }
  int64_t work_bytes() const {
    return static_cast<int64_t>(sizeof(float)) *
           (kAlign + 2 * (keys_padded + kQueryBlock) * both_padded() + 2 * score_floats());
  }

  static constexpr int64_t kAlign = 16;  // a cache line in floats
  int64_t seq, first, keys, window, dim, value_dim, ctx_pitch, largest_pitch;
  int64_t dim_padded, value_padded, keys_padded;
  float scale;
};

/// The arrays of the work area, each aligned to a cache line.
struct Work {
  Work(void* work, const Layout& at) {
    const auto address = reinterpret_cast<uintptr_t>(work);
    auto* next = reinterpret_cast<float*>((address + 63) & ~uintptr_t{63});
    const auto take = [&](int64_t floats) {
      float* array = next;
      next += floats;
      return array;
    };
    for (const bool gradients : {false, true}) {
      (gradients ? dk : k) = take(at.keys_padded * at.dim_padded);
      (gradients ? dv : v) = take(at.keys_padded * at.value_padded);
    }
    for (float** array : {&prob, &dprob}) *array = take(at.score_floats());
    for (float** array : {&q, &q_t}) *array = take(kQueryBlock * at.dim_padded);
    for (float** array : {&dctx, &dctx_t}) *array = take(kQueryBlock * at.value_padded);
  }
  float *k, *v, *dk, *dv;  // [keys_padded, dim_padded or value_padded]
  float *prob, *dprob;     // [keys_padded, kQueryBlock]
  float *q, *dctx;         // [kQueryBlock, dim_padded or value_padded]
  float *q_t, *dctx_t;     // [dim_padded or value_padded, kQueryBlock]
};

/// Copies `rows` rows of `cols` columns to `to`, padded with zeros to whole tiles; returns them.
In packed(float* to, In from, int64_t rows, int64_t rows_padded, int64_t cols) {
  const int64_t cols_padded = round_up(cols, kTileCols);
  for (int64_t r = 0; r < rows_padded; ++r)
    for (int64_t c = 0; c < cols_padded; c += kLanes) {
      const int64_t left = r < rows ? cols - c : 0;
      const float* p = from.row(r) + c;
      store(to + r * cols_padded + c, left >= kLanes ? load(p)
                                      : left > 0     ? load(p, First{left})
                                                     : Vec{});
    }
  return {to, cols_padded};
}

// If a strip has fewer than kQueryBlock queries, its last query is repeated in the SIMD lanes that
// are left; results of these SIMD lanes are not stored.

/// to [cols, kQueryBlock] = transpose of `rows` rows, multiplied by `factor`.
MOE_NOINLINE void transpose_block(float* to, In from, int64_t rows, int64_t cols, float factor) {
  for (int64_t first = 0; first < kQueryBlock; first += kLanes) {
    const float* row[kLanes];
    for (int i = 0; i < kLanes; ++i) row[i] = from.row(smaller(first + i, rows - 1));
    each_vec(cols, [&](int64_t c, auto lanes) {
      Vec block[kLanes];
      MOE_UNROLL for (int i = 0; i < kLanes; ++i) block[i] = factor * load(row[i] + c, lanes);
      transpose(block);
      float* column = to + c * kQueryBlock + first;
      MOE_UNROLL for (int i = 0; i < kLanes; ++i) store(column + i * kQueryBlock, block[i]);
    });
  }
}

/// One number per query of the strip.
struct PerQuery {
  Vec half[2];
};

/// A strip: the queries [begin, end) of a sequence. Query i attends to the keys (i - window, i].
/// The strip's products begin with first_key, the first row of a tile of keys.
struct QueryBlock {
  QueryBlock(int64_t begin, const Layout& at)
      : begin(begin),
        end(smaller(begin + kQueryBlock, at.seq)),
        key_end(smaller(end, at.keys)),
        row(begin - at.first),
        window(at.window) {
    first_key = key_from(0) / kTileRows * kTileRows;
  }
  int64_t rows() const { return end - begin; }
  /// The first key to which the strip's i-th query attends.
  int64_t key_from(int64_t i) const {
    const int64_t key = begin + i - window + 1;
    return key > 0 ? key : 0;
  }
  /// The first of the strip's queries that attends to no key before `key`, as none after it does.
  int64_t rows_until(int64_t key) const { return smaller(rows(), key - 1 + window - begin); }
  /// The first key to which only queries of the second half attend.
  int64_t half_from() const { return smaller(begin + kLanes, key_end); }
  /// The end of the tiles of keys that have both halves of the queries.
  int64_t both_until() const { return smaller(round_up(half_from(), kTileRows), key_end); }
  int64_t begin, end;
  int64_t key_end;  // of the keys that the strip attends to
  int64_t row;      // of the first query in q, ctx and lse
  int64_t window, first_key;
};

/// Calls f(key, tile, first) for each tile of kTileRows keys; `tile` is the product of the keys
/// with the strip's queries, over `cols` columns. `first` is 0 if the tile has both halves of the
/// queries, and 1 (from half_from() on) if it has only the second half.
template <class F>
MOE_INLINE void each_score_tile(const QueryBlock& block, In keys, const float* queries_t,
                                int64_t cols, F f) {
  int64_t j = block.first_key;
  for (; j < block.half_from(); j += kTileRows)
    f(j, multiply<kTileRows, false>(cols, keys.row(j), keys.ld, queries_t, kQueryBlock), 0);
  for (; j < block.key_end; j += kTileRows)
    f(j, multiply<kTileRows, false, 1>(cols, keys.row(j), keys.ld, queries_t + kLanes, kQueryBlock),
      1);
}

/// Returns `score`, but -infinity for queries before `key`, which counts from the strip's begin.
MOE_INLINE Vec mask_above(Vec score, int64_t key, int half) {
  const IntVec query = iota() + static_cast<int32_t>(half * kLanes);
  return query < static_cast<int32_t>(key) ? splat(-__builtin_inff()) : score;
}
/// Returns `score`, but -infinity for queries from `query` on, which counts from the strip's begin.
MOE_INLINE Vec mask_from(Vec score, int64_t query, int half) {
  const IntVec all = iota() + static_cast<int32_t>(half * kLanes);
  return all < static_cast<int32_t>(query) ? score : splat(-__builtin_inff());
}

/// Writes the strip's scores, masked, as score[key][query]; returns the largest score of each
/// query.
MOE_NOINLINE PerQuery block_scores(float* score, const QueryBlock& block, In keys, const float* q_t,
                                   const Layout& at) {
  PerQuery top = {{splat(-__builtin_inff()), splat(-__builtin_inff())}};
  each_score_tile(block, keys, q_t, at.dim, [&](int64_t j, auto tile, int first) {
    if (j + block.window < block.end) {
      MOE_UNROLL for (int r = 0; r < kTileRows; ++r) {
        MOE_UNROLL for (int h = first; h < 2; ++h) {
          Vec& sum = tile.at[r][h - first];
          sum = mask_from(sum, j + r + block.window - block.begin, h);
        }
      }
    }
    MOE_UNROLL for (int r = 0; r < kTileRows; ++r) {
      MOE_UNROLL for (int h = first; h < 2; ++h) {
        Vec& sum = tile.at[r][h - first];
        if (j + kTileRows > block.begin) sum = mask_above(sum, j + r - block.begin, h);
        if (j + r >= block.key_end) sum = splat(-__builtin_inff());
        top.half[h] = at_least(top.half[h], sum);
        store(score + (j + r) * kQueryBlock + h * kLanes, sum);
      }
    }
  });
  return top;
}

/// Replaces each score by 2^(score - shift); returns the sum of these powers for each query.
MOE_NOINLINE PerQuery block_exp(float* score, const QueryBlock& block, const PerQuery& shift) {
  PerQuery sum = {};
  const auto step = [&](int64_t j, int h) {
    float* at = score + j * kQueryBlock + h * kLanes;
    const Vec e = exp2_bounded(load(at) - shift.half[h]);
    store(at, e);
    sum.half[h] += e;
  };
  for (int64_t j = block.first_key; j < block.both_until(); ++j) step(j, 0), step(j, 1);
  for (int64_t j = block.both_until(); j < block.key_end; ++j) step(j, 1);
  return sum;
}

/// Writes the tile's first `rows` rows and `cols` columns to `to`, or adds them if `add` is set.
/// `rows` and `cols` may exceed the tile. All other elements of `to` are left unchanged.
MOE_INLINE void store_tile(const Tile<kTileRows>& tile, Out to, int64_t rows, int64_t cols,
                           bool add) {
  MOE_UNROLL for (int r = 0; r < kTileRows; ++r) {
    if (r >= rows) return;
    MOE_UNROLL for (int h = 0; h < 2; ++h) {
      const int64_t left = cols - h * kLanes;
      float* p = to.row(r) + h * kLanes;
      if (left >= kLanes)
        store(p, add ? load(p) + tile.at[r][h] : tile.at[r][h]);
      else if (left > 0)
        store(p, add ? load(p, First{left}) + tile.at[r][h] : tile.at[r][h], First{left});
    }
  }
}

/// out[i, :] = factor[i] * sum over keys j of query i of scores[j][i] * rows[j, :], for i in the
/// strip; rows have `cols` columns.
MOE_NOINLINE void queries_product(Out out, const float* scores, In rows, const float* factor,
                                  const QueryBlock& block, int64_t cols) {
  for (int64_t i = 0; i < block.rows(); i += kTileRows)
    for (int64_t c = 0; c < cols; c += kTileCols) {
      const int64_t from = block.key_from(i);
      const int64_t seen = smaller(block.begin + i + kTileRows, block.key_end) - from;
      auto tile = multiply<kTileRows, true>(seen, scores + from * kQueryBlock + i, kQueryBlock,
                                            rows.row(from) + c, rows.ld);
      MOE_UNROLL for (int r = 0; r < kTileRows; ++r) {
        MOE_UNROLL for (Vec& v : tile.at[r]) v *= factor[i + r];
      }
      store_tile(tile, {out.row(i) + c, out.ld}, block.rows() - i, cols - c, false);
    }
}

/// out[j, :] (+)= sum over the strip's queries i of key j of scores[j][i] * rows[i, :]; rows have
/// `cols` columns. The first strip that reaches key j, the one with key j on its diagonal,
/// overwrites unless `add` is set; later strips add.
MOE_NOINLINE void keys_product(Out out, const float* scores, In rows, const QueryBlock& block,
                               int64_t cols, bool add) {
  for (int64_t j = block.first_key; j < block.key_end; j += kTileRows) {
    const int64_t first = j > block.begin ? j - block.begin : 0;
    const int64_t end = block.rows_until(j + kTileRows);
    for (int64_t c = 0; c < cols; c += kTileCols) {
      const auto tile = multiply<kTileRows, false>(end - first, scores + j * kQueryBlock + first,
                                                   kQueryBlock, rows.row(first) + c, rows.ld);
      store_tile(tile, {out.row(j) + c, out.ld}, block.key_end - j, cols - c,
                 add || j < block.begin);
    }
  }
}

/// One head of k and v of one sequence, and the query heads that read it.
struct KvHead {
  int64_t batch, number;
  const AttentionShape& shape;
  int64_t k() const { return batch * shape.keys() * shape.k_pitch + number * shape.head_dim; }
  int64_t v() const { return batch * shape.keys() * shape.v_pitch + number * shape.value_dim; }
  /// Calls f(h, q, ctx, lse) for each query head h, with its offsets in q, ctx and lse.
  template <class F>
  MOE_INLINE void each_query_head(F f) const {
    const int64_t group = shape.heads / shape.kv_heads, row = batch * shape.queries();
    for (int64_t h = number * group; h < (number + 1) * group; ++h)
      f(h, row * shape.q_pitch + h * shape.head_dim, (row * shape.heads + h) * shape.value_dim,
        (batch * shape.heads + h) * shape.queries());
  }
};

/// Calls f(head) for each KvHead.
template <class F>
MOE_INLINE void each_kv_head(const AttentionShape& s, F f) {
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.kv_heads; ++h) f(KvHead{b, h, s});
}

/// Calls f(strip) for the strips of a sequence, in ascending order.
template <class F>
MOE_INLINE void each_block(const Layout& at, F f) {
  for (int64_t begin = at.first; begin < at.seq; begin += kQueryBlock) f(QueryBlock(begin, at));
}

/// The context and the log-sum-exp of one query head, strip by strip; k and v may be packed.
struct HeadForward {
  const Layout& at;
  const Work& work;
  In q, k, v;
  const float* sink;  // null: none
  Out ctx;
  float* lse;

  void operator()(const QueryBlock& block) const {
    const int64_t begin = block.row;
    transpose_block(work.q_t, {q.row(begin), q.ld}, block.rows(), at.dim, at.scale * kLog2E);
    PerQuery top = block_scores(work.prob, block, k, work.q_t, at);
    if (sink)
      for (Vec& half : top.half) half = at_least(half, splat(kLog2E * *sink));
    PerQuery sum = block_exp(work.prob, block, top);
    if (sink)
      for (int h = 0; h < 2; ++h) sum.half[h] += exp2_bounded(kLog2E * *sink - top.half[h]);
    float inverse[kQueryBlock], block_lse[kQueryBlock];
    for (int h = 0; h < 2; ++h) {
      store(inverse + h * kLanes, 1.0f / sum.half[h]);
      store(block_lse + h * kLanes, kLn2 * top.half[h] + log(sum.half[h]));
    }
    __builtin_memcpy(lse + begin, block_lse, static_cast<size_t>(block.rows()) * sizeof(float));
    queries_product({ctx.row(begin), ctx.ld}, work.prob, v, inverse, block, at.value_dim);
  }
};

void attention(float* ctx, float* lse, AttentionIn<float> in, AttentionShape s, void* area,
               Stream) {
  const Layout at(s);
  const Work work(area, at);
  each_kv_head(s, [&](const KvHead& head) {
    In k = {in.k + head.k(), s.k_pitch}, v = {in.v + head.v(), s.v_pitch};
    if (!at.in_place()) {
      k = packed(work.k, k, at.keys, at.keys_padded, at.dim);
      v = packed(work.v, v, at.keys, at.keys_padded, at.value_dim);
    }
    head.each_query_head([&](int64_t h, int64_t q_at, int64_t ctx_at, int64_t lse_at) {
      each_block(at, HeadForward{at,
                                 work,
                                 {in.q + q_at, s.q_pitch},
                                 k,
                                 v,
                                 in.sinks ? in.sinks + h : nullptr,
                                 {ctx + ctx_at, at.ctx_pitch},
                                 lse + lse_at});
    });
  });
}

/// Returns, for each query of the strip, the sum over value_dim of dctx * ctx.
MOE_NOINLINE PerQuery block_dots(In dctx, In ctx, const QueryBlock& block, const Layout& at) {
  PerQuery dots;
  for (int h = 0; h < 2; ++h) {
    int64_t row[kLanes];
    for (int i = 0; i < kLanes; ++i) row[i] = smaller(h * kLanes + i, block.rows() - 1);
    Vec sum[kLanes];
    MOE_UNROLL for (Vec& v : sum) v = Vec{};
    each_vec(at.value_dim, [&](int64_t c, auto lanes) {
      MOE_UNROLL for (int i = 0; i < kLanes; ++i) {
        sum[i] += load(dctx.row(row[i]) + c, lanes) * load(ctx.row(row[i]) + c, lanes);
      }
    });
    dots.half[h] = sums_of_lanes(sum);
  }
  return dots;
}

/// Writes the transposed gradients of q k^T: scale * prob * (dctx v^T - dots).
MOE_NOINLINE void block_dscores(float* dscore, const float* prob, const QueryBlock& block,
                                In values, const float* dctx_t, const PerQuery& dots,
                                const Layout& at) {
  each_score_tile(block, values, dctx_t, at.value_dim, [&](int64_t j, auto tile, int first) {
    MOE_UNROLL for (int r = 0; r < kTileRows; ++r) {
      MOE_UNROLL for (int h = first; h < 2; ++h) {
        const int64_t to = (j + r) * kQueryBlock + h * kLanes;
        store(dscore + to, at.scale * load(prob + to) * (tile.at[r][h - first] - dots.half[h]));
      }
    }
  });
}

/// The gradients of one query head, strip by strip. k, v, dk and dv may be packed, the others are
/// not. Where `add` is set, dk and dv already hold the sums of other query heads.
struct HeadBackward {
  const Layout& at;
  const Work& work;
  In q, k, v, dctx, ctx;
  const float* lse;
  Out dq, dk, dv;
  bool add;

  void operator()(const QueryBlock& block) const {
    const int64_t begin = block.row, rows = block.rows();
    In sq = {q.row(begin), q.ld}, sd = {dctx.row(begin), dctx.ld};
    transpose_block(work.q_t, sq, rows, at.dim, at.scale * kLog2E);
    transpose_block(work.dctx_t, sd, rows, at.value_dim, 1.0f);
    const PerQuery dots = block_dots(sd, {ctx.row(begin), ctx.ld}, block, at);
    // A tile's columns would run into the next head.
    if (at.dim != at.dim_padded) sq = packed(work.q, sq, rows, rows, at.dim);
    if (at.value_dim != at.value_padded) sd = packed(work.dctx, sd, rows, rows, at.value_dim);
    float shift[kQueryBlock] = {}, ones[kQueryBlock];
    for (int64_t i = 0; i < rows; ++i) shift[i] = kLog2E * lse[begin + i];
    for (float& one : ones) one = 1.0f;
    block_scores(work.prob, block, k, work.q_t, at);
    block_exp(work.prob, block, {{load(shift), load(shift + kLanes)}});
    block_dscores(work.dprob, work.prob, block, v, work.dctx_t, dots, at);
    queries_product({dq.row(begin), dq.ld}, work.dprob, k, ones, block, at.dim);
    keys_product(dk, work.dprob, sq, block, at.dim, add);
    keys_product(dv, work.prob, sd, block, at.value_dim, add);
  }
};

/// Writes rows to `to`, or adds them.
void copy_rows(Out to, In from, int64_t rows, int64_t cols, bool add) {
  for (int64_t r = 0; r < rows; ++r)
    each_vec(cols, [&](int64_t c, auto lanes) {
      const Vec x = load(from.row(r) + c, lanes);
      store(to.row(r) + c, add ? load(to.row(r) + c, lanes) + x : x, lanes);
    });
}

void attention_dx(AttentionOut<float> out, const float* dctx, const float* ctx,
                  AttentionIn<float> in, const float* lse, AttentionShape s, void* area, Stream) {
  const Layout at(s);
  const Work work(area, at);
  each_kv_head(s, [&](const KvHead& head) {
    In k = {in.k + head.k(), s.k_pitch}, v = {in.v + head.v(), s.v_pitch};
    const Out whole_dk = {out.dk + head.k(), s.k_pitch}, whole_dv = {out.dv + head.v(), s.v_pitch};
    Out dk = whole_dk, dv = whole_dv;
    if (!at.in_place()) {
      k = packed(work.k, k, at.keys, at.keys_padded, at.dim);
      v = packed(work.v, v, at.keys, at.keys_padded, at.value_dim);
      dk = {work.dk, at.dim_padded};
      dv = {work.dv, at.value_padded};
    }
    bool add = s.add || s.first > 0;  // a strip's keys begin before its own
    if (!at.in_place() && add) {
      __builtin_memset(work.dk, 0, static_cast<size_t>(at.keys * at.dim_padded) * sizeof(float));
      __builtin_memset(work.dv, 0, static_cast<size_t>(at.keys * at.value_padded) * sizeof(float));
    } else if (add && !s.add) {
      for (int64_t r = 0; r < at.keys; ++r) {
        __builtin_memset(whole_dk.row(r), 0, static_cast<size_t>(at.dim) * sizeof(float));
        __builtin_memset(whole_dv.row(r), 0, static_cast<size_t>(at.value_dim) * sizeof(float));
      }
    }
    head.each_query_head([&](int64_t, int64_t q_at, int64_t ctx_at, int64_t lse_at) {
      each_block(at, HeadBackward{at,
                                  work,
                                  {in.q + q_at, s.q_pitch},
                                  k,
                                  v,
                                  {dctx + ctx_at, at.ctx_pitch},
                                  {ctx + ctx_at, at.ctx_pitch},
                                  lse + lse_at,
                                  {out.dq + q_at, s.q_pitch},
                                  dk,
                                  dv,
                                  add});
      add = true;
    });
    if (!at.in_place()) {
      copy_rows(whole_dk, {work.dk, at.dim_padded}, at.keys, at.dim, s.add);
      copy_rows(whole_dv, {work.dv, at.value_padded}, at.keys, at.value_dim, s.add);
    }
  });
}

void attention_dsinks(float* dsinks, const float* lse, const float* dctx, const float* ctx,
                      const float* sinks, const float* acc, AttentionShape s, Stream) {
  const Layout at(s);
  for (int64_t h = 0; h < s.heads; ++h) {
    Vec sum{};
    for (int64_t b = 0; b < s.batch; ++b) {
      const int64_t ctx_at = (b * s.seq * s.heads + h) * s.value_dim;
      const In head_dctx = {dctx + ctx_at, at.ctx_pitch}, head_ctx = {ctx + ctx_at, at.ctx_pitch};
      const float* head_lse = lse + (b * s.heads + h) * s.seq;
      each_block(at, [&](const QueryBlock& block) {
        const int64_t begin = block.row;
        const PerQuery dots = block_dots({head_dctx.row(begin), head_dctx.ld},
                                         {head_ctx.row(begin), head_ctx.ld}, block, at);
        each_vec(block.rows(), [&](int64_t i, auto lanes) {
          const Vec weight = exp(sinks[h] - load(head_lse + begin + i, lanes));
          sum += keep(weight * dots.half[i / kLanes], lanes, 0.0f);
        });
      });
    }
    dsinks[h] = (acc ? acc[h] : 0.0f) - sum_lanes(sum);
  }
}

int64_t attention_work_bytes(AttentionShape s) {
  return Layout(s).work_bytes();
}

}  // namespace

void set_attention(KernelTable<float>& table) noexcept {
  table.attention = attention;
  table.attention_dx = attention_dx;
  table.attention_dsinks = attention_dsinks;
  table.attention_work_bytes = attention_work_bytes;
}

}  // namespace moe::kernels::MOE_ISA
