#include "tests/kernels/attend.h"

using namespace moe;
using namespace moe::test;
using kernels::AttentionShape;

namespace {

/// The context and the log-sum-exp of one query, by a softmax over the scores of all keys, of which
/// those that it does not see are -infinity, and one more column for the sink.
struct Row {
  std::vector<double> ctx;
  double lse;
};
Row row_by_formula(const Attend& a, const AttendOperands<double>& in, int64_t b, int64_t h,
                   int64_t i) {
  const AttentionShape& s = a.s;
  const int64_t kv_head = h * s.kv_heads / s.heads;
  std::vector<double> weights;
  for (int64_t j = 0; j < s.seq; ++j) {
    const bool seen = j <= i && (s.window == 0 || i - j < s.window);
    double score = 0;
    for (int64_t c = 0; c < s.head_dim; ++c)
      score += in.q[(b * s.seq + i) * s.q_pitch + h * s.head_dim + c] *
               in.k[(b * s.seq + j) * s.k_pitch + kv_head * s.head_dim + c];
    score *= s.scale > 0 ? s.scale : std::pow(s.head_dim, -0.5);
    weights.push_back(seen ? std::exp(score) : 0);
  }
  if (a.sinks) weights.push_back(std::exp(in.sinks[h]));
  double sum = 0;
  for (const double w : weights) sum += w;
  Row row = {std::vector<double>(static_cast<size_t>(s.value_dim)), std::log(sum)};
  for (int64_t j = 0; j < s.seq; ++j)
    for (int64_t c = 0; c < s.value_dim; ++c)
      row.ctx[c] +=
          weights[j] / sum * in.v[(b * s.seq + j) * s.v_pitch + kv_head * s.value_dim + c];
  return row;
}

/// The head `from` of every row of a matrix becomes its head `to`.
void copy_head(std::vector<float>& to_rows, int64_t to_pitch, int64_t to,
               const std::vector<float>& rows, int64_t pitch, int64_t from, int64_t cols) {
  for (size_t r = 0; r < rows.size() / pitch; ++r)
    std::copy_n(rows.begin() + r * pitch + from * cols, cols,
                to_rows.begin() + r * to_pitch + to * cols);
}

}  // namespace

TEST_CASE("reference attention is the softmax over the keys that a query sees, and its sink") {
  for (uint64_t number = 0; number < 24; ++number) {
    const Attend a = random_attend(number, 12, 6);
    INFO(a.text());
    const auto in = random_operands(a, 2).as<double>();
    const auto out = attend(kernels::reference_table(), a, in);
    for (int64_t b = 0; b < a.s.batch; ++b)
      for (int64_t h = 0; h < a.s.heads; ++h)
        for (int64_t i = 0; i < a.s.seq; ++i) {
          const Row want = row_by_formula(a, in, b, h, i);
          CHECK(out.lse[(b * a.s.heads + h) * a.s.seq + i] == Approx(want.lse).margin(1e-12));
          for (int64_t c = 0; c < a.s.value_dim; ++c)
            CHECK(out.ctx[((b * a.s.seq + i) * a.s.heads + h) * a.s.value_dim + c] ==
                  Approx(want.ctx[c]).margin(1e-12));
        }
  }
}

TEST_CASE("attention of every form agrees with the reference") {
  for (uint64_t number = 0; number < 150; ++number) {
    const Attend a = random_attend(number, 150, 90);
    INFO(a.text());
    agree(2e-4, [&](const auto& k, auto zero) {
      return joined(attend(k, a, random_operands(a, number % 5 == 0 ? 6 : 1).as<decltype(zero)>()));
    });
  }
}

TEST_CASE("attention of whole tiles in windows of every size agrees with the reference") {
  for (const int64_t window : {0, 1, 2, 7, 8, 9, 16, 31, 32, 33, 64, 95, 96, 97, 1000}) {
    Attend a = {{1, 96, 4, 64}, true};
    a.s.kv_heads = 2;
    a.s.window = window;
    a.s = apart(a.s);
    INFO(a.text());
    agree(2e-4, [&](const auto& k, auto zero) {
      return joined(attend(k, a, random_operands(a).as<decltype(zero)>()));
    });
  }
}

TEST_CASE("attention of q, k and v has the bits of attention of one qkv") {
  for (const AttentionShape& fused : {AttentionShape{2, 70, 3, 17}, AttentionShape{1, 64, 2, 32},
                                      AttentionShape{1, 96, 12, 64}}) {
    const Attend a = {apart(fused)};
    const auto in = random_operands(a);
    const int64_t d = fused.heads * fused.head_dim;
    std::vector<float> qkv(3 * in.q.size());
    for (const auto* part : {&in.q, &in.k, &in.v}) {
      const int64_t block = part == &in.q ? 0 : part == &in.k ? 1 : 2;
      copy_head(qkv, 3 * d, block, *part, d, 0, d);
    }
    for (const auto* k : kernels::runnable_tables()) {
      const auto want = attend(*k, a, in);
      std::vector<float> ctx(want.ctx.size()), lse(want.lse.size()), dqkv(qkv.size());
      auto work = work_for(*k, fused);
      k->attention(ctx.data(), lse.data(), in_qkv(qkv.data(), fused), fused, work.data(), nullptr);
      k->attention_dx(out_qkv(dqkv.data(), fused), in.dctx.data(), ctx.data(),
                      in_qkv(qkv.data(), fused), lse.data(), fused, work.data(), nullptr);
      CHECK(ctx == want.ctx);
      CHECK(lse == want.lse);
      std::vector<float> part(in.q.size());
      for (int64_t block = 0; block < 3; ++block) {
        copy_head(part, d, 0, dqkv, 3 * d, block, d);
        CHECK(part == (block == 0 ? want.dq : block == 1 ? want.dk : want.dv));
      }
    }
  }
}

TEST_CASE("grouped queries have the bits of keys and values that are repeated for each") {
  Attend few = {{2, 45, 6, 24}, true};
  few.s.kv_heads = 2;
  few.s.value_dim = 40;
  few.s.window = 20;
  Attend many = few;
  many.s.kv_heads = 6;
  few.s = apart(few.s);
  many.s = apart(many.s);
  const auto in = random_operands(few);
  auto repeated = random_operands(many);
  repeated.q = in.q;
  for (int64_t h = 0; h < 6; ++h) {
    copy_head(repeated.k, many.s.k_pitch, h, in.k, few.s.k_pitch, h / 3, 24);
    copy_head(repeated.v, many.s.v_pitch, h, in.v, few.s.v_pitch, h / 3, 40);
  }
  for (const auto* k : kernels::runnable_tables()) {
    const auto got = attend(*k, few, in), want = attend(*k, many, repeated);
    CHECK(got.ctx == want.ctx);
    CHECK(got.lse == want.lse);
    CHECK(got.dq == want.dq);
    CHECK(got.dsinks == want.dsinks);
    for (size_t i = 0; i < got.dk.size(); ++i) {
      const size_t row = i / 48, h = i % 48 / 24, c = i % 24;
      float sum = 0;
      for (size_t one = 3 * h; one < 3 * h + 3; ++one) sum += want.dk[row * 144 + one * 24 + c];
      CHECK(got.dk[i] == Approx(sum).margin(1e-6));
    }
  }
}

TEST_CASE("a query's context does not depend on keys before its window, bit for bit") {
  Attend a = {{1, 90, 2, 32}};
  a.s.window = 21;
  a.s = apart(a.s);
  for (const auto* k : kernels::runnable_tables()) {
    auto in = random_operands(a);
    const auto before = attend(*k, a, in);
    for (int64_t i = 0; i < 40 * 64; ++i) in.k[i] += 3, in.v[i] -= 5;
    const auto after = attend(*k, a, in);
    CHECK(std::equal(before.ctx.begin() + 60 * 64, before.ctx.end(), after.ctx.begin() + 60 * 64));
    CHECK(std::equal(before.dq.begin() + 60 * 64, before.dq.end(), after.dq.begin() + 60 * 64));
    CHECK(!std::equal(before.ctx.begin() + 59 * 64, before.ctx.begin() + 60 * 64,
                      after.ctx.begin() + 59 * 64));
  }
}

TEST_CASE("a sink that is far above all scores leaves a context of 0, one far below changes none") {
  const Attend with = {apart({1, 40, 2, 16}), true}, without = {with.s, false};
  for (const auto* k : kernels::runnable_tables()) {
    auto in = random_operands(with);
    in.sinks = {300, -300};
    const auto got = attend(*k, with, in);
    in.sinks.clear();
    const auto want = attend(*k, without, in);
    for (size_t i = 0; i < got.ctx.size(); ++i)
      CHECK(got.ctx[i] == (i / 16 % 2 == 0 ? 0 : want.ctx[i]));
    CHECK(got.lse[39] == Approx(300));
    CHECK(got.lse[40] == want.lse[40]);
  }
}

namespace {

/// Attention of the queries of one sequence in two calls, the keys of the second before its first
/// query; gradients of both are added up.
template <class T>
std::vector<T> in_two_calls(const kernels::KernelTable<T>& k, const Attend& a, int64_t first,
                            const AttendOperands<T>& in) {
  const AttentionShape& s = a.s;
  const int64_t ctx_cols = s.heads * s.value_dim;
  std::vector<T> ctx(static_cast<size_t>(s.seq * ctx_cols)), lse(s.heads * s.seq);
  std::vector<T> dq(in.q.size()), dk(in.k.size()), dv(in.v.size());
  auto work = work_for(k, s);
  for (const bool second : {true, false}) {
    AttentionShape part = s;
    part.first = second ? first : 0;
    part.seq = second ? s.seq : first;
    part.add = true;
    const int64_t row = part.first;
    kernels::AttentionIn<T> from = in.in();
    from.q += row * s.q_pitch;
    T *const to = ctx.data() + row * ctx_cols, *const sums = lse.data() + row * s.heads;
    k.attention(to, sums, from, part, work.data(), nullptr);
    k.attention_dx({dq.data() + row * s.q_pitch, dk.data(), dv.data()},
                   in.dctx.data() + row * ctx_cols, to, from, sums, part, work.data(), nullptr);
  }
  std::vector<T> all = ctx;
  for (const auto* part : {&dq, &dk, &dv}) all.insert(all.end(), part->begin(), part->end());
  return all;
}

}  // namespace

TEST_CASE("attention of some queries after others is that of all at once") {
  for (uint64_t number = 0; number < 60; ++number) {
    Attend a = random_attend(number, 150, 90);
    a.s.batch = 1, a.s = apart(a.s);
    a.s.seq += 1;
    const int64_t first = 1 + static_cast<int64_t>(number * 37) % (a.s.seq - 1);
    INFO(a.text() << " first " << first);
    const auto in = random_operands(a);
    const auto exact = in.as<double>();
    const auto want = attend(kernels::reference_table(), a, exact);
    std::vector<double> all = want.ctx;
    for (const auto* part : {&want.dq, &want.dk, &want.dv})
      all.insert(all.end(), part->begin(), part->end());
    const auto reference = in_two_calls(kernels::reference_table(), a, first, exact);
    REQUIRE(reference.size() == all.size());
    for (size_t i = 0; i < all.size(); ++i) CHECK(reference[i] == Approx(all[i]).margin(1e-12));
    for (const auto* k : kernels::runnable_tables()) {
      const auto got = in_two_calls(*k, a, first, in);
      for (size_t i = 0; i < all.size(); ++i) CHECK(got[i] == Approx(all[i]).margin(2e-4));
    }
  }
}

namespace {

/// The context and the gradients of the queries from `first` on, of one sequence: attention to the
/// keys before `first` and to the others, joined by the log-sum-exps.
template <class T>
std::vector<double> in_two_steps(const kernels::KernelTable<T>& k, const Attend& a, int64_t first,
                                 const AttendOperands<T>& in) {
  AttentionShape before = a.s, own = a.s;
  before.first = before.known = first, own.seq = a.s.seq - first;
  before.add = own.add = true;
  const int64_t n = own.seq, cols = a.s.heads * a.s.value_dim, sums = a.s.heads * n;
  auto work = work_for(k, a.s);
  std::vector<T> ctx[2], lse[2];
  kernels::AttentionIn<T> from[2] = {in.in(), in.in()};
  from[0].sinks = nullptr;
  for (auto& f : from) f.q += first * a.s.q_pitch;
  from[1].k += first * a.s.k_pitch, from[1].v += first * a.s.v_pitch;
  for (int i : {0, 1}) {
    ctx[i].resize(static_cast<size_t>(n * cols)), lse[i].resize(static_cast<size_t>(sums));
    k.attention(ctx[i].data(), lse[i].data(), from[i], i == 0 ? before : own, work.data(), nullptr);
  }
  std::vector<T> joined(static_cast<size_t>(sums)), all(static_cast<size_t>(n * cols));
  for (int64_t i = 0; i < n * cols; ++i) {
    const int64_t row = i / cols, head = i % cols / a.s.value_dim, at = head * n + row;
    const double top = std::max(lse[0][at], lse[1][at]);
    joined[at] =
        static_cast<T>(top + std::log(std::exp(lse[0][at] - top) + std::exp(lse[1][at] - top)));
    for (int s : {0, 1}) {
      all[i] += static_cast<T>(std::exp(static_cast<double>(lse[s][at] - joined[at])) * ctx[s][i]);
    }
  }
  std::vector<T> dq[2] = {std::vector<T>(in.q.size()), std::vector<T>(in.q.size())};
  std::vector<T> dk(in.k.size()), dv(in.v.size());
  for (int i : {0, 1}) {
    const int64_t keys = i == 0 ? 0 : first;
    k.attention_dx({dq[i].data() + first * a.s.q_pitch, dk.data() + keys * a.s.k_pitch,
                    dv.data() + keys * a.s.v_pitch},
                   in.dctx.data() + first * cols, all.data(), from[i], joined.data(),
                   i == 0 ? before : own, work.data(), nullptr);
  }
  std::vector<double> results(all.begin(), all.end());
  for (size_t i = 0; i < dq[0].size(); ++i) results.push_back(dq[0][i] + dq[1][i]);
  for (const auto* part : {&dk, &dv}) results.insert(results.end(), part->begin(), part->end());
  return results;
}

}  // namespace

TEST_CASE("attention to keys before all queries, and to the others, joins to that to all") {
  for (uint64_t number = 0; number < 60; number += 2) {
    Attend a = random_attend(number, 150, 90);
    a.s.batch = 1, a.s = apart(a.s);
    a.s.seq += 1;
    const int64_t first = 1 + static_cast<int64_t>(number * 37) % (a.s.seq - 1);
    INFO(a.text() << " first " << first);
    auto in = random_operands(a);
    // The queries before have no part in the gradients.
    std::fill_n(in.dctx.begin(), first * a.s.heads * a.s.value_dim, 0.f);
    const auto exact = in.as<double>();
    const auto want = attend(kernels::reference_table(), a, exact);
    std::vector<double> all(want.ctx.begin() + first * a.s.heads * a.s.value_dim, want.ctx.end());
    for (const auto* part : {&want.dq, &want.dk, &want.dv})
      all.insert(all.end(), part->begin(), part->end());
    const auto reference = in_two_steps(kernels::reference_table(), a, first, exact);
    REQUIRE(reference.size() == all.size());
    for (size_t i = 0; i < all.size(); ++i) CHECK(reference[i] == Approx(all[i]).margin(1e-12));
    for (const auto* k : kernels::runnable_tables()) {
      const auto got = in_two_steps(*k, a, first, in);
      for (size_t i = 0; i < all.size(); ++i) CHECK(got[i] == Approx(all[i]).margin(2e-4));
    }
  }
}
