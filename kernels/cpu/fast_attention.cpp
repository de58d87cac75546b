// Fused causal attention, computed per head and per strip of queries, a QueryBlock
// (FlashAttention's recomputation without its online softmax, since the scores of a strip against
// all keys fit into the second-level cache). Scores are stored transposed, as [key][query of the
// strip]. A vector then runs over queries, so maxima and sums need no operations across SIMD lanes,
// and in all five products the scalar operand is read from consecutive addresses or at constant
// strides. Scores are exponents of 2: log2(e) is contained in the scale of q. Tiles that are wholly
// above the diagonal are skipped; in a tile on the diagonal, scores above it are masked.
#include "kernels/cpu/fast.h"
#include "kernels/cpu/fast_tile.h"

namespace moe::kernels::MOE_ISA {
namespace {

// For functions whose loop keeps its values in registers; inlined together, they would spill.
#define MOE_NOINLINE __attribute__((noinline))

constexpr int kTileRows = kLanes == 16 ? 8 : 4;
constexpr int64_t kQueryBlock = kTileCols;  // queries per strip: two vectors
constexpr float kLn2 = 0.69314718f, kLog2E = 1.44269504f;
// If qkv has at most this many floats per sequence, tiles may read it in place (Layout::in_place).
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
  explicit Layout(AttentionShape s)
      : seq(s.seq),
        dim(s.head_dim),
        hidden(s.heads * s.head_dim),
        pitch(3 * hidden),
        dim_padded(round_up(s.head_dim, kTileCols)),
        keys_padded(round_up(s.seq, kQueryBlock)),
        scale(1.0f / __builtin_sqrtf(static_cast<float>(s.head_dim))) {}

  bool whole_tiles() const { return dim == dim_padded && seq == keys_padded; }
  /// Whether tiles may read and write k, v and their gradients in the caller's arrays; otherwise
  /// padded copies in the work area are used.
  bool in_place() const { return whole_tiles() && seq * pitch <= kInPlaceFloats; }
  int64_t head_floats() const { return keys_padded * dim_padded; }
  int64_t score_floats() const { return keys_padded * kQueryBlock; }
  int64_t block_floats() const { return kQueryBlock * dim_padded; }
  int64_t work_bytes() const {
    return static_cast<int64_t>(sizeof(float)) *
           (kAlign + 4 * head_floats() + 2 * score_floats() + 4 * block_floats());
  }

  static constexpr int64_t kAlign = 16;  // a cache line in floats
  int64_t seq, dim, hidden, pitch, dim_padded, keys_padded;
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
    for (float** array : {&k, &v, &dk, &dv}) *array = take(at.head_floats());
    for (float** array : {&prob, &dprob}) *array = take(at.score_floats());
    for (float** array : {&q, &q_t, &dctx, &dctx_t}) *array = take(at.block_floats());
  }
  float *k, *v, *dk, *dv;  // [keys_padded, dim_padded]
  float *prob, *dprob;     // [keys_padded, kQueryBlock]
  float *q, *dctx;         // [kQueryBlock, dim_padded]
  float *q_t, *dctx_t;     // [dim_padded, kQueryBlock]
};

/// Copies `rows` rows of a head to `to`, padded with zeros to whole tiles, and returns them.
In packed(float* to, In from, int64_t rows, int64_t rows_padded, const Layout& at) {
  for (int64_t r = 0; r < rows_padded; ++r)
    for (int64_t c = 0; c < at.dim_padded; c += kLanes) {
      const int64_t left = r < rows ? at.dim - c : 0;
      const float* p = from.row(r) + c;
      store(to + r * at.dim_padded + c, left >= kLanes ? load(p)
                                        : left > 0     ? load(p, First{left})
                                                       : Vec{});
    }
  return {to, at.dim_padded};
}

// If a strip has fewer than kQueryBlock queries, its last query is repeated in the SIMD lanes that
// are left; results of these SIMD lanes are not stored.

/// to [dim, kQueryBlock] = transpose of `rows` rows, multiplied by `factor`.
MOE_NOINLINE void transpose_block(float* to, In from, int64_t rows, float factor,
                                  const Layout& at) {
  for (int64_t first = 0; first < kQueryBlock; first += kLanes) {
    const float* row[kLanes];
    for (int i = 0; i < kLanes; ++i) row[i] = from.row(smaller(first + i, rows - 1));
    each_vec(at.dim, [&](int64_t c, auto lanes) {
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

/// A strip: the queries [begin, end) of a sequence. Query i attends to the keys [0, i].
struct QueryBlock {
  int64_t begin, end;
  int64_t rows() const { return end - begin; }
  /// The first key to which only queries of the second half attend.
  int64_t half_from() const { return smaller(begin + kLanes, end); }
};

/// Calls f(key, tile, first) for each tile of kTileRows keys; `tile` is the product of the keys
/// with the strip's queries. `first` is 0 if the tile has both halves of the queries, and 1 (from
/// half_from() on) if it has only the second half.
template <class F>
MOE_INLINE void each_score_tile(const QueryBlock& block, In keys, const float* queries_t,
                                const Layout& at, F f) {
  int64_t j = 0;
  for (; j < block.half_from(); j += kTileRows)
    f(j, multiply<kTileRows, false>(at.dim, keys.row(j), keys.ld, queries_t, kQueryBlock), 0);
  for (; j < block.end; j += kTileRows)
    f(j,
      multiply<kTileRows, false, 1>(at.dim, keys.row(j), keys.ld, queries_t + kLanes, kQueryBlock),
      1);
}

/// Returns `score`, but -infinity for queries before `key`, which counts from the strip's begin.
MOE_INLINE Vec mask_above(Vec score, int64_t key, int half) {
  const IntVec query = iota() + static_cast<int32_t>(half * kLanes);
  return query < static_cast<int32_t>(key) ? splat(-__builtin_inff()) : score;
}

/// Writes the strip's scores, masked, as score[key][query]; returns the largest score of each
/// query.
MOE_NOINLINE PerQuery block_scores(float* score, const QueryBlock& block, In keys, const float* q_t,
                                   const Layout& at) {
  PerQuery top = {{splat(-__builtin_inff()), splat(-__builtin_inff())}};
  each_score_tile(block, keys, q_t, at, [&](int64_t j, auto tile, int first) {
    MOE_UNROLL for (int r = 0; r < kTileRows; ++r) {
      MOE_UNROLL for (int h = first; h < 2; ++h) {
        Vec& sum = tile.at[r][h - first];
        if (j >= block.begin) sum = mask_above(sum, j + r - block.begin, h);
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
  for (int64_t j = 0; j < block.half_from(); ++j) step(j, 0), step(j, 1);
  for (int64_t j = block.half_from(); j < block.end; ++j) step(j, 1);
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

/// out[i, :] = factor[i] * sum over keys j <= i of scores[j][i] * rows[j, :], for i in the strip.
MOE_NOINLINE void queries_product(Out out, const float* scores, In rows, const float* factor,
                                  const QueryBlock& block, const Layout& at) {
  for (int64_t i = 0; i < block.rows(); i += kTileRows)
    for (int64_t c = 0; c < at.dim; c += kTileCols) {
      const int64_t seen = smaller(block.begin + i + kTileRows, block.end);
      auto tile = multiply<kTileRows, true>(seen, scores + i, kQueryBlock, rows.data + c, rows.ld);
      MOE_UNROLL for (int r = 0; r < kTileRows; ++r) {
        MOE_UNROLL for (Vec& v : tile.at[r]) v *= factor[i + r];
      }
      store_tile(tile, {out.row(i) + c, out.ld}, block.rows() - i, at.dim - c, false);
    }
}

/// out[j, :] (+)= sum over the strip's queries i >= j of scores[j][i] * rows[i, :]. The first strip
/// that reaches key j, the one with key j on its diagonal, overwrites; later strips add.
MOE_NOINLINE void keys_product(Out out, const float* scores, In rows, const QueryBlock& block,
                               const Layout& at) {
  for (int64_t j = 0; j < block.end; j += kTileRows) {
    const int64_t first = j > block.begin ? j - block.begin : 0;
    for (int64_t c = 0; c < at.dim; c += kTileCols) {
      const auto tile =
          multiply<kTileRows, false>(block.rows() - first, scores + j * kQueryBlock + first,
                                     kQueryBlock, rows.row(first) + c, rows.ld);
      store_tile(tile, {out.row(j) + c, out.ld}, block.end - j, at.dim - c, j < block.begin);
    }
  }
}

/// Calls f(q, ctx, lse) for each head, with its offsets in qkv, ctx and lse.
template <class F>
MOE_INLINE void each_head(AttentionShape s, F f) {
  const int64_t hidden = s.heads * s.head_dim;
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t ctx = b * s.seq * hidden + h * s.head_dim;
      f(ctx + 2 * b * s.seq * hidden, ctx, (b * s.heads + h) * s.seq);
    }
}

/// Calls f(strip) for the strips of a sequence, in ascending order.
template <class F>
MOE_INLINE void each_block(int64_t seq, F f) {
  for (int64_t begin = 0; begin < seq; begin += kQueryBlock)
    f(QueryBlock{begin, smaller(begin + kQueryBlock, seq)});
}

void attention(float* ctx, float* lse, const float* qkv, AttentionShape s, void* area, Stream) {
  const Layout at(s);
  const Work work(area, at);
  each_head(s, [&](int64_t qkv_at, int64_t ctx_at, int64_t lse_at) {
    const In q = {qkv + qkv_at, at.pitch};
    In k = {q.data + at.hidden, at.pitch}, v = {k.data + at.hidden, at.pitch};
    if (!at.in_place()) {
      k = packed(work.k, k, s.seq, at.keys_padded, at);
      v = packed(work.v, v, s.seq, at.keys_padded, at);
    }
    each_block(s.seq, [&](QueryBlock block) {
      const int64_t begin = block.begin;
      transpose_block(work.q_t, {q.row(begin), q.ld}, block.rows(), at.scale * kLog2E, at);
      const PerQuery top = block_scores(work.prob, block, k, work.q_t, at);
      const PerQuery sum = block_exp(work.prob, block, top);
      float inverse[kQueryBlock], block_lse[kQueryBlock];
      for (int h = 0; h < 2; ++h) {
        store(inverse + h * kLanes, 1.0f / sum.half[h]);
        store(block_lse + h * kLanes, kLn2 * top.half[h] + log(sum.half[h]));
      }
      __builtin_memcpy(lse + lse_at + begin, block_lse,
                       static_cast<size_t>(block.rows()) * sizeof(float));
      queries_product({ctx + ctx_at + begin * at.hidden, at.hidden}, work.prob, v, inverse, block,
                      at);
    });
  });
}

/// Returns, for each query of the strip, the sum over dim of dctx * ctx.
MOE_NOINLINE PerQuery block_dots(In dctx, In ctx, const QueryBlock& block, const Layout& at) {
  PerQuery dots;
  for (int h = 0; h < 2; ++h) {
    int64_t row[kLanes];
    for (int i = 0; i < kLanes; ++i) row[i] = smaller(h * kLanes + i, block.rows() - 1);
    Vec sum[kLanes];
    MOE_UNROLL for (Vec& v : sum) v = Vec{};
    each_vec(at.dim, [&](int64_t c, auto lanes) {
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
  each_score_tile(block, values, dctx_t, at, [&](int64_t j, auto tile, int first) {
    MOE_UNROLL for (int r = 0; r < kTileRows; ++r) {
      MOE_UNROLL for (int h = first; h < 2; ++h) {
        const int64_t to = (j + r) * kQueryBlock + h * kLanes;
        store(dscore + to, at.scale * load(prob + to) * (tile.at[r][h - first] - dots.half[h]));
      }
    }
  });
}

/// The gradients of one head, strip by strip. k, v, dk and dv may be packed, the others are not.
struct HeadBackward {
  const Layout& at;
  const Work& work;
  In q, k, v, dctx, ctx;
  const float* lse;
  Out dq, dk, dv;

  void operator()(const QueryBlock& block) const {
    const int64_t begin = block.begin, rows = block.rows();
    In sq = {q.row(begin), q.ld}, sd = {dctx.row(begin), dctx.ld};
    transpose_block(work.q_t, sq, rows, at.scale * kLog2E, at);
    transpose_block(work.dctx_t, sd, rows, 1.0f, at);
    const PerQuery dots = block_dots(sd, {ctx.row(begin), ctx.ld}, block, at);
    if (at.dim != at.dim_padded) {  // a tile's columns would run into the next head
      sq = packed(work.q, sq, rows, rows, at);
      sd = packed(work.dctx, sd, rows, rows, at);
    }
    float shift[kQueryBlock] = {}, ones[kQueryBlock];
    for (int64_t i = 0; i < rows; ++i) shift[i] = kLog2E * lse[begin + i];
    for (float& one : ones) one = 1.0f;
    block_scores(work.prob, block, k, work.q_t, at);
    block_exp(work.prob, block, {{load(shift), load(shift + kLanes)}});
    block_dscores(work.dprob, work.prob, block, v, work.dctx_t, dots, at);
    queries_product({dq.row(begin), dq.ld}, work.dprob, k, ones, block, at);
    keys_product(dk, work.dprob, sq, block, at);
    keys_product(dv, work.prob, sd, block, at);
  }
};

void copy_rows(float* to, int64_t ld, const float* from, const Layout& at) {
  for (int64_t r = 0; r < at.seq; ++r)
    each_vec(at.dim, [&](int64_t c, auto lanes) {
      store(to + r * ld + c, load(from + r * at.dim_padded + c, lanes), lanes);
    });
}

void attention_dx(float* dqkv, const float* dctx, const float* ctx, const float* qkv,
                  const float* lse, AttentionShape s, void* area, Stream) {
  const Layout at(s);
  const Work work(area, at);
  each_head(s, [&](int64_t qkv_at, int64_t ctx_at, int64_t lse_at) {
    const float* q = qkv + qkv_at;
    float* dq = dqkv + qkv_at;
    const auto in = [&](const float* data) { return In{data, at.pitch}; };
    HeadBackward head = {at,
                         work,
                         in(q),
                         in(q + at.hidden),
                         in(q + 2 * at.hidden),
                         {dctx + ctx_at, at.hidden},
                         {ctx + ctx_at, at.hidden},
                         lse + lse_at,
                         {dq, at.pitch},
                         {dq + at.hidden, at.pitch},
                         {dq + 2 * at.hidden, at.pitch}};
    if (!at.in_place()) {
      head.k = packed(work.k, head.k, s.seq, at.keys_padded, at);
      head.v = packed(work.v, head.v, s.seq, at.keys_padded, at);
      head.dk = {work.dk, at.dim_padded};
      head.dv = {work.dv, at.dim_padded};
    }
    each_block(s.seq, head);
    if (!at.in_place()) {
      copy_rows(dq + at.hidden, at.pitch, work.dk, at);
      copy_rows(dq + 2 * at.hidden, at.pitch, work.dv, at);
    }
  });
}

int64_t attention_work_bytes(AttentionShape s) {
  return Layout(s).work_bytes();
}

}  // namespace

void set_attention(KernelTable<float>& table) noexcept {
  table.attention = attention;
  table.attention_dx = attention_dx;
  table.attention_work_bytes = attention_work_bytes;
}

}  // namespace moe::kernels::MOE_ISA
