// Times the plugin's kernels on the GPU at the sizes of a training step, one JSON object a line:
// samples in microseconds per call, bytes or flops of a call, the rates, their ratios to this
// card's own copy rate and large GEMM in the same run, and what is aimed at. Where a row does not
// name bfloat16 the kernels are float32; targets that were set for bfloat16 say so. usage:
// bench_gpu [--quick] [--device] [part of a bench's name]
//   --device: only one line with the device and its versions
// Status: 0, 1 something failed, 77 there is no GPU.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "tests/gpu/bench.h"
#include "tests/gpu/bench_products.h"

namespace {

using namespace moe;
using namespace moe::test;
using Ints = std::vector<int32_t>;
using Floats = DeviceArray<float>;

constexpr int64_t kTokens = 16384;

/// Copies of `mib` MiB each, through pieces of arrays that no cache holds.
void copies(Bench& bench, const std::string& name, int64_t mib = 512) {
  const int64_t n = int64_t{512} << 18, piece = mib << 18;
  const Floats from = bench.random(n), to = bench.random(n);
  bench.row(name, std::to_string(mib) + " MiB on the device", bench.time([&](int64_t i) {
    const int64_t at = i % (n / piece) * piece;
    bench.gpu().copy(to.data() + at, from.data() + at, 4 * piece, bench.stream());
  }),
            {.bytes = 8.0 * static_cast<double>(piece)});
}

/// y[m,n] = x[m,k] w[n,k]^T, `experts` times one after the other.
void gemm(Bench& bench, const std::string& name, int64_t experts, int64_t m, int64_t n, int64_t k,
          std::optional<Target> target = {}) {
  if (name != kBaseGemm && !bench.wants(name)) return;
  struct Set {
    Floats x, w, y;
  };
  const auto sets = each_set(experts, [&] {
    return Set{bench.random(m * k), bench.random(n * k), bench.random(m * n)};
  });
  const Call call = [&](int64_t) {
    for (const Set& s : sets)
      bench.kernels().gemm(false, true, m, n, k, 1, s.x.data(), k, s.w.data(), k, 0, s.y.data(), n,
                           bench.stream());
  };
  bench.row(name,
            std::to_string(experts) + " times " + std::to_string(m) + " x " + std::to_string(n) +
                " x " + std::to_string(k) + ", float32",
            bench.time(call),
            {.flops = 2.0 * static_cast<double>(experts) * static_cast<double>(m) *
                      static_cast<double>(n) * static_cast<double>(k)},
            target);
}

void gemms(Bench& bench) {
  const char* note = "set for bfloat16 and a padded batch";
  gemm(bench, "gemm expert 768", 8, 2048, 3072, 768, Target{540, "TFLOP/s", false, note});
  gemm(bench, "gemm expert 2048", 8, 2048, 8192, 2048, Target{610, "TFLOP/s", false, note});
  gemm(bench, "gemm expert 4096", 8, 2048, 14336, 4096, Target{640, "TFLOP/s", false, note});
}

void router(Bench& bench, int64_t k) {
  const std::string name = "router top" + std::to_string(k);
  if (!bench.wants(name)) return;
  const int64_t experts = 64, n = kTokens * experts, capacity = kTokens * k * 5 / 4 / experts;
  struct Set {
    Floats logits, p, weight;
    DeviceArray<int32_t> expert, choice_slot, slot_choice, counts;
    DeviceArray<char> work;
  };
  const auto& gpu = bench.gpu();
  const auto sets = each_set(Bench::sets(8.0 * static_cast<double>(n)), [&] {
    return Set{bench.random(n),
               bench.random(n),
               bench.random(kTokens * k),
               {gpu, kTokens * k},
               {gpu, kTokens * k},
               {gpu, experts * capacity},
               {gpu, experts},
               {gpu, gpu.top_k_work_bytes(kTokens, experts, k)}};
  });
  const Call call = [&](int64_t i) {
    const Set& s = turn(sets, i);
    gpu.route_top_k({.tokens = kTokens,
                     .experts = experts,
                     .k = k,
                     .capacity = capacity,
                     .logits = s.logits.data(),
                     .scores = s.p.data(),
                     .expert = s.expert.data(),
                     .choice_slot = s.choice_slot.data(),
                     .slot_choice = s.slot_choice.data(),
                     .counts = s.counts.data(),
                     .weight = s.weight.data(),
                     .rule = kernels::WeightRule::kRenorm,
                     .score = kernels::ScoreRule::kSoftmax,
                     .work = s.work.data()},
                    bench.stream());
  };
  const std::string what = "16384 tokens, 64 experts: softmax, best experts, places, weights";
  const Target target = {10, "median_us", true, "on an H200"};
  bench.row(name, what, bench.time(call), {}, target);
  bench.row(name + " recorded", what, bench.time_recorded(static_cast<int64_t>(sets.size()), call),
            {}, target);
}

/// A gate before its routing: logits from rows in bfloat16, and scores and their gradient.
void gate(Bench& bench) {
  if (!bench.wants("gate logits bf16") && !bench.wants("gate scores") &&
      !bench.wants("gate dlogits"))
    return;
  const int64_t experts = 64, hidden = 768, n = kTokens * experts;
  struct Set {
    DeviceArray<kernels::Bf16> x;
    Floats w, logits, p;
  };
  const auto sets = each_set(4, [&] {
    return Set{bench.random<kernels::Bf16>(kTokens * hidden), bench.random(experts * hidden),
               bench.random(n), bench.random(n)};
  });
  const Floats dweight = bench.random(kTokens);
  Ints ids(kTokens);
  for (size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<int32_t>(t * 7919 % experts);
  const DeviceArray<int32_t> expert(bench.gpu(), ids);
  const double row = 4.0 * static_cast<double>(n);
  const auto show = [&](const std::string& name, const char* what, Work work, const Call& call) {
    if (!bench.wants(name)) return;
    bench.row(name, what, bench.time(call), work);
    bench.row(name + " recorded", what,
              bench.time_recorded(static_cast<int64_t>(sets.size()), call), work);
  };
  if (bench.gpu().mixed)
    show("gate logits bf16", "16384 tokens of 768 bfloat16, 64 experts, sums in float32",
         {.bytes = row + 2.0 * static_cast<double>(kTokens * hidden),
          .flops = 2.0 * static_cast<double>(n * hidden)},
         [&](int64_t i) {
           const Set& s = turn(sets, i);
           bench.gpu().mixed->gate_logits(s.logits.data(), s.x.data(), s.w.data(), nullptr, kTokens,
                                          experts, hidden, bench.stream());
         });
  show("gate scores", "16384 tokens, 64 experts: softmax", {.bytes = 2 * row}, [&](int64_t i) {
    const Set& s = turn(sets, i);
    bench.kernels().gate_scores(s.p.data(), s.logits.data(), kernels::ScoreRule::kSoftmax, kTokens,
                                experts, bench.stream());
  });
  show("gate dlogits", "16384 tokens, 64 experts, top 1: softmax", {.bytes = 2 * row},
       [&](int64_t i) {
         const Set& s = turn(sets, i);
         bench.kernels().gate_dlogits(s.logits.data(), dweight.data(), s.p.data(), expert.data(),
                                      kernels::WeightRule::kProb, kernels::ScoreRule::kSoftmax,
                                      kTokens, experts, 1, bench.stream());
       });
}

/// Updates of tensors of these sizes, a call each, as a step has them.
void updates(Bench& bench, const std::string& name, const std::string& what,
             const std::vector<int64_t>& sizes) {
  if (!bench.wants("sgd " + name) && !bench.wants("adamw " + name)) return;
  struct Set {
    Floats w, m, v, g;
    int64_t n;
  };
  std::vector<Set> sets;
  double all = 0;
  for (const int64_t n : sizes) {
    sets.push_back({bench.random(n), bench.random(n), bench.random(n), bench.random(n), n});
    bench.gpu().fill(sets.back().v.data(), 0, sets.back().v.bytes(), bench.stream());
    all += static_cast<double>(n);
  }
  const DeviceArray<int64_t> step(bench.gpu(), std::vector<int64_t>{7});
  const kernels::AdamwRates rates = {0.9, 0.999, 1e-8, 1e-4, 0.01};
  const auto show = [&](const std::string& rule, double numbers, const Call& call) {
    const Work work = {.bytes = 4 * numbers * all};
    if (!bench.wants(rule + name)) return;
    bench.row(rule + name, what, bench.time(call), work);
    bench.row(rule + name + " recorded", what, bench.time_recorded(1, call), work);
  };
  show("sgd ", 5, [&](int64_t) {
    for (const Set& s : sets)
      bench.kernels().sgd(s.w.data(), s.m.data(), s.g.data(), 1e-4F, 0.9F, s.n, bench.stream());
  });
  show("adamw ", 7, [&](int64_t) {
    for (const Set& s : sets)
      bench.kernels().adamw(s.w.data(), s.m.data(), s.v.data(), s.g.data(), rates, step.data(), s.n,
                            bench.stream());
  });
}

void updates(Bench& bench) {
  constexpr int64_t kVocab = 50257, kHidden = 768, kLayers = 12;
  updates(bench, "of one", "one tensor of 50257 x 768", {kVocab * kHidden});
  std::vector<int64_t> sizes = {kVocab * kHidden, 1024 * kHidden, kHidden, kHidden};
  for (int64_t layer = 0; layer < kLayers; ++layer)
    for (const int64_t rows :
         {int64_t{1}, int64_t{1}, 3 * kHidden, int64_t{3}, kHidden, int64_t{1}, int64_t{1},
          int64_t{1}, 4 * kHidden, int64_t{4}, 4 * kHidden, int64_t{1}})
      sizes.push_back(rows * kHidden);
  updates(bench, "of many", "the 148 tensors of GPT-2 small", sizes);
}

template <class T>
void attention(Bench& bench, const kernels::KernelTable<T>& k, const std::string& type,
               const char* note, bool own = true) {
  const std::string forward = "attention forward " + type, backward = "attention backward " + type;
  if (!bench.wants(forward) && !bench.wants(backward)) return;
  const kernels::AttentionShape s = {8, 1024, 12, 64, own};
  const int64_t n = s.batch * s.seq * s.heads * s.head_dim;
  const auto qkv = bench.random<T>(3 * n), dctx = bench.random<T>(n), dqkv = bench.random<T>(3 * n);
  const auto ctx = bench.random<T>(n);
  const Floats lse = bench.random(s.batch * s.heads * s.seq);
  const DeviceArray<char> work(bench.gpu(), k.attention_work_bytes(s));
  // Flops of one product over the causal half.
  const double product = static_cast<double>(n) * static_cast<double>(s.seq + 1);
  const std::string what = "batch 8, 12 heads of 64, sequence 1024, causal, " + type;
  bench.row(forward, what, bench.time([&](int64_t) {
    k.attention(ctx.data(), lse.data(), in_qkv(qkv.data(), s), s, work.data(), bench.stream());
  }),
            {.flops = 2 * product}, Target{250, "TFLOP/s", false, note});
  bench.row(backward, what, bench.time([&](int64_t) {
    k.attention_dx(out_qkv(dqkv.data(), s), dctx.data(), ctx.data(), in_qkv(qkv.data(), s),
                   lse.data(), s, work.data(), bench.stream());
  }),
            {.flops = 5 * product}, Target{200, "TFLOP/s", false, note});
}

void launches(Bench& bench) {
  if (!bench.wants("launch")) return;
  const Floats x = bench.random(4);
  const Call call = [&](int64_t) {
    bench.kernels().add(x.data(), x.data(), x.data(), 4, bench.stream());
  };
  bench.row("launch", "an addition of 4 floats after another", bench.time(call), {});
  bench.row("launch recorded", "the same, 100 in a recording", bench.time_recorded(100, call), {});
  std::vector<double> host_us;
  for (size_t sample = 0; sample < 21; ++sample) {
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < 100; ++i) call(i);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    finish(bench.gpu(), bench.stream());
    host_us.push_back(took.count() / 100);
  }
  bench.row("launch host", "what the host takes to give one", host_us, {});
}

struct Preset {
  const char* name;
  double bytes_per_us, start_us;
  int32_t blocks;
};

void paced(Bench& bench) {
  const int64_t bytes = 8 << 20;
  const Floats from = bench.random(bytes / 4), to = bench.random(bytes / 4);
  const kernels::Copy copy = {to.data(), from.data(), bytes};
  for (const Preset& p :
       {Preset{"paced NVLink", 370e3, 12, 32}, Preset{"paced InfiniBand 400G", 45e3, 25, 8},
        Preset{"paced Ethernet 100G", 11e3, 25, 4}, Preset{"paced Ethernet 25G", 2.8e3, 50, 2}}) {
    if (!bench.wants(p.name)) continue;
    const double model_us = p.start_us + static_cast<double>(bytes) / p.bytes_per_us;
    const auto ns = std::llround(1e3 * model_us);
    bench.ratio_row(p.name,
                    "8 MiB by " + std::to_string(p.blocks) + " blocks; model " +
                        std::to_string(model_us) + " us",
                    bench.time([&](int64_t) {
                      bench.gpu().paced_copies(&copy, 1, ns, p.blocks, {}, bench.stream());
                    }),
                    "of_model", model_us, Target{1.02, "of_model", true, "at least 1"});
  }
}

/// How much slower GEMMs are beside a transfer: blocks that pace copies keep a multiprocessor each.
void beside_paced(Bench& bench) {
  if (!bench.wants("gemm beside")) return;
  const auto& gpu = bench.gpu();
  const int64_t m = 8192, n = 3072, k = 768, bytes = 64 << 20, calls = 8;
  const Floats x = bench.random(m * k), w = bench.random(n * k), y = bench.random(m * n);
  const Floats from = bench.random(bytes / 4), to = bench.random(bytes / 4);
  const kernels::Copy copy = {to.data(), from.data(), bytes};
  const Call gemms = [&](int64_t) {
    for (int64_t i = 0; i < calls; ++i)
      bench.kernels().gemm(false, true, m, n, k, 1, x.data(), k, w.data(), k, 0, y.data(), n,
                           bench.stream());
  };
  const double alone_us = median(bench.time(gemms));
  const kernels::Stream link = gpu.make_stream(true);
  for (const int32_t blocks : {1, 4, 16, 32}) {
    const auto start_transfer = [&] {
      finish(gpu, link);
      gpu.paced_copies(&copy, 1, std::llround(2e3 * alone_us) + 1'000'000, blocks, {}, link);
      gpu.sleep(200'000, {}, bench.stream());  // the transfer has begun when the GEMMs begin
    };
    bench.ratio_row("gemm beside " + std::to_string(blocks) + " blocks",
                    "8 times 8192 x 3072 x 768, float32, beside paced copies",
                    bench.time(gemms, start_transfer), "of_alone", alone_us);
  }
  finish(gpu, link);
  gpu.end_stream(link);
}

void run_all(Bench& bench) {
  copies(bench, kBaseCopy);
  gemm(bench, kBaseGemm, 1, 8192, 8192, 8192);
  for (const int64_t mib : {18, 32, 64})  // what the rows of norms read
    if (const std::string name = "copy of " + std::to_string(mib) + " MiB"; bench.wants(name))
      copies(bench, name, mib);
  gemms(bench);
  experts_in_both_variants(bench);
  products_and_gelu(bench);
  bench_rows(bench);
  for (const int64_t k : {1, 2}) router(bench, k);
  gate(bench);
  updates(bench);
  attention(bench, bench.kernels(), "float32", "set for cuDNN's kernels");
  if (bench.gpu().mixed) {
    attention(bench, *bench.gpu().mixed, "bfloat16", "set for cuDNN's kernels");
    const auto by_library = bench.gpu().library_has_attention;
    if (by_library != nullptr && by_library({8, 1024, 12, 64}))
      attention(bench, *bench.gpu().mixed, "bfloat16 cuDNN", "on an H200", false);
  }
  launches(bench);
  paced(bench);
  beside_paced(bench);
  copies(bench, "copy at the end");
}

}  // namespace

int main(int argc, char** argv) {
  int samples = 21;
  bool only_device = false;
  std::string filter;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--quick")
      samples = 5;
    else if (argument == "--device")
      only_device = true;
    else
      filter = argument;
  }
  const OpenedPlugin plugin = open_plugin();
  if (plugin.table == nullptr) {
    std::fprintf(stderr, "%s: %s\n", plugin.skip ? "skipped" : "failed", plugin.reason.c_str());
    return plugin.skip ? 77 : 1;
  }
  const kernels::DeviceInfo info = plugin.table->info();
  std::printf(
      "{\"device\": %s, \"versions\": %s, \"memory_bytes\": %lld, \"free_bytes\": %lld, "
      "\"multiprocessors\": %d, \"compute\": \"%d.%d\"}\n",
      quoted(info.name).c_str(), quoted(info.versions).c_str(),
      static_cast<long long>(info.memory_bytes), static_cast<long long>(info.free_bytes),
      info.multiprocessors, info.major, info.minor);
  if (only_device) return 0;
  try {
    Bench bench(*plugin.table, samples, filter);
    run_all(bench);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "failed: %s\n", error.what());
    return 1;
  }
}
