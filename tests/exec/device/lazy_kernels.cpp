#include "tests/exec/device/lazy_kernels.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/routing/gate.h"
#include "tests/mixed/mixed_reference.h"

namespace moe::test {
namespace {

using kernels::Bf16;
using kernels::KernelTable;
using kernels::Stream;

/// What a lazy table does, later, and how.
const KernelTable<float>& done_by(const KernelTable<float>*) {
  return kernels::fast_table();
}
const KernelTable<Bf16>& done_by(const KernelTable<Bf16>*) {
  return test::mixed_reference();
}

const void* address_of(const void* p) {
  return p;
}
const void* address_of(kernels::EitherOut m) {
  return m.data;
}
template <class A>
void check_argument(const A& argument) {
  if constexpr (std::is_pointer_v<A>) {
    check_pointer(argument);
  } else if constexpr (std::is_same_v<A, kernels::EitherIn> ||
                       std::is_same_v<A, kernels::EitherOut>) {
    check_pointer(argument.data);
  }
}
template <class T>
void check_argument(const kernels::AttentionIn<T>& in) {
  check_pointer(in.q);
  check_pointer(in.k);
  check_pointer(in.v);
  check_pointer(in.sinks);
}
template <class T>
void check_argument(const kernels::AttentionOut<T>& out) {
  check_pointer(out.dq);
  check_pointer(out.dk);
  check_pointer(out.dv);
}

template <class Table, auto kMember, class Function>
struct Deferred;
/// Does later what the CPU's function does.
template <class Table, auto kMember, class... A>
struct Deferred<Table, kMember, void (*)(A...)> {
  static void call(A... arguments) {
    auto kept = std::make_tuple(arguments...);
    constexpr size_t kLast = sizeof...(A) - 1;
    [&]<size_t... i>(std::index_sequence<i...>) {
      (check_argument(std::get<i>(kept)), ...);
    }
    (std::make_index_sequence<kLast>());
    give_work(std::get<kLast>(kept),
              [kept] { std::apply(done_by(static_cast<const Table*>(nullptr)).*kMember, kept); });
  }
};

template <auto kMember, class Function, class Table>
void defer(Function Table::*, Table& k) {
  if (k.*kMember != nullptr) k.*kMember = &Deferred<Table, kMember, Function>::call;
}

template <class T>
void sum_n(T* y, const T* const* in, int64_t count, int64_t n, Stream stream) {
  const std::vector<const T*> list(in, in + count);
  for (const T* p : list) check_argument(p);
  give_work(stream, [=] {
    done_by(static_cast<const KernelTable<T>*>(nullptr)).sum_n(y, list.data(), count, n, nullptr);
  });
}

/// Products in any order, but those with the same c in theirs.
template <class T>
void gemm_many(kernels::GemmVariant way, bool ta, bool tb, int64_t count,
               const kernels::Product<T>* products, kernels::Wide<T> alpha, int64_t lda,
               int64_t ldb, kernels::Wide<T> beta, int64_t ldc, Stream stream) {
  std::vector<std::vector<kernels::Product<T>>> chains;
  for (const auto* p = products; p != products + count; ++p) {
    check_argument(p->a);
    check_argument(p->b);
    check_argument(p->c);
    check_argument(p->then.bias);
    check_argument(p->then.add);
    check_argument(p->then.before_gelu);
    check_argument(p->then.gelu_at);
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
        done_by(static_cast<const KernelTable<T>*>(nullptr))
            .gemm_many(way, ta, tb, 1, &p, alpha, lda, ldb, beta, ldc, nullptr);
      }
    }
  });
}

template <auto... kMembers, class Table>
void defer_all(Table& k) {
  (defer<kMembers>(kMembers, k), ...);
}

template <class T>
void find_largest(int32_t* column, const T* x, int64_t rows, int64_t cols) {
  const auto less = [](T a, T b) { return kernels::to_float(a) < kernels::to_float(b); };
  for (int64_t r = 0; r < rows; ++r, x += cols) {
    column[r] = static_cast<int32_t>(std::max_element(x, x + cols, less) - x);
  }
}

void route(const kernels::TopKRouting& r) {
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
  gate_weights<float>(r.weight, r.probabilities, maps, r.rule);
}

}  // namespace

template <class T>
const KernelTable<T>& lazy_table() {
  using K = KernelTable<T>;
  static const K table = [] {
    K k = done_by(static_cast<const K*>(nullptr));
    k.name = "lazy";
    defer_all<&K::gemm, &K::bias_grad, &K::layernorm, &K::layernorm_dx, &K::layernorm_dw,
              &K::rmsnorm, &K::rmsnorm_dx, &K::rmsnorm_dw, &K::gelu, &K::gelu_dx, &K::silu_mul,
              &K::silu_mul_dx, &K::map, &K::map_dx, &K::mul, &K::row_dot, &K::split_heads,
              &K::join_heads, &K::rope_angles, &K::rope, &K::embedding, &K::embedding_dwte,
              &K::embedding_dwpe, &K::attention, &K::attention_dx, &K::attention_dsinks,
              &K::attn_score, &K::attn_softmax, &K::attn_context, &K::attn_context_dx,
              &K::attn_softmax_dx, &K::attn_score_dx, &K::gate_logits, &K::gate_scores,
              &K::gate_dlogits, &K::dispatch, &K::dispatch_dx, &K::combine, &K::combine_dx,
              &K::combine_dweight, &K::cross_entropy, &K::balance_loss, &K::z_loss, &K::sgd,
              &K::adamw, &K::add, &K::round, &K::copy_2d, &K::clear>(k);
    k.sum_n = sum_n<T>;
    k.gemm_many = gemm_many<T>;
    k.first_nonfinite = nullptr;
    return k;
  }();
  return table;
}

template const KernelTable<float>& lazy_table();
template const KernelTable<Bf16>& lazy_table();

template <class T>
int64_t find_nonfinite(const void* x, int64_t n) {
  return done_by(static_cast<const KernelTable<T>*>(nullptr))
      .first_nonfinite(static_cast<const T*>(x), n);
}

void lazy_note_nonfinite(int64_t* first, kernels::EitherIn x, int64_t n, Stream stream) {
  check_argument(first);
  check_argument(x);
  give_work(stream, [=] {
    const int64_t at = x.wide ? find_nonfinite<float>(x.data, n) : find_nonfinite<Bf16>(x.data, n);
    if (at >= 0) *first = std::min(*first, at);
  });
}

void lazy_largest_columns(int32_t* column, kernels::EitherIn x, int64_t rows, int64_t cols,
                          Stream stream) {
  check_argument(column);
  check_argument(x);
  give_work(stream, [=] {
    if (x.wide) {
      find_largest(column, static_cast<const float*>(x.data), rows, cols);
    } else {
      find_largest(column, static_cast<const Bf16*>(x.data), rows, cols);
    }
  });
}

void lazy_route_top_k(const kernels::TopKRouting& r, Stream stream) {
  give_work(stream, [r] { route(r); });
}

}  // namespace moe::test
