// Fused causal attention, one head at a time, one strip of queries at a time (FlashAttention's
// recomputation without its online softmax: a strip's scores against all keys fit the second-level
// cache). Scores are held transposed, [key][query of the strip]: a vector runs over queries, so
// maxima and sums need no work across lanes, and in all five products the scalar operand is read
// from consecutive addresses or constant strides. Keys above the strip's diagonal are skipped.
#include "kernels/cpu/fast.h"
#include "kernels/cpu/fast_tile.h"

namespace moe::kernels::MOE_ISA {
namespace {

constexpr int kTileRows = kLanes == 16 ? 8 : 4;  // x 2 vectors of sums: what the registers hold
constexpr int64_t kStrip = kTileCols;            // queries of a strip

int64_t round_up(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}
int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

using Rows = Tile<kTileRows>;

/// to[r, c] = tile (+ to) for r < rows, c < cols.
MOE_INLINE void store_tile(const Rows& tile, float* to, int64_t ld, int64_t rows, int64_t cols,
                           bool add) {
  MOE_UNROLL for (int r = 0; r < kTileRows; ++r, to += ld) {
    if (r >= rows) return;
    for (int half = 0; half < 2; ++half) {
      const int64_t left = cols - half * kLanes;
      float* p = to + half * kLanes;
      if (left >= kLanes)
        store(p, add ? load(p) + tile.at[r][half] : tile.at[r][half]);
      else if (left > 0)
        store(p, add ? load(p, First{left}) + tile.at[r][half] : tile.at[r][half], First{left});
    }
  }
}

/// Sizes of one call and the parts of its work area, all floats.
struct Layout {
  explicit Layout(AttentionShape s)
      : seq(s.seq),
        dim(s.head_dim),
        hidden(s.heads * s.head_dim),
        dim_padded(round_up(s.head_dim, kStrip)),
        keys_padded(round_up(s.seq, kStrip)),
        scale(1.0f / __builtin_sqrtf(static_cast<float>(s.head_dim))) {}

  int64_t head_floats() const { return keys_padded * dim_padded; }
  int64_t score_floats() const { return keys_padded * kStrip; }
  int64_t strip_floats() const { return kStrip * dim_padded; }
  int64_t work_bytes() const {
    return static_cast<int64_t>(sizeof(float)) *
           (kAlign + 2 * head_floats() + 2 * score_floats() + 5 * strip_floats());
  }

  static constexpr int64_t kAlign = 16;  // floats of a cache line
  int64_t seq, dim, hidden, dim_padded, keys_padded;
  float scale;
};

struct Work {
  Work(void* work, const Layout& at) {
    const auto address = reinterpret_cast<uintptr_t>(work);
    auto* next = reinterpret_cast<float*>((address + 63) & ~uintptr_t{63});
    k = next;
    v = k + at.head_floats();
    prob = v + at.head_floats();
    dprob = prob + at.score_floats();
    q = dprob + at.score_floats();
    q_t = q + at.strip_floats();
    dctx = q_t + at.strip_floats();
    dctx_t = dctx + at.strip_floats();
    product = dctx_t + at.strip_floats();
  }
  float *k, *v;               // [keys_padded, dim_padded]
  float *prob, *dprob;        // [keys_padded, kStrip]: transposed
  float *q, *dctx, *product;  // [kStrip, dim_padded]
  float *q_t, *dctx_t;        // [dim_padded, kStrip]
};

/// Rows of one head, packed with zeros around them, times `scale`.
void pack(float* to, const float* from, int64_t pitch, int64_t rows, int64_t rows_padded,
          const Layout& at, float scale) {
  for (int64_t r = 0; r < rows_padded; ++r, to += at.dim_padded) {
    for (int64_t c = 0; c < at.dim_padded; c += kLanes) {
      const int64_t left = r < rows ? at.dim - c : 0;
      const float* p = from + r * pitch + c;
      store(to + c, left >= kLanes ? scale * load(p)
                    : left > 0     ? scale * load(p, First{left})
                                   : Vec{});
    }
  }
}

/// to [dim_padded, kStrip] = transpose of from [kStrip, dim_padded].
void transpose_strip(float* to, const float* from, const Layout& at) {
  for (int64_t c = 0; c < at.dim_padded; c += kLanes)
    for (int64_t r = 0; r < kStrip; r += kLanes) {
      Vec block[kLanes];
      for (int i = 0; i < kLanes; ++i) block[i] = load(from + (r + i) * at.dim_padded + c);
      transpose(block);
      for (int i = 0; i < kLanes; ++i) store(to + (c + i) * kStrip + r, block[i]);
    }
}

/// Per query of a strip.
struct Lanes {
  Vec half[2];
};

/// Sets lanes of a score above the diagonal to -infinity: queries before key `key` of the strip.
MOE_INLINE Vec mask_above(Vec score, int64_t key, int half) {
  const IntVec query = iota() + static_cast<int32_t>(half * kLanes);
  return query < static_cast<int32_t>(key) ? splat(-__builtin_inff()) : score;
}

/// Transposed scores of keys [0, end) in work.prob, masked; returns each query's maximum.
Lanes strip_scores(const Work& work, const Layout& at, int64_t begin, int64_t end) {
  Lanes top = {{splat(-__builtin_inff()), splat(-__builtin_inff())}};
  for (int64_t j = 0; j < end; j += kTileRows) {
    Rows tile = multiply<kTileRows, false>(at.dim, work.k + j * at.dim_padded, at.dim_padded,
                                           work.q_t, kStrip);
    MOE_UNROLL for (int r = 0; r < kTileRows; ++r) MOE_UNROLL for (int h = 0; h < 2; ++h) {
      if (j >= begin) tile.at[r][h] = mask_above(tile.at[r][h], j + r - begin, h);
      top.half[h] = at_least(top.half[h], tile.at[r][h]);
      store(work.prob + (j + r) * kStrip + h * kLanes, tile.at[r][h]);
    }
  }
  return top;
}

/// work.prob = exp(score - shift) for keys [0, end); returns each query's sum.
Lanes strip_exp(float* prob, const Lanes& shift, int64_t end) {
  Lanes sum = {};
  for (int64_t j = 0; j < end; ++j, prob += kStrip) MOE_UNROLL for (int h = 0; h < 2; ++h) {
      const Vec x = load(prob + h * kLanes) - shift.half[h];
      const Vec e = exp_bounded(x);
      store(prob + h * kLanes, e);
      sum.half[h] += e;
    }
  return sum;
}

/// out[i, :] = factor[i] * sum over keys j <= i of scores[j][i] * rows[j, :], for a strip's
/// queries.
void strip_product(float* out, int64_t ldo, const float* scores, const float* rows,
                   const float* factor, const Layout& at, int64_t begin, int64_t end) {
  for (int64_t i = 0; i < end - begin; i += kTileRows)
    for (int64_t c = 0; c < at.dim; c += kStrip) {
      Rows tile = multiply<kTileRows, true>(smaller(begin + i + kTileRows, end), scores + i, kStrip,
                                            rows + c, at.dim_padded);
      MOE_UNROLL for (int r = 0; r < kTileRows; ++r) MOE_UNROLL for (int h = 0; h < 2; ++h)
          tile.at[r][h] *= factor[i + r];
      store_tile(tile, out + i * ldo + c, ldo, end - begin - i, at.dim - c, false);
    }
}

/// out[j, :] (+)= sum over the strip's queries i of scores[j][i] * rows[i, :]. The strip that holds
/// key j on its diagonal is the first to reach it and overwrites.
void keys_product(float* out, int64_t ldo, const float* scores, const float* rows, const Layout& at,
                  int64_t begin, int64_t end) {
  for (int64_t j = 0; j < end; j += kTileRows)
    for (int64_t c = 0; c < at.dim; c += kStrip) {
      Rows tile = multiply<kTileRows, false>(end - begin, scores + j * kStrip, kStrip, rows + c,
                                             at.dim_padded);
      store_tile(tile, out + j * ldo + c, ldo, end - j, at.dim - c, j < begin);
    }
}

/// f(batch row, head) for each head.
template <class F>
MOE_INLINE void each_head(AttentionShape s, F f) {
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h) f(b, h);
}

void attention(float* ctx, float* lse, const float* qkv, AttentionShape s, void* area, Stream) {
  const Layout at(s);
  const Work work(area, at);
  const int64_t pitch = 3 * at.hidden;
  each_head(s, [&](int64_t b, int64_t h) {
    const float* q = qkv + b * s.seq * pitch + h * s.head_dim;
    pack(work.k, q + at.hidden, pitch, s.seq, at.keys_padded, at, 1.0f);
    pack(work.v, q + 2 * at.hidden, pitch, s.seq, at.keys_padded, at, 1.0f);
    for (int64_t begin = 0; begin < s.seq; begin += kStrip) {
      const int64_t end = smaller(begin + kStrip, s.seq);
      pack(work.q, q + begin * pitch, pitch, end - begin, kStrip, at, at.scale);
      transpose_strip(work.q_t, work.q, at);
      const Lanes top = strip_scores(work, at, begin, end);
      const Lanes sum = strip_exp(work.prob, top, end);
      float inverse[kStrip], strip_lse[kStrip];
      for (int half = 0; half < 2; ++half) {
        store(inverse + half * kLanes, 1.0f / sum.half[half]);
        store(strip_lse + half * kLanes, top.half[half] + log(sum.half[half]));
      }
      __builtin_memcpy(lse + (b * s.heads + h) * s.seq + begin, strip_lse,
                       static_cast<size_t>(end - begin) * sizeof(float));
      strip_product(ctx + (b * s.seq + begin) * at.hidden + h * s.head_dim, at.hidden, work.prob,
                    work.v, inverse, at, begin, end);
    }
  });
}

/// For each query of the strip the sum over dim of dctx * ctx; `rows` real queries.
Lanes strip_dots(const Work& work, const float* ctx, int64_t rows, const Layout& at) {
  pack(work.product, ctx, at.hidden, rows, kStrip, at, 1.0f);
  Lanes dots;
  for (int half = 0; half < 2; ++half) {
    Vec sum[kLanes] = {};
    for (int i = 0; i < kLanes; ++i)
      for (int64_t c = 0; c < at.dim_padded; c += kLanes) {
        const int64_t from = (half * kLanes + i) * at.dim_padded + c;
        sum[i] += load(work.product + from) * load(work.dctx + from);
      }
    dots.half[half] = sums_of_lanes(sum);
  }
  return dots;
}

/// work.dprob = gradient of the unscaled scores, times scale, of keys [0, end), transposed.
void strip_dscores(const Work& work, const Layout& at, const Lanes& dots, int64_t end) {
  for (int64_t j = 0; j < end; j += kTileRows) {
    Rows tile = multiply<kTileRows, false>(at.dim, work.v + j * at.dim_padded, at.dim_padded,
                                           work.dctx_t, kStrip);
    MOE_UNROLL for (int r = 0; r < kTileRows; ++r) MOE_UNROLL for (int h = 0; h < 2; ++h) {
      const int64_t to = (j + r) * kStrip + h * kLanes;
      store(work.dprob + to, at.scale * load(work.prob + to) * (tile.at[r][h] - dots.half[h]));
    }
  }
}

void attention_dx(float* dqkv, const float* dctx, const float* ctx, const float* qkv,
                  const float* lse, AttentionShape s, void* area, Stream) {
  const Layout at(s);
  const Work work(area, at);
  const int64_t pitch = 3 * at.hidden;
  float ones[kStrip];
  for (float& one : ones) one = 1.0f;
  each_head(s, [&](int64_t b, int64_t h) {
    const float* q = qkv + b * s.seq * pitch + h * s.head_dim;
    float* dq = dqkv + (q - qkv);
    pack(work.k, q + at.hidden, pitch, s.seq, at.keys_padded, at, 1.0f);
    pack(work.v, q + 2 * at.hidden, pitch, s.seq, at.keys_padded, at, 1.0f);
    for (int64_t begin = 0; begin < s.seq; begin += kStrip) {
      const int64_t end = smaller(begin + kStrip, s.seq), rows = end - begin;
      const int64_t ctx_at = (b * s.seq + begin) * at.hidden + h * s.head_dim;
      pack(work.q, q + begin * pitch, pitch, rows, kStrip, at, at.scale);
      transpose_strip(work.q_t, work.q, at);
      pack(work.q, q + begin * pitch, pitch, rows, kStrip, at, 1.0f);
      pack(work.dctx, dctx + ctx_at, at.hidden, rows, kStrip, at, 1.0f);
      transpose_strip(work.dctx_t, work.dctx, at);
      float strip_lse[kStrip] = {};
      __builtin_memcpy(strip_lse, lse + (b * s.heads + h) * s.seq + begin,
                       static_cast<size_t>(rows) * sizeof(float));
      strip_scores(work, at, begin, end);
      strip_exp(work.prob, {{load(strip_lse), load(strip_lse + kLanes)}}, end);
      strip_dscores(work, at, strip_dots(work, ctx + ctx_at, rows, at), end);
      strip_product(dq + begin * pitch, pitch, work.dprob, work.k, ones, at, begin, end);
      keys_product(dq + at.hidden, pitch, work.dprob, work.q, at, begin, end);
      keys_product(dq + 2 * at.hidden, pitch, work.prob, work.dctx, at, begin, end);
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
