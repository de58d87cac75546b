// Attention of q, k and v that are tensors of their own: random shapes and operands, and both
// directions as one call. Rows may be further apart than they are long; what is between them is NaN
// in operands and stays as it was in results.
#pragma once

#include <cstring>
#include <sstream>

#include "tests/kernels/compare.h"

namespace moe::test {

struct Attend {
  kernels::AttentionShape s;
  bool sinks = false;

  int64_t rows() const { return s.batch * s.seq; }
  std::string text() const {
    std::ostringstream text;
    text << "batch " << s.batch << " seq " << s.seq << " heads " << s.heads << " of " << s.kv_heads
         << " columns " << s.head_dim << " and " << s.value_dim << " window " << s.window
         << " scale " << s.scale << " q_pitch " << s.q_pitch << " sinks " << sinks;
    return text.str();
  }
};

/// A shape whose rows are `gap` elements further apart than they are long.
inline kernels::AttentionShape apart(kernels::AttentionShape s, int64_t gap = 0) {
  s.q_pitch = s.heads * s.head_dim + gap;
  s.k_pitch = s.kv_heads * s.head_dim + gap;
  s.v_pitch = s.kv_heads * s.value_dim + gap;
  return s;
}

/// Every second with a window, every third with sinks, every fourth with a scale.
inline Attend random_attend(uint64_t number, int64_t most_seq, int64_t most_columns) {
  Rng rng(number);
  const auto up_to = [&](int64_t most) { return 1 + rng.below(most); };
  Attend a;
  a.s = {.batch = up_to(2), .seq = up_to(most_seq), .heads = 0, .head_dim = up_to(most_columns)};
  a.s.kv_heads = up_to(3);
  a.s.heads = a.s.kv_heads * up_to(3);
  a.s.value_dim = up_to(most_columns);
  if (number % 2 == 1) a.s.window = up_to(a.s.seq + 5);
  if (number % 4 == 3) a.s.scale = 0.3;
  a.s = apart(a.s, rng.below(4));
  a.sinks = number % 3 == 0;
  return a;
}

/// T: of activations. Made as float, so that all types begin from the same numbers.
template <class T>
struct AttendOperands {
  std::vector<T> q, k, v, dctx;
  std::vector<kernels::Wide<T>> sinks;

  kernels::AttentionIn<T> in() const {
    return {q.data(), k.data(), v.data(), sinks.empty() ? nullptr : sinks.data()};
  }
  /// The same numbers as U.
  template <class U>
  AttendOperands<U> as() const {
    const auto all = [](const std::vector<T>& from) {
      std::vector<U> to;
      for (const T x : from) {
        if constexpr (std::is_same_v<U, kernels::Bf16>) {
          to.push_back(kernels::to_bf16(x));
        } else {
          to.push_back(static_cast<U>(x));
        }
      }
      return to;
    };
    return {all(q), all(k), all(v), all(dctx), {sinks.begin(), sinks.end()}};
  }
};

/// `stored`: what becomes of a number when it is stored.
template <class Stored>
AttendOperands<float> random_operands(const Attend& a, double range, Stored stored) {
  const auto rows = [&](int64_t cols, int64_t pitch, uint64_t stream, double most) {
    const auto values = random_values<float>(a.rows() * cols, stream, most);
    std::vector<float> all(static_cast<size_t>(a.rows() * pitch), NAN);
    for (size_t i = 0; i < values.size(); ++i) {
      const auto n = static_cast<int64_t>(i);
      all[static_cast<size_t>(n / cols * pitch + n % cols)] = stored(values[i]);
    }
    return all;
  };
  const int64_t ctx = a.s.heads * a.s.value_dim;
  AttendOperands<float> all = {rows(a.s.heads * a.s.head_dim, a.s.q_pitch, 1, range),
                               rows(a.s.kv_heads * a.s.head_dim, a.s.k_pitch, 2, range),
                               rows(a.s.kv_heads * a.s.value_dim, a.s.v_pitch, 3, range),
                               rows(ctx, ctx, 4, 1),
                               {}};
  if (a.sinks) all.sinks = random_values<float>(a.s.heads, 5, 3);
  return all;
}
inline AttendOperands<float> random_operands(const Attend& a, double range = 1) {
  return random_operands(a, range, [](float x) { return x; });
}

template <class T>
struct Attended {
  std::vector<T> ctx, dq, dk, dv;
  std::vector<kernels::Wide<T>> lse, dsinks;
};

template <class T>
Attended<T> attend(const kernels::KernelTable<T>& k, const Attend& a, const AttendOperands<T>& in) {
  Attended<T> out;
  const T before = std::is_same_v<T, kernels::Bf16> ? T{0x429a} : T{77};  // 77
  out.ctx.assign(in.dctx.size(), before);
  out.dq.assign(in.q.size(), before);
  out.dk.assign(in.k.size(), before);
  out.dv.assign(in.v.size(), before);
  out.lse.assign(static_cast<size_t>(a.rows() * a.s.heads), 77);
  auto work = work_for(k, a.s);
  const auto fill_with_nan = [&work] {
    if (!work.empty()) std::memset(work.data(), 0xff, work.size());
  };
  fill_with_nan();
  k.attention(out.ctx.data(), out.lse.data(), in.in(), a.s, work.data(), nullptr);
  fill_with_nan();
  k.attention_dx({out.dq.data(), out.dk.data(), out.dv.data()}, in.dctx.data(), out.ctx.data(),
                 in.in(), out.lse.data(), a.s, work.data(), nullptr);
  if (!a.sinks) return out;
  out.dsinks.assign(in.sinks.size(), 77);
  k.attention_dsinks(out.dsinks.data(), out.lse.data(), in.dctx.data(), out.ctx.data(),
                     in.sinks.data(), in.sinks.data(), a.s, nullptr);
  return out;
}

template <class T>
std::vector<T> joined(const Attended<T>& all) {
  std::vector<T> one = joined(joined(all.ctx, all.lse), joined(all.dq, all.dk));
  return joined(std::move(one), joined(all.dv, all.dsinks));
}

}  // namespace moe::test
