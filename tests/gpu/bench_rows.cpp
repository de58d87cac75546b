// The kernels of a training step that memory bounds, with activations in float32 and in bfloat16:
// bytes count what is stored.
#include <numeric>

#include "engine/base/rng.h"
#include "tests/gpu/bench.h"

namespace moe::test {
namespace {

using kernels::Bf16;
using Ints = std::vector<int32_t>;
using Floats = DeviceArray<float>;

constexpr int64_t kTokens = 16384, kHidden = 1024;

/// What a row's name ends with, and what it calls its numbers.
template <class T>
constexpr const char* mark = std::is_same_v<T, float> ? "" : " bf16";
template <class T>
constexpr const char* numbers = std::is_same_v<T, float> ? "floats" : "bfloat16";

/// Choices of all tokens in a random order over the slots of experts that are filled to 0.8: a
/// capacity factor of 1.25.
struct Maps {
  Maps(const kernels::DeviceTable& gpu, int64_t tokens, int64_t k)
      : Maps(gpu, made(tokens * k, tokens * k * 5 / 4)) {}
  DeviceArray<int32_t> choice_slot, slot_choice;

 private:
  using Made = std::pair<Ints, Ints>;
  Maps(const kernels::DeviceTable& gpu, const Made& made)
      : choice_slot(gpu, made.first), slot_choice(gpu, made.second) {}
  static Made made(int64_t choices, int64_t slots) {
    Ints order(static_cast<size_t>(slots)), choice_slot(static_cast<size_t>(choices)),
        slot_choice(static_cast<size_t>(slots), -1);
    std::iota(order.begin(), order.end(), 0);
    Rng rng(3);
    for (size_t i = order.size() - 1; i > 0; --i)
      std::swap(order[i], order[static_cast<size_t>(rng.below(static_cast<int64_t>(i) + 1))]);
    for (size_t choice = 0; choice < choice_slot.size(); ++choice) {
      choice_slot[choice] = order[choice];
      slot_choice[static_cast<size_t>(order[choice])] = static_cast<int32_t>(choice);
    }
    return {choice_slot, slot_choice};
  }
};

template <class T>
void expert_rows(Bench& bench, int64_t k) {
  const int64_t slots = kTokens * k * 5 / 4;
  const double row = 1.0 * sizeof(T) * kHidden, choices = static_cast<double>(kTokens * k);
  const Maps maps(bench.gpu(), kTokens, k);
  const Floats weight = bench.random(kTokens * k);
  struct Set {
    DeviceArray<T> tokens, rows, result;
  };
  const auto sets = each_set(2, [&] {
    return Set{bench.random<T>(kTokens * kHidden), bench.random<T>(slots * kHidden),
               bench.random<T>(kTokens * kHidden)};
  });
  const std::string what = std::to_string(kTokens) + " tokens of 1024 " + numbers<T> + ", top " +
                           std::to_string(k) + ", capacity factor 1.25";
  const auto& kernels = bench.kernels_of<T>();
  const std::string top = " top" + std::to_string(k) + mark<T>;
  const auto show = [&](const std::string& name, double bytes, std::optional<Target> target,
                        const Call& call) {
    if (bench.wants(name + top))
      bench.row(name + top, what, bench.time(call), {.bytes = bytes}, target);
  };
  const double all_slots = row * static_cast<double>(slots), all_tokens = row * kTokens;
  show("dispatch", choices * row + all_slots, Target{3.0, "TB/s", false, "on an H200"},
       [&](int64_t i) {
         const Set& s = turn(sets, i);
         kernels.dispatch(s.rows.data(), s.tokens.data(), maps.slot_choice.data(), slots, k,
                          kHidden, bench.stream());
       });
  show("dispatch_dx", choices * row + all_tokens, {}, [&](int64_t i) {
    const Set& s = turn(sets, i);
    kernels.dispatch_dx(s.result.data(), s.rows.data(), maps.choice_slot.data(), nullptr, kTokens,
                        k, kHidden, bench.stream());
  });
  show("combine", choices * row + 2 * all_tokens, Target{3.2, "TB/s", false, "on an H200"},
       [&](int64_t i) {
         const Set& s = turn(sets, i);
         kernels.combine(s.result.data(), s.rows.data(), weight.data(), maps.choice_slot.data(),
                         s.tokens.data(), kTokens, k, kHidden, bench.stream());
       });
  show("combine_dx", choices * row + all_slots, {}, [&](int64_t i) {
    const Set& s = turn(sets, i);
    kernels.combine_dx(s.rows.data(), s.tokens.data(), weight.data(), maps.slot_choice.data(),
                       slots, k, kHidden, bench.stream());
  });
}

/// LayerNorm if kCentered, otherwise RMSNorm.
template <class T, bool kCentered>
void norm(Bench& bench, int64_t rows, int64_t cols) {
  const std::string shape = std::to_string(rows) + "x" + std::to_string(cols);
  struct Set {
    DeviceArray<T> x, dy, y;
  };
  const int64_t n = rows * cols;
  const double array = sizeof(T) * static_cast<double>(n);
  std::vector<Set> sets;
  const Floats gamma = bench.random(cols), beta = bench.random(cols), dgamma = bench.random(cols),
               dbeta = bench.random(cols), mean = bench.random(rows), rstd = bench.random(rows);
  const auto& k = bench.kernels_of<T>();
  const auto show = [&](const char* what, double arrays, const auto& call) {
    const std::string name =
        std::string(kCentered ? "layernorm " : "rmsnorm ") + what + " " + shape + mark<T>;
    if (!bench.wants(name)) return;
    while (static_cast<int64_t>(sets.size()) < Bench::sets(3 * array))
      sets.push_back(Set{bench.random<T>(n), bench.random<T>(n), bench.random<T>(n)});
    bench.row(name, shape + " " + numbers<T>, bench.time([&](int64_t i) { call(turn(sets, i)); }),
              {.bytes = arrays * array}, Target{3.4, "TB/s", false, "on an H200"});
  };
  const auto dx = [&](const Set& s) {
    if constexpr (kCentered) {
      k.layernorm_dx(s.y.data(), s.dy.data(), s.x.data(), mean.data(), rstd.data(), gamma.data(),
                     nullptr, rows, cols, bench.stream());
    } else {
      k.rmsnorm_dx(s.y.data(), s.dy.data(), s.x.data(), rstd.data(), gamma.data(), nullptr, rows,
                   cols, bench.stream());
    }
  };
  const auto dw = [&](const Set& s) {
    if constexpr (kCentered) {
      k.layernorm_dw(dgamma.data(), dbeta.data(), s.dy.data(), s.x.data(), mean.data(), rstd.data(),
                     nullptr, nullptr, rows, cols, bench.stream());
    } else {
      k.rmsnorm_dw(dgamma.data(), s.dy.data(), s.x.data(), rstd.data(), nullptr, rows, cols,
                   bench.stream());
    }
  };
  show("forward", 2, [&](const Set& s) {
    if constexpr (kCentered) {
      k.layernorm(s.y.data(), mean.data(), rstd.data(), s.x.data(), gamma.data(), beta.data(), rows,
                  cols, bench.stream());
    } else {
      k.rmsnorm(s.y.data(), rstd.data(), s.x.data(), gamma.data(), 1e-6f, rows, cols,
                bench.stream());
    }
  });
  show("dx", 3, dx);
  show("dw", 2, dw);
  show("backward", 3, [&](const Set& s) {
    dx(s);
    dw(s);
  });
}

template <class T>
void bias_grad(Bench& bench) {
  const std::string name = std::string("bias_grad") + mark<T>;
  if (!bench.wants(name)) return;
  const int64_t cols = 3 * kHidden, n = kTokens * cols;
  const auto sets = each_set(3, [&] { return bench.random<T>(n); });
  const Floats db = bench.random(cols);
  bench.row(name, "16384x3072", bench.time([&](int64_t i) {
    bench.kernels_of<T>().bias_grad(db.data(), turn(sets, i).data(), nullptr, kTokens, cols,
                                    bench.stream());
  }),
            {.bytes = sizeof(T) * static_cast<double>(n)},
            Target{3.4, "TB/s", false, "on an H200"});
}

template <class T>
void cross_entropy(Bench& bench, int64_t vocab) {
  const std::string name = "cross entropy " + std::to_string(vocab) + mark<T>;
  if (!bench.wants(name)) return;
  const int64_t tokens = 4096, n = tokens * vocab;
  Ints ids(tokens);
  for (int64_t t = 0; t < tokens; ++t)
    ids[static_cast<size_t>(t)] = static_cast<int32_t>(t * 7919 % vocab);
  const DeviceArray<int32_t> target(bench.gpu(), ids);
  const auto first = bench.random<T>(n), logits = bench.random<T>(n);
  const DeviceArray<double> loss(bench.gpu(), 1);
  // The gradient takes the logits' place, so they are put back before each sample.
  const auto restore = [&] {
    bench.gpu().copy(logits.data(), first.data(), logits.bytes(), bench.stream());
  };
  bench.row(name, std::string("4096 tokens, gradient in place, ") + numbers<T>,
            bench.time(
                [&](int64_t) {
                  bench.kernels_of<T>().cross_entropy(loss.data(), logits.data(), target.data(),
                                                      1.0 / tokens, true, tokens, vocab, vocab,
                                                      bench.stream());
                },
                restore),
            {.bytes = 2.0 * sizeof(T) * static_cast<double>(n)},
            Target{3.6, "TB/s", false, "on an H200"});
}

template <class T>
void rows_of(Bench& bench) {
  for (const int64_t k : {1, 2}) expert_rows<T>(bench, k);
  norm<T, true>(bench, kTokens, kHidden);
  norm<T, false>(bench, kTokens, kHidden);
  cross_entropy<T>(bench, 50257);
}

}  // namespace

void bench_rows(Bench& bench) {
  rows_of<float>(bench);
  rows_of<Bf16>(bench);
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{12288, 768}, {8192, 4096}}) {
    norm<Bf16, true>(bench, rows, cols);
    norm<Bf16, false>(bench, rows, cols);
  }
  norm<Bf16, false>(bench, 262144, 128);
  bias_grad<Bf16>(bench);
  cross_entropy<Bf16>(bench, 50304);
}

}  // namespace moe::test
