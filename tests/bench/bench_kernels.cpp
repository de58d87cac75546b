// Times each kernel on one thread, in the thread's CPU time, at the sizes of three models. Bytes
// count each array once per read and once per write; flops count a multiply and an add. The bound
// is the larger of bytes over the bandwidth of a memcpy that moves as many bytes and flops over the
// rate of a large GEMM, both measured in this run. The last column is bound / time, above 1 where
// data stays in a cache that memcpy's two buffers do not fit.
// usage: bench_kernels [part of a kernel's name]
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace {

using namespace moe::kernels;
using Values = std::vector<float>;

struct Times {
  double median, low, high;  // seconds; low and high are the quartiles
  size_t samples;
};

Times time_of(const std::function<void()>& body) {
  const auto now = [] {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const auto run = [&](int64_t repeats) {
    const double begin = now();
    for (int64_t i = 0; i < repeats; ++i) body();
    return (now() - begin) / static_cast<double>(repeats);
  };
  const double first = std::min(run(1), run(1));
  const int64_t repeats = std::max<int64_t>(1, static_cast<int64_t>(1e-4 / first));
  std::vector<double> samples(first > 0.02 ? 5 : 21);
  for (double& s : samples) s = run(repeats);
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size();
  return {samples[n / 2], samples[n / 4], samples[n - 1 - n / 4], n};
}

Values values(int64_t n) {
  Values v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<float>(i * 2654435761u % 2048) / 1024 - 1;
  return v;
}

using Gemm = decltype(KernelTable<float>::gemm);

double gemm_flops_per_s(Gemm gemm) {
  const int64_t m = 512, n = 768, k = 3072;
  const Values a = values(m * k), b = values(n * k);
  Values c = values(m * n);
  const Times t = time_of(
      [&] { gemm(false, true, m, n, k, 1, a.data(), k, b.data(), k, 0, c.data(), n, nullptr); });
  return 2.0 * m * n * k / t.median;
}

double memcpy_bytes_per_s(double moved) {
  const auto size = static_cast<size_t>(std::max(64.0, moved / 2));
  std::vector<char> from(size, 1), to(size);
  const Times t = time_of([&] { std::memcpy(to.data(), from.data(), size); });
  return 2.0 * size / t.median;
}

struct Bench {
  std::string filter;
  double gemm_rate;

  void row(const std::string& name, double floats, double flops,
           const std::function<void()>& body) const {
    if (name.find(filter) == std::string::npos) return;
    const double bytes = 4 * floats;
    const Times t = time_of(body);
    const double bound = std::max(bytes / memcpy_bytes_per_s(bytes), flops / gemm_rate);
    fmt::print("{:22} {:9.1f} us  [{:.1f}, {:.1f}] of {:2}  {:6.1f} GB/s {:7.1f} GFLOP/s  {:.2f}\n",
               name, t.median * 1e6, t.low * 1e6, t.high * 1e6, t.samples, bytes / t.median * 1e-9,
               flops / t.median * 1e-9, bound / t.median);
  }
};

struct Model {
  const char* name;
  int64_t batch, seq, heads, head_dim, vocab, experts;
};

/// y = x w^T with x [n, in] and w [out, in], and its two gradients.
void gemm_rows(const Bench& bench, const std::string& name, Gemm gemm, int64_t n, int64_t in,
               int64_t out) {
  const Values x = values(n * in), w = values(out * in), dy = values(n * out);
  Values y = values(n * out), dx = values(n * in), dw = values(out * in);
  const double floats = n * in + out * in + n * out, flops = 2.0 * n * in * out;
  bench.row("gemm " + name, floats, flops, [&] {
    gemm(false, true, n, out, in, 1, x.data(), in, w.data(), in, 0, y.data(), out, nullptr);
  });
  bench.row("gemm dx " + name, floats, flops, [&] {
    gemm(false, false, n, in, out, 1, dy.data(), out, w.data(), in, 0, dx.data(), in, nullptr);
  });
  bench.row("gemm dw " + name, floats, flops, [&] {
    gemm(true, false, out, in, n, 1, dy.data(), out, x.data(), in, 0, dw.data(), in, nullptr);
  });
}

void elementwise_rows(const Bench& bench, const KernelTable<float>& k, int64_t n, int64_t h) {
  const Values x = values(n * 4 * h), dy = values(n * 4 * h), b = values(4 * h);
  Values y = values(n * 4 * h), w = values(4 * h), v = values(4 * h), mean(n), rstd(n, 1.0f);
  const double wide = 4.0 * n * h, nh = 1.0 * n * h;
  bench.row("gelu", 2 * wide, 0, [&] { k.gelu(y.data(), x.data(), b.data(), n, 4 * h, nullptr); });
  bench.row("gelu_dx", 3 * wide, 0,
            [&] { k.gelu_dx(y.data(), dy.data(), x.data(), b.data(), n, 4 * h, nullptr); });
  bench.row("silu_mul", 1.5 * wide, 0,
            [&] { k.silu_mul(y.data(), x.data(), {}, n, 2 * h, nullptr); });
  bench.row("silu_mul_dx", 2.5 * wide, 0,
            [&] { k.silu_mul_dx(y.data(), dy.data(), x.data(), {}, n, 2 * h, nullptr); });
  bench.row("sigmoid", 2 * wide, 0,
            [&] { k.map(y.data(), x.data(), Map::kSigmoid, 0, nullptr, n * 4 * h, nullptr); });
  bench.row("mul", 3 * wide, 0,
            [&] { k.mul(y.data(), x.data(), dy.data(), nullptr, n, 4 * h, false, nullptr); });
  bench.row("bias_grad", wide, 0,
            [&] { k.bias_grad(w.data(), dy.data(), nullptr, n, 4 * h, nullptr); });
  bench.row("layernorm", 2 * nh, 0, [&] {
    k.layernorm(y.data(), mean.data(), rstd.data(), x.data(), b.data(), b.data(), n, h, nullptr);
  });
  bench.row("layernorm_dx", 4 * nh, 0, [&] {
    k.layernorm_dx(y.data(), dy.data(), x.data(), mean.data(), rstd.data(), b.data(), dy.data(), n,
                   h, nullptr);
  });
  bench.row("layernorm_dw", 2 * nh, 0, [&] {
    k.layernorm_dw(w.data(), v.data(), dy.data(), x.data(), mean.data(), rstd.data(), nullptr,
                   nullptr, n, h, nullptr);
  });
  bench.row("rmsnorm", 2 * nh, 0,
            [&] { k.rmsnorm(y.data(), rstd.data(), x.data(), b.data(), 1e-6f, n, h, nullptr); });
  bench.row("rmsnorm_dx", 4 * nh, 0, [&] {
    k.rmsnorm_dx(y.data(), dy.data(), x.data(), rstd.data(), b.data(), dy.data(), n, h, nullptr);
  });
  bench.row("rmsnorm_dw", 2 * nh, 0, [&] {
    k.rmsnorm_dw(w.data(), dy.data(), x.data(), rstd.data(), nullptr, n, h, nullptr);
  });
  for (const bool interleaved : {false, true}) {
    const RopeShape turned = {n, n, 1, h, 0, h / 2, interleaved};
    bench.row(interleaved ? "rope interleaved" : "rope", 3 * nh, 0,
              [&] { k.rope(y.data(), x.data(), dy.data(), turned, nullptr); });
  }
  bench.row("add", 3 * nh, 0, [&] { k.add(y.data(), x.data(), dy.data(), n * h, nullptr); });
  Values p = values(12 * h * h), velocity = p;
  const Values g = p;
  bench.row("sgd", 5.0 * 12 * h * h, 0,
            [&] { k.sgd(p.data(), velocity.data(), g.data(), 1e-9f, 0.9f, 12 * h * h, nullptr); });
  Values second(p.size(), 0.01f);
  const int64_t step = 1000;
  bench.row("adamw", 7.0 * 12 * h * h, 0, [&] {
    k.adamw(p.data(), velocity.data(), second.data(), g.data(), {0.9, 0.999, 1e-8, 1e-9, 1}, &step,
            12 * h * h, nullptr);
  });
}

void attention_rows(const Bench& bench, const KernelTable<float>& k, const Model& m) {
  const AttentionShape s = {m.batch, m.seq, m.heads, m.head_dim};
  const int64_t nh = m.batch * m.seq * m.heads * m.head_dim, n = m.batch * m.seq;
  const Values qkv = values(3 * nh), dctx = values(nh);
  Values ctx(nh), lse(n * m.heads), dqkv(3 * nh);
  std::vector<char> work(static_cast<size_t>(k.attention_work_bytes(s)));
  const double product = 1.0 * nh * (m.seq + 1);  // flops of one product over the causal half
  bench.row("attention", 4 * nh, 2 * product, [&] {
    k.attention(ctx.data(), lse.data(), in_qkv(qkv.data(), s), s, work.data(), nullptr);
  });
  bench.row("attention_dx", 8 * nh, 5 * product, [&] {
    k.attention_dx(out_qkv(dqkv.data(), s), dctx.data(), ctx.data(), in_qkv(qkv.data(), s),
                   lse.data(), s, work.data(), nullptr);
  });
  const int64_t scores = n * m.heads * m.seq;
  Values score(scores), prob(scores), dprob(scores);
  bench.row("attn score..context", 4 * nh + 4 * scores, 2 * product, [&] {
    k.attn_score(score.data(), qkv.data(), s, nullptr);
    k.attn_softmax(prob.data(), score.data(), s, nullptr);
    k.attn_context(ctx.data(), prob.data(), qkv.data(), s, nullptr);
  });
  bench.row("attn ..._dx", 7 * nh + 6 * scores, 4 * product, [&] {
    k.attn_context_dx(dprob.data(), dqkv.data(), dctx.data(), prob.data(), qkv.data(), s, nullptr);
    k.attn_softmax_dx(score.data(), dprob.data(), prob.data(), s, nullptr);
    k.attn_score_dx(dqkv.data(), score.data(), qkv.data(), s, nullptr);
  });
}

/// Four query heads for each head of k and v.
void attend_rows(const Bench& bench, const KernelTable<float>& k, const Model& m) {
  AttentionShape s = {m.batch, m.seq, m.heads, m.head_dim};
  s.kv_heads = m.heads / 4;
  s.q_pitch = m.heads * m.head_dim;
  s.k_pitch = s.v_pitch = s.kv_heads * m.head_dim;
  const int64_t rows = m.batch * m.seq, nq = rows * s.q_pitch, nk = rows * s.k_pitch;
  const Values q = values(nq), key = values(nk), v = values(nk), dctx = values(nq);
  Values ctx(nq), lse(rows * m.heads), dq(nq), dk(nk), dv(nk);
  std::vector<char> work(static_cast<size_t>(k.attention_work_bytes(s)));
  const AttentionIn<float> in = {q.data(), key.data(), v.data()};
  for (const int64_t window : {int64_t{0}, m.seq / 4}) {
    s.window = window;
    const int64_t unseen = window == 0 ? 0 : m.seq - window;
    const double product =
        1.0 * m.batch * s.q_pitch * (m.seq * (m.seq + 1) - unseen * (unseen + 1));
    const std::string name = window == 0 ? "attend" : "attend, window";
    bench.row(name, 2 * (nq + nk), 2 * product,
              [&] { k.attention(ctx.data(), lse.data(), in, s, work.data(), nullptr); });
    bench.row(name + " dx", 4 * (nq + nk), 5 * product, [&] {
      k.attention_dx({dq.data(), dk.data(), dv.data()}, dctx.data(), ctx.data(), in, lse.data(), s,
                     work.data(), nullptr);
    });
  }
}

void moe_rows(const Bench& bench, const KernelTable<float>& k, const Model& m) {
  const int64_t n = m.batch * m.seq, h = m.heads * m.head_dim, e = m.experts;
  const Values x = values(n * h), w = values(e * h), weight = values(n);
  Values logits(n * e), p(n * e), y = values(n * h), dweight(n);
  std::vector<int32_t> map(n), expert(n);
  for (int64_t t = 0; t < n; ++t) map[t] = static_cast<int32_t>(t * 37 % n);
  for (int64_t t = 0; t < n; ++t) expert[t] = static_cast<int32_t>(t % e);
  bench.row("gate_logits", n * h + e * h + n * e, 2.0 * n * h * e,
            [&] { k.gate_logits(logits.data(), x.data(), w.data(), nullptr, n, e, h, nullptr); });
  bench.row("gate_scores", 2 * n * e, 0,
            [&] { k.gate_scores(p.data(), logits.data(), ScoreRule::kSoftmax, n, e, nullptr); });
  bench.row("gate_dlogits", 2 * n * e, 0, [&] {
    k.gate_dlogits(logits.data(), weight.data(), p.data(), expert.data(), WeightRule::kProb,
                   ScoreRule::kSoftmax, n, e, 1, nullptr);
  });
  bench.row("dispatch", 2 * n * h, 0,
            [&] { k.dispatch(y.data(), x.data(), map.data(), n, 1, h, nullptr); });
  const Values residual = values(n * h);
  bench.row("combine", 3 * n * h, 0, [&] {
    k.combine(y.data(), x.data(), weight.data(), map.data(), residual.data(), n, 1, h, nullptr);
  });
  bench.row("combine_dx", 2 * n * h, 0,
            [&] { k.combine_dx(y.data(), x.data(), weight.data(), map.data(), n, 1, h, nullptr); });
  bench.row("combine_dweight", 2 * n * h, 0, [&] {
    k.combine_dweight(dweight.data(), residual.data(), x.data(), map.data(), n, 1, h, nullptr);
  });
}

void vocabulary_rows(const Bench& bench, const KernelTable<float>& k, const Model& m) {
  const int64_t n = m.batch * m.seq, h = m.heads * m.head_dim;
  std::vector<int32_t> ids(n);
  for (int64_t t = 0; t < n; ++t) ids[t] = static_cast<int32_t>(t * 7919 % m.vocab);
  Values logits = values(n * m.vocab), x = values(n * h), dwte = values(m.vocab * h);
  const Values wte = values(m.vocab * h), wpe = values(m.seq * h);
  double loss;
  bench.row("cross_entropy", 2 * n * m.vocab, 0, [&] {
    k.cross_entropy(&loss, logits.data(), ids.data(), 1.0, true, n, m.vocab, nullptr);
  });
  bench.row("embedding", 3 * n * h, 0, [&] {
    k.embedding(x.data(), ids.data(), wte.data(), wpe.data(), n, m.seq, h, nullptr);
  });
  bench.row("embedding_dwte", 3 * n * h, 0, [&] {
    k.embedding_dwte(dwte.data(), ids.data(), x.data(), dwte.data(), n, m.vocab, h, nullptr);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const KernelTable<float>& k = fast_table();
  const Bench bench = {argc > 1 ? argv[1] : "", gemm_flops_per_s(k.gemm)};
  fmt::print("{}: gemm {:.0f} GFLOP/s; memcpy of 1 MB {:.0f} GB/s, of 64 MB {:.0f}\n", kernel_set(),
             bench.gemm_rate * 1e-9, memcpy_bytes_per_s(2e6) * 1e-9,
             memcpy_bytes_per_s(128e6) * 1e-9);
  const std::vector<Model> models = {{"tiny", 8, 64, 4, 32, 512, 4},
                                     {"small", 8, 128, 8, 32, 4096, 8},
                                     {"gpt2", 1, 512, 12, 64, 50257, 16}};
  for (const Model& m : models) {
    const int64_t n = m.batch * m.seq, h = m.heads * m.head_dim;
    fmt::print("\n{}: {} x {} tokens, hidden {} ({} heads), vocabulary {}, {} experts\n", m.name,
               m.batch, m.seq, h, m.heads, m.vocab, m.experts);
    gemm_rows(bench, "fc1", k.gemm, n, h, 4 * h);
    gemm_rows(bench, "fc2", k.gemm, n, 4 * h, h);
    gemm_rows(bench, "expert", k.gemm, n * 5 / 4 / m.experts, h, 4 * h);
    elementwise_rows(bench, k, n, h);
    attention_rows(bench, k, m);
    attend_rows(bench, k, m);
    moe_rows(bench, k, m);
    vocabulary_rows(bench, k, m);
  }
}
