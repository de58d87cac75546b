// Kernels that move rows and parts of rows: the embedding, the slots of experts, columns of heads.
#include "kernels/cpu/fast.h"
#include "kernels/cpu/fast_simd.h"

namespace moe::kernels::MOE_ISA {
namespace {

void copy_row(float* to, const float* from, int64_t n) {
  each_vec(n, [&](int64_t i, auto lanes) { store(to + i, load(from + i, lanes), lanes); });
}

void clear_row(float* to, int64_t n) {
  each_vec(n, [&](int64_t i, auto lanes) { store(to + i, Vec{}, lanes); });
}

/// y = base + scale * x; base may be y, or null, which counts as 0.
void add_row(float* y, const float* base, float scale, const float* x, int64_t n) {
  if (!base) {
    each_vec(n, [&](int64_t i, auto lanes) { store(y + i, scale * load(x + i, lanes), lanes); });
    return;
  }
  each_vec(n, [&](int64_t i, auto lanes) {
    store(y + i, load(base + i, lanes) + scale * load(x + i, lanes), lanes);
  });
}

void copy_or_clear(float* to, const float* from, int64_t n) {
  if (from && from != to) copy_row(to, from, n);
  if (!from) clear_row(to, n);
}

void embedding(float* x, const int32_t* ids, const float* wte, const float* wpe, int64_t tokens,
               int64_t seq, int64_t hidden, Stream) {
  for (int64_t t = 0; t < tokens; ++t) {
    const float* place = wpe ? wpe + t % seq * hidden : nullptr;
    if (ids[t] < 0) {
      copy_or_clear(x + t * hidden, place, hidden);
    } else {
      add_row(x + t * hidden, place, 1.0f, wte + ids[t] * hidden, hidden);
    }
  }
}

void embedding_dwte(float* dwte, const int32_t* ids, const float* dx, const float* acc,
                    int64_t tokens, int64_t vocab, int64_t hidden, Stream) {
  copy_or_clear(dwte, acc, vocab * hidden);
  for (int64_t t = 0; t < tokens; ++t) {
    if (ids[t] < 0) continue;
    float* row = dwte + ids[t] * hidden;
    add_row(row, row, 1.0f, dx + t * hidden, hidden);
  }
}

void embedding_dwpe(float* dwpe, const float* dx, const float* acc, int64_t tokens, int64_t seq,
                    int64_t hidden, Stream) {
  const int64_t cols = seq * hidden, rows = tokens / seq;
  const int64_t longer = tokens % seq * hidden;  // columns that an incomplete last sequence has
  const auto dx_at = [&](int64_t r, int64_t c, auto lanes) {
    return load(dx + r * cols + c, lanes);
  };
  sum_rows(dwpe, acc, rows + 1, longer, dx_at);
  sum_rows(dwpe + longer, acc ? acc + longer : nullptr, rows, cols - longer,
           [&](int64_t r, int64_t c, auto lanes) { return dx_at(r, longer + c, lanes); });
}

/// y[t,:] = base[t,:] + sum over j of weight[t,j] * in[choice_slot[t*k+j],:]; a null `weight`
/// counts as 1.
void gather_sum(float* y, const float* in, const float* weight, const int32_t* choice_slot,
                const float* base, int64_t tokens, int64_t k, int64_t hidden) {
  for (int64_t t = 0; t < tokens; ++t) {
    float* row = y + t * hidden;
    const float* sum = base ? base + t * hidden : nullptr;
    bool written = false;
    for (int64_t choice = t * k; choice < (t + 1) * k; ++choice) {
      const int32_t slot = choice_slot[choice];
      if (slot < 0) continue;
      add_row(row, written ? row : sum, weight ? weight[choice] : 1.0f, in + slot * hidden, hidden);
      written = true;
    }
    if (!written) copy_or_clear(row, sum, hidden);
  }
}

void dispatch(float* out, const float* x, const int32_t* slot_choice, int64_t slots, int64_t k,
              int64_t hidden, Stream) {
  for (int64_t s = 0; s < slots; ++s, out += hidden) {
    if (slot_choice[s] < 0)
      clear_row(out, hidden);
    else
      copy_row(out, x + slot_choice[s] / k * hidden, hidden);
  }
}

void dispatch_dx(float* dx, const float* dout, const int32_t* choice_slot, const float* acc,
                 int64_t tokens, int64_t k, int64_t hidden, Stream) {
  gather_sum(dx, dout, nullptr, choice_slot, acc, tokens, k, hidden);
}

void combine(float* y, const float* in, const float* weight, const int32_t* choice_slot,
             const float* residual, int64_t tokens, int64_t k, int64_t hidden, Stream) {
  gather_sum(y, in, weight, choice_slot, residual, tokens, k, hidden);
}

void combine_dx(float* din, const float* dy, const float* weight, const int32_t* slot_choice,
                int64_t slots, int64_t k, int64_t hidden, Stream) {
  for (int64_t s = 0; s < slots; ++s, din += hidden) {
    const int32_t choice = slot_choice[s];
    if (choice < 0)
      clear_row(din, hidden);
    else
      add_row(din, nullptr, weight[choice], dy + choice / k * hidden, hidden);
  }
}

void combine_dweight(float* dweight, const float* dy, const float* in, const int32_t* choice_slot,
                     int64_t tokens, int64_t k, int64_t hidden, Stream) {
  for (int64_t choice = 0; choice < tokens * k; ++choice) {
    const int32_t slot = choice_slot[choice];
    const float* a = dy + choice / k * hidden;
    const float* b = in + slot * hidden;
    dweight[choice] = slot < 0 ? 0.0f : sum_of(hidden, [&](int64_t i, auto lanes) {
      return load(a + i, lanes) * load(b + i, lanes);
    });
  }
}

void gather(float* to, const float* from, const int32_t* at, int64_t n, Stream) {
  for (int64_t i = 0; i < n; ++i) to[i] = at[i] < 0 ? 0.0f : from[at[i]];
}

void split_heads(float* first, float* second, const float* x, HeadColumns columns, int64_t rows,
                 Stream) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t h = 0; h < columns.heads; ++h) {
      copy_row(first, x, columns.first);
      first += columns.first;
      x += columns.first;
      // The last head moves on from shared columns.
      const bool begins = !columns.shared || h == 0;
      add_row(second, begins ? nullptr : second, 1.0f, x, columns.second);
      x += columns.second;
      if (!columns.shared || h + 1 == columns.heads) second += columns.second;
    }
}

void join_heads(float* x, const float* first, const float* second, HeadColumns columns,
                int64_t rows, Stream) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t h = 0; h < columns.heads; ++h) {
      copy_row(x, first, columns.first);
      first += columns.first;
      copy_row(x + columns.first, second, columns.second);
      x += columns.first + columns.second;
      if (!columns.shared || h + 1 == columns.heads) second += columns.second;
    }
}

}  // namespace

void set_rows(KernelTable<float>& table) noexcept {
  table.embedding = embedding;
  table.embedding_dwte = embedding_dwte;
  table.embedding_dwpe = embedding_dwpe;
  table.dispatch = dispatch;
  table.dispatch_dx = dispatch_dx;
  table.combine = combine;
  table.combine_dx = combine_dx;
  table.combine_dweight = combine_dweight;
  table.gather = gather;
  table.split_heads = split_heads;
  table.join_heads = join_heads;
}

}  // namespace moe::kernels::MOE_ISA
