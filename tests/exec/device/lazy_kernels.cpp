#include "tests/exec/device/lazy_kernels.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/routing/gate.h"
#include "tests/kernels/operands.h"
#include "tests/mixed/mixed_reference.h"

namespace moe::test {
namespace {

using kernels::Bf16;
using kernels::KernelTable;
using kernels::Stream;

/// What a lazy table does, later, and how.
template <class T>
const KernelTable<T>& done_by() {
  if constexpr (std::is_same_v<T, float>) return kernels::fast_table();
  if constexpr (std::is_same_v<T, Bf16>) return test::mixed_reference();
}

const void* address_of(const void* p) {
  return p;
}
const void* address_of(kernels::EitherOut m) {
  return m.data;
}

template <class X>
void check_operand(X* p, int64_t n) {
  check_memory(p, n * static_cast<int64_t>(sizeof(X)));
}
void check_operand(kernels::EitherIn m, int64_t n) {
  check_memory(m.data, n * int64_t{m.wide ? 4 : 2});
}
void check_operand(kernels::EitherOut m, int64_t n) {
  check_memory(m.data, n * int64_t{m.wide ? 4 : 2});
}

/// A place (operands.h) that leaves operands where they are, which is to be in device memory.
template <class T>
struct Checked {
  template <class X>
  X in(X operand, int64_t n) {
    check_operand(operand, n);
    return operand;
  }
  template <class X>
  X out(X operand, int64_t n) {
    return in(operand, n);
  }
  template <class X>
  X both(X operand, int64_t n) {
    return in(operand, n);
  }
  void* work(void* p, kernels::AttentionShape s) {
    check_memory(p, done_by<T>().attention_work_bytes(s));
    return p;
  }
};

/// Does later what the CPU's kernel number i does.
template <class T, size_t i, class Function = typename KernelAt<T, i>::Function>
struct Later;
template <class T, size_t i, class... A>
struct Later<T, i, void (*)(A...)> {
  static void call(A... arguments) {
    const Stream stream = std::get<sizeof...(A) - 1>(std::tie(arguments...));
    give_work(stream, [kept = without_stream(arguments...)] { run(kept); });
  }
  template <class Arguments>
  static void run(const Arguments& arguments) {
    Checked<T> place;
    call_placed<typename KernelAt<T, i>::Extents>(done_by<T>().*KernelAt<T, i>::kMember, place,
                                                  arguments, nullptr);
  }
};

template <class T>
void sum_n(T* y, const T* const* in, int64_t count, int64_t n, Stream stream) {
  const std::vector<const T*> list(in, in + count);
  give_work(stream, [=] {
    Later<T, kIndexOf<T, &KernelTable<T>::sum_n>>::run(
        std::tuple<T*, const T* const*, int64_t, int64_t>(y, list.data(), count, n));
  });
}

/// Products in any order, but those with the same c in theirs.
template <class T>
void gemm_many(kernels::GemmVariant way, bool ta, bool tb, int64_t count,
               const kernels::Product<T>* products, kernels::Wide<T> alpha, int64_t lda,
               int64_t ldb, kernels::Wide<T> beta, int64_t ldc, Stream stream) {
  std::vector<std::vector<kernels::Product<T>>> chains;
  for (const auto* p = products; p != products + count; ++p) {
    if (chains.empty() || address_of(chains.back()[0].c) != address_of(p->c)) {
      chains.emplace_back();
    }
    chains.back().push_back(*p);
  }
  give_work(stream, [=]() mutable {
    for (size_t i = chains.size(); i > 1; --i) {
      std::swap(chains[i - 1], chains[static_cast<size_t>(lazy_below(static_cast<int64_t>(i)))]);
    }
    for (const auto& chain : chains) {
      for (const auto& p : chain) {
        const int64_t n = p.m * p.n;
        check_operand(p.a, ta ? pitched(p.k, p.m, lda) : pitched(p.m, p.k, lda));
        check_operand(p.b, tb ? pitched(p.n, p.k, ldb) : pitched(p.k, p.n, ldb));
        check_operand(p.c, pitched(p.m, p.n, ldc));
        check_operand(p.then.bias, p.n);
        check_operand(p.then.add, n);
        check_operand(p.then.before_gelu, n);
        check_operand(p.then.gelu_at, n);
        done_by<T>().gemm_many(way, ta, tb, 1, &p, alpha, lda, ldb, beta, ldc, nullptr);
      }
    }
  });
}

template <class T>
void find_largest(int32_t* column, const T* x, int64_t rows, int64_t cols, int64_t pitch) {
  const auto less = [](T a, T b) { return kernels::to_float(a) < kernels::to_float(b); };
  for (int64_t r = 0; r < rows; ++r, x += pitch) {
    column[r] = static_cast<int32_t>(std::max_element(x, x + cols, less) - x);
  }
}

void route(const kernels::TopKRouting& r) {
  if (r.logits != nullptr)
    done_by<float>().gate_scores(r.scores, r.logits, r.score, r.tokens, r.experts, nullptr);
  const RoutingMaps maps = {.tokens = r.tokens,
                            .experts = r.experts,
                            .columns = r.k,
                            .capacity = r.capacity,
                            .expert = r.expert,
                            .choice_slot = r.choice_slot,
                            .slot_choice = r.slot_choice,
                            .counts = r.counts,
                            .first_token = r.first_token,
                            .part = r.part};
  std::span<const int32_t> used;
  if (r.used_before != nullptr) used = {r.used_before, static_cast<size_t>(r.experts)};
  RoutingBuilder builder(maps, used);
  try {
    builtin_gate("top_k").route({.tokens = r.tokens,
                                 .experts = r.experts,
                                 .k = r.k,
                                 .capacity = r.capacity,
                                 .scores = r.scores},
                                builder);
  } catch (const std::exception&) {  // scores that are not numbers
    std::fill_n(r.expert, r.tokens * r.k, -2);
  }
  builder.order_by_token();
  gate_weights<float>(r.weight, r.scores, maps, r.rule);
}

}  // namespace

template <class T>
const KernelTable<T>& lazy_table() {
  static const KernelTable<T> table = [] {
    KernelTable<T> k = {.name = "lazy"};
    for_each_kernel<T>([&]<size_t i>() {
      constexpr auto kMember = KernelAt<T, i>::kMember;
      if (done_by<T>().*kMember != nullptr) k.*kMember = Later<T, i>::call;
    });
    k.sum_n = sum_n<T>;
    k.gemm_many = gemm_many<T>;
    k.attention_work_bytes = done_by<T>().attention_work_bytes;
    return k;
  }();
  return table;
}

template const KernelTable<float>& lazy_table();
template const KernelTable<Bf16>& lazy_table();

template <class T>
int64_t find_nonfinite(const void* x, int64_t n) {
  return done_by<T>().first_nonfinite(static_cast<const T*>(x), n);
}

void lazy_note_nonfinite(int64_t* first, kernels::EitherIn x, int64_t n, Stream stream) {
  give_work(stream, [=] {
    check_operand(first, 1);
    check_operand(x, n);
    const int64_t at = x.wide ? find_nonfinite<float>(x.data, n) : find_nonfinite<Bf16>(x.data, n);
    if (at >= 0) *first = std::min(*first, at);
  });
}

void lazy_largest_columns(int32_t* column, kernels::EitherIn x, int64_t rows, int64_t cols,
                          int64_t pitch, Stream stream) {
  give_work(stream, [=] {
    check_operand(column, rows);
    check_operand(x, rows * pitch);
    if (x.wide) {
      find_largest(column, static_cast<const float*>(x.data), rows, cols, pitch);
    } else {
      find_largest(column, static_cast<const Bf16*>(x.data), rows, cols, pitch);
    }
  });
}

void lazy_route_top_k(const kernels::TopKRouting& r, Stream stream) {
  give_work(stream, [r] { route(r); });
}

}  // namespace moe::test
