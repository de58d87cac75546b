// The operands of every kernel of KernelTable: how many elements a call may touch of each, and
// which may be null or share memory. What is const is only read; everything else is written, as a
// whole unless the list says otherwise. From this one list come the tables and checks of tests that
// do the same with every kernel: operands in guarded memory (conformance.h), on a GPU (tests/gpu),
// as doubles (tests/mixed), and calls that run later (tests/exec/device/lazy_kernels.cpp).
#pragma once

#include <algorithm>
#include <array>
#include <list>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels/kernels.h"
#include "tests/mixed/attention_operands.h"

namespace moe::test {

/// Elements [first, end) of an operand. `both`: it is written only in part, or also read. may_be:
/// the output (by its number among the operands) that the operand may be; -1 means none.
struct Operand {
  Operand(int64_t n) : end(n) {}
  int64_t first = 0, end;
  bool both = false, may_be_null = false, accumulates = false;
  int may_be = -1;
};
inline Operand both(int64_t n) {
  Operand o(n);
  o.both = true;
  return o;
}
inline Operand or_null(int64_t n) {
  Operand o(n);
  o.may_be_null = true;
  return o;
}
/// May be null or the output, to which it is added.
inline Operand acc(int64_t n, int output = 0) {
  Operand o = or_null(n);
  o.accumulates = true;
  o.may_be = output;
  return o;
}
/// May be the first output, which is then computed in place.
inline Operand or_output(int64_t n) {
  Operand o(n);
  o.may_be = 0;
  return o;
}
/// Rows of `width` elements: those that an index map with -1 for 'none' names, each as index /
/// divisor.
inline Operand rows_of(const int32_t* map, int64_t n, int64_t divisor, int64_t width) {
  Operand o(0);
  for (int64_t i = 0; i < n; ++i) {
    if (map[i] < 0) continue;
    const int64_t begin = map[i] / divisor * width;
    o.first = o.end == 0 ? begin : std::min(o.first, begin);
    o.end = std::max(o.end, begin + width);
  }
  return o;
}
/// From the first to the last element of a matrix with `pitch` elements from row to row.
inline int64_t pitched(int64_t rows, int64_t cols, int64_t pitch) {
  return rows == 0 || cols == 0 ? 0 : (rows - 1) * pitch + cols;
}

// Elements of attention's operands.
inline int64_t ctx_of(kernels::AttentionShape s) {
  return s.batch * s.seq * s.heads * s.value_dim;
}
inline int64_t lse_of(kernels::AttentionShape s) {
  return s.batch * s.heads * s.seq;
}
inline int64_t prob_of(kernels::AttentionShape s) {
  return lse_of(s) * s.seq;
}
inline int64_t qkv_of(kernels::AttentionShape s) {
  return s.batch * s.seq * s.q_pitch;
}

/// The operands that are no array: AttentionIn and AttentionOut (for them an AttentionShape stands
/// in the list), the summands of sum_n, scratch of attention.
struct Summands {
  int64_t count, n;
};
struct Work {
  kernels::AttentionShape shape;
};

template <class A>
using Described = std::conditional_t<std::is_convertible_v<A, Operand>, Operand, A>;
/// One for each operand, in the order of the arguments.
template <class... A>
std::tuple<Described<A>...> list(A... each) {
  return {each...};
}

template <class F, class Table>
F type_of_member(F Table::*);
/// One kernel. Extents: called with the arguments that are no operands, and with index maps, it
/// returns list().
template <auto kMember_, class Extents_>
struct Kernel {
  using Extents = Extents_;
  using Function = decltype(type_of_member(kMember_));
  static constexpr auto kMember = kMember_;
  const char* name;
};
template <auto kMember, class Extents>
constexpr Kernel<kMember, Extents> kernel(const char* name, Extents) {
  return {name};
}
/// The Extents of a kernel for which each table needs a function of its own.
struct ByHand {};

// A list of kernels, in which one is found by overload resolution. A source that has the list
// compiles in four fifths of the time that it takes with std::tuple, whose elements are found one
// after the other.
template <size_t i, class K>
struct At {
  K kernel;
};
template <class Numbers, class... K>
struct AllKernels;
template <size_t... i, class... K>
struct AllKernels<std::index_sequence<i...>, K...> : At<i, K>... {
  /// Calls f.operator()<i>(kernel) for each.
  template <class F>
  void each(F f) const {
    (f.template operator()<i>(At<i, K>::kernel), ...);
  }
};
template <class... K>
constexpr AllKernels<std::index_sequence_for<K...>, K...> all_of(K... each) {
  return {{each}...};
}
template <size_t i, class K>
K kernel_at(const At<i, K>&);
template <auto kMember, size_t i, class Extents>
std::integral_constant<size_t, i> index_of(const At<i, Kernel<kMember, Extents>>&);
template <auto kMember, size_t i, class Extents>
const char* kernel_name(const At<i, Kernel<kMember, Extents>>& one) {
  return one.kernel.name;
}

/// All kernels, in the order of KernelTable. Sizes: r rows of c columns, t tokens, e experts, k
/// choices of a token, s slots, h columns of a hidden state, v tokens of a vocabulary.
template <class T>
constexpr auto kernels_of() {
  using namespace kernels;
  using K = KernelTable<T>;
  using I = int64_t;
  using Ids = const int32_t*;
  using S = AttentionShape;
  const auto of_gemm = [](bool ta, bool tb, I m, I n, I k, auto, I lda, I ldb, auto, I ldc) {
    const I a = ta ? pitched(k, m, lda) : pitched(m, k, lda);
    const I b = tb ? pitched(n, k, ldb) : pitched(k, n, ldb);
    return list(a, b, both(pitched(m, n, ldc)));
  };
  const auto of_layernorm_dx = [](I r, I c) {
    return list(r * c, or_output(r * c), r * c, r, r, c, acc(r * c));
  };
  const auto of_layernorm_dw = [](I r, I c) {
    return list(c, c, r * c, r * c, r, r, acc(c), acc(c, 1));
  };
  const auto of_rope = [](const RopeShape& s) {
    const I n = s.tokens * s.heads * s.head_dim;
    return list(n, or_output(n), std::min(s.seq, s.tokens) * 2 * s.pairs);
  };
  const auto of_split_heads = [](HeadColumns c, I r) {
    return list(r * c.row_of_first(), r * c.row_of_second(), r * c.row());
  };
  const auto of_join_heads = [](HeadColumns c, I r) {
    return list(r * c.row(), r * c.row_of_first(), r * c.row_of_second());
  };
  const auto of_embedding = [](Ids ids, I t, I seq, I h) {
    return list(t * h, t, rows_of(ids, t, 1, h), or_null(std::min(seq, t) * h));
  };
  const auto of_dispatch_dx = [](Ids choice_slot, I t, I k, I h) {
    return list(t * h, rows_of(choice_slot, t * k, 1, h), t * k, acc(t * h));
  };
  const auto of_combine = [](Ids choice_slot, I t, I k, I h) {
    return list(t * h, rows_of(choice_slot, t * k, 1, h), t * k, t * k, or_null(t * h));
  };
  const auto of_combine_dx = [](Ids slot_choice, I s, I k, I h) {
    const Operand weight = rows_of(slot_choice, s, 1, 1);
    return list(s * h, rows_of(slot_choice, s, k, h), weight, s);
  };
  const auto of_combine_dweight = [](Ids choice_slot, I t, I k, I h) {
    return list(t * k, t * h, rows_of(choice_slot, t * k, 1, h), t * k);
  };
  const auto of_copy_2d = [](I to_pitch, I from_pitch, I width, I r) {
    return list(both(pitched(r, width, to_pitch)), pitched(r, width, from_pitch));
  };
  return all_of(
      kernel<&K::gemm>("gemm", of_gemm), kernel<&K::gemm_many>("gemm_many", ByHand()),
      kernel<&K::bias_grad>("bias_grad", [](I r, I c) { return list(c, r * c, acc(c)); }),
      kernel<&K::layernorm>("layernorm", [](I r, I c) { return list(r * c, r, r, r * c, c, c); }),
      kernel<&K::layernorm_dx>("layernorm_dx", of_layernorm_dx),
      kernel<&K::layernorm_dw>("layernorm_dw", of_layernorm_dw),
      kernel<&K::rmsnorm>("rmsnorm", [](auto, I r, I c) { return list(r * c, r, r * c, c); }),
      kernel<&K::rmsnorm_dx>(
          "rmsnorm_dx",
          [](I r, I c) { return list(r * c, or_output(r * c), r * c, r, c, acc(r * c)); }),
      kernel<&K::rmsnorm_dw>("rmsnorm_dw",
                             [](I r, I c) { return list(c, r * c, r * c, r, acc(c)); }),
      kernel<&K::gelu>("gelu", [](I r, I c) { return list(r * c, r * c, or_null(c)); }),
      kernel<&K::gelu_dx>(
          "gelu_dx", [](I r, I c) { return list(r * c, or_output(r * c), r * c, or_null(c)); }),
      kernel<&K::silu_mul>("silu_mul",
                           [](GatedForm, I r, I c) { return list(r * c, 2 * r * c, or_null(r)); }),
      kernel<&K::silu_mul_dx>("silu_mul_dx",
                              [](GatedForm, I r, I c) {
                                return list(2 * r * c, or_null(r), r * c, 2 * r * c, or_null(r));
                              }),
      kernel<&K::rope_angles>(
          "rope_angles", [](const RopeFrequencies& f, I seq) { return list(seq * 2 * f.pairs); }),
      kernel<&K::rope>("rope", of_rope),
      kernel<&K::map>("map", [](Map, auto, I n) { return list(n, or_output(n), acc(n)); }),
      kernel<&K::map_dx>("map_dx", [](Map, I n) { return list(n, or_output(n), n, acc(n)); }),
      kernel<&K::mul>("mul",
                      [](I r, I c, bool by_row) {
                        return list(r * c, or_output(r * c), by_row ? r : r * c, acc(r * c));
                      }),
      kernel<&K::row_dot>("row_dot", [](I r, I c) { return list(r, r * c, r * c); }),
      kernel<&K::split_heads>("split_heads", of_split_heads),
      kernel<&K::join_heads>("join_heads", of_join_heads),
      kernel<&K::embedding>("embedding", of_embedding),
      kernel<&K::embedding_dwte>(
          "embedding_dwte", [](Ids, I t, I v, I h) { return list(v * h, t, t * h, acc(v * h)); }),
      kernel<&K::embedding_dwpe>(
          "embedding_dwpe", [](I t, I seq, I h) { return list(seq * h, t * h, acc(seq * h)); }),
      kernel<&K::attention>("attention",
                            [](S s) { return list(ctx_of(s), lse_of(s), s, Work{s}); }),
      kernel<&K::attention_dx>(
          "attention_dx", [](S s) { return list(s, ctx_of(s), ctx_of(s), s, lse_of(s), Work{s}); }),
      kernel<&K::attention_dsinks>("attention_dsinks",
                                   [](S s) {
                                     return list(s.heads, lse_of(s), ctx_of(s), ctx_of(s), s.heads,
                                                 acc(s.heads));
                                   }),
      kernel<&K::attention_work_bytes>("attention_work_bytes", ByHand()),
      kernel<&K::attn_score>("attn_score", [](S s) { return list(prob_of(s), qkv_of(s)); }),
      kernel<&K::attn_softmax>("attn_softmax", [](S s) { return list(prob_of(s), prob_of(s)); }),
      kernel<&K::attn_context>("attn_context",
                               [](S s) { return list(ctx_of(s), prob_of(s), qkv_of(s)); }),
      kernel<&K::attn_context_dx>(
          "attn_context_dx",
          [](S s) { return list(prob_of(s), both(qkv_of(s)), ctx_of(s), prob_of(s), qkv_of(s)); }),
      kernel<&K::attn_softmax_dx>("attn_softmax_dx",
                                  [](S s) { return list(prob_of(s), prob_of(s), prob_of(s)); }),
      kernel<&K::attn_score_dx>("attn_score_dx",
                                [](S s) { return list(both(qkv_of(s)), prob_of(s), qkv_of(s)); }),
      kernel<&K::gate_logits>("gate_logits",
                              [](I t, I e, I h) { return list(t * e, t * h, e * h, or_null(e)); }),
      kernel<&K::gate_scores>("gate_scores",
                              [](ScoreRule, I t, I e) { return list(t * e, or_output(t * e)); }),
      kernel<&K::gate_dlogits>("gate_dlogits",
                               [](Ids, WeightRule, ScoreRule, I t, I e, I k) {
                                 return list(t * e, t * k, t * e, t * k);
                               }),
      kernel<&K::dispatch>("dispatch",
                           [](Ids slot_choice, I s, I k, I h) {
                             return list(s * h, rows_of(slot_choice, s, k, h), s);
                           }),
      kernel<&K::dispatch_dx>("dispatch_dx", of_dispatch_dx),
      kernel<&K::combine>("combine", of_combine),
      kernel<&K::combine_dx>("combine_dx", of_combine_dx),
      kernel<&K::combine_dweight>("combine_dweight", of_combine_dweight),
      kernel<&K::gather>("gather", [](Ids at, I n) { return list(n, rows_of(at, n, 1, 1), n); }),
      kernel<&K::cross_entropy>(
          "cross_entropy", [](Ids, double, bool, I t, I, I p) { return list(1, both(t * p), t); }),
      kernel<&K::balance_loss>("balance_loss",
                               [](ScoreRule, double, I t, I e) { return list(1, both(t * e), e); }),
      kernel<&K::z_loss>("z_loss", [](double, I t, I e) { return list(1, both(t * e)); }),
      kernel<&K::sgd>("sgd", [](auto, auto, I n) { return list(both(n), both(n), n); }),
      kernel<&K::adamw>("adamw", [](const AdamwRates&, const int64_t*,
                                    I n) { return list(both(n), both(n), both(n), n, 1); }),
      kernel<&K::square_sums>(
          "square_sums",
          [](auto, I n) { return list(kernels::kSquareSums, n, acc(kernels::kSquareSums)); }),
      kernel<&K::clip>("clip",
                       [](auto, I n) { return list(n, or_output(n), kernels::kSquareSums); }),
      kernel<&K::add>("add", [](I n) { return list(n, or_output(n), n); }),
      kernel<&K::sum_n>("sum_n",
                        [](I count, I n) {
                          return list(n, Summands{count, n});
                        }),
      kernel<&K::round>("round", [](I n) { return list(n, n); }),
      kernel<&K::copy_2d>("copy_2d", of_copy_2d),
      kernel<&K::clear>("clear", [](I bytes) { return list(bytes); }),
      kernel<&K::first_nonfinite>("first_nonfinite", ByHand()));
}

template <class T, size_t i>
using KernelAt = decltype(kernel_at<i>(kernels_of<T>()));
/// The index of the kernel of KernelTable<T> with this member.
template <class T, auto kMember>
constexpr size_t kIndexOf = decltype(index_of<kMember>(kernels_of<T>()))::value;

/// Calls f.operator()<i>(), i an index of KernelAt, for each kernel that is not by hand. Throws
/// std::logic_error where the list and KernelTable<T> differ.
template <class T, class F>
void for_each_kernel(F f) {
  const kernels::KernelTable<T> table = {};
  size_t place = 1;  // behind the name
  const char* before = "name";
  kernels_of<T>().each([&]<size_t i, class K>(const K& kernel) {
    const auto* const member = reinterpret_cast<const char*>(&(table.*K::kMember));
    if (member != reinterpret_cast<const char*>(&table) + place * sizeof(void*))
      throw std::logic_error(std::string("kernels.h does not have '") + kernel.name + "' after '" +
                             before + "', as tests/kernels/operands.h has; list all kernels there");
    ++place;
    before = kernel.name;
    if constexpr (!std::is_same_v<typename K::Extents, ByHand>) f.template operator()<i>();
  });
  if (place * sizeof(void*) != sizeof table)
    throw std::logic_error(std::string("kernels.h has a kernel after '") + before +
                           "' that tests/kernels/operands.h lacks; list its operands there");
}

template <class A>
constexpr bool kIsOperand = std::is_pointer_v<A> || std::is_same_v<A, kernels::EitherIn> ||
                            std::is_same_v<A, kernels::EitherOut>;
template <class T>
constexpr bool kIsOperand<kernels::AttentionIn<T>> = true;
template <class T>
constexpr bool kIsOperand<kernels::AttentionOut<T>> = true;
template <class A>
constexpr bool kIsMap = std::is_same_v<A, const int32_t*> || std::is_same_v<A, const int64_t*>;

/// The arguments of a kernel, without the stream at their end.
template <class... A>
auto without_stream(const A&... arguments) {
  const std::tuple<A...> all(arguments...);
  return [&]<size_t... i>(std::index_sequence<i...>) {
    return std::tuple<std::tuple_element_t<i, std::tuple<A...>>...>(std::get<i>(all)...);
  }
  (std::make_index_sequence<sizeof...(A) - 1>());
}

/// Where the arguments are that Extents is called with.
template <class... A>
constexpr auto given_to_extents(const std::tuple<A...>*) {
  constexpr bool kGiven[] = {(!kIsOperand<A> || kIsMap<A>)...};
  std::array<size_t, (size_t{0} + ... + size_t{!kIsOperand<A> || kIsMap<A>})> places = {};
  for (size_t i = 0, n = 0; i < sizeof...(A); ++i)
    if (kGiven[i]) places[n++] = i;
  return places;
}
/// std::tuple_cat would take the compiler long.
template <class Extents, class... A>
auto extents_of(const std::tuple<A...>& arguments) {
  constexpr auto kGiven = given_to_extents(static_cast<std::tuple<A...>*>(nullptr));
  return [&]<size_t... i>(std::index_sequence<i...>) {
    return Extents()(std::get<kGiven[i]>(arguments)...);
  }
  (std::make_index_sequence<kGiven.size()>());
}

/// Operands among the first arguments.
template <class... A, size_t... i>
constexpr size_t operands_among(const std::tuple<A...>*, std::index_sequence<i...>) {
  return (size_t{0} + ... + size_t{kIsOperand<std::tuple_element_t<i, std::tuple<A...>>>});
}

// Where `place` puts an operand. It has in(first, n) for what is read, out() for what is written
// whole, both(), all three also for EitherIn and EitherOut, and work(p, shape).

template <class Place, class X>
auto put(Place& place, X* p, const Operand& o) {
  if constexpr (std::is_void_v<X>) {
    return put(place, static_cast<std::conditional_t<std::is_const_v<X>, const char, char>*>(p), o);
  } else if constexpr (std::is_const_v<X>) {
    return place.in(p + o.first, o.end - o.first) - o.first;
  } else {
    return o.both ? place.both(p, o.end) : place.out(p, o.end);
  }
}
template <class Place>
auto put(Place& place, kernels::EitherIn in, const Operand& o) {
  return place.in(in, o.end);
}
template <class Place>
auto put(Place& place, kernels::EitherOut out, const Operand& o) {
  return place.both(out, o.end);
}
template <class Place, class T>
auto put(Place& place, kernels::AttentionIn<T> in, kernels::AttentionShape s) {
  return moved(in, s, [&](const auto* p, int64_t n) { return place.in(p, n); });
}
template <class Place, class T>
auto put(Place& place, kernels::AttentionOut<T> out, kernels::AttentionShape s) {
  return moved(out, s, [&](auto* p, int64_t n) { return place.both(p, n); });
}
template <class Place>
auto put(Place& place, void* p, const Work& work) {
  return place.work(p, work.shape);
}
/// The array of pointers of a sum_n.
template <class X>
struct Pointers {
  std::vector<X> all;
  operator const X*() const { return all.data(); }
};
template <class Place, class T>
auto put(Place& place, const T* const* in, Summands s) {
  Pointers<decltype(place.in(in[0], s.n))> there;
  for (int64_t i = 0; in != nullptr && i < s.count; ++i) there.all.push_back(place.in(in[i], s.n));
  return there;
}

/// Calls `function` with each operand where `place` puts it, and with the other arguments.
template <class Extents, class Function, class Place, class... A>
void call_placed(Function function, Place& place, const std::tuple<A...>& arguments,
                 kernels::Stream stream) {
  using All = std::tuple<A...>;
  const auto extents = extents_of<Extents>(arguments);
  static_assert(std::tuple_size_v<decltype(extents)> ==
                    operands_among(static_cast<All*>(nullptr), std::index_sequence_for<A...>()),
                "list() has one entry for each operand");
  const auto put_one = [&]<size_t i>() {
    constexpr size_t number =
        operands_among(static_cast<All*>(nullptr), std::make_index_sequence<i>());
    if constexpr (kIsOperand<std::tuple_element_t<i, All>>) {
      return put(place, std::get<i>(arguments), std::get<number>(extents));
    } else {
      return std::get<i>(arguments);
    }
  };
  [&]<size_t... i>(std::index_sequence<i...>) {
    function(put_one.template operator()<i>()..., stream);
  }
  (std::index_sequence_for<A...>());
}

/// A place that copies the operands of one call to memory of its own, and results back. What is to
/// be written whole is NaN before. An array that is two operands stays one. Memory has
///   char* make(const void* host, int64_t bytes, int64_t bytes_of_an_element)  // all bytes 0xff
///   void copy(void* to, const void* from, int64_t bytes)
template <class Memory>
class Copies {
 public:
  explicit Copies(Memory& memory) : memory_(&memory) {}

  template <class X>
  const X* in(const X* host, int64_t n) {
    return load(host, n);
  }
  template <class X>
  X* out(X* host, int64_t n) {
    Array* array = find(host, n);
    if (array == nullptr) return nullptr;
    array->written = true;
    return reinterpret_cast<X*>(array->copy);
  }
  template <class X>
  X* both(X* host, int64_t n) {
    load(host, n);
    return out(host, n);
  }
  kernels::EitherIn in(kernels::EitherIn m, int64_t n) {
    if (m.wide) return in(static_cast<const float*>(m.data), n);
    return in(static_cast<const kernels::Bf16*>(m.data), n);
  }
  kernels::EitherOut both(kernels::EitherOut m, int64_t n) {
    if (m.wide) return both(static_cast<float*>(m.data), n);
    return both(static_cast<kernels::Bf16*>(m.data), n);
  }

  struct Array {
    void* host;
    char* copy;
    int64_t bytes;
    bool loaded = false, written = false;
  };
  const std::list<Array>& arrays() const { return arrays_; }
  void take_back() {
    for (const Array& a : arrays_)
      if (a.written) memory_->copy(a.host, a.copy, a.bytes);
  }

 private:
  template <class X>
  Array* find(const X* values, int64_t n) {
    if (values == nullptr) return nullptr;
    void* host = const_cast<std::remove_const_t<X>*>(values);
    for (Array& array : arrays_)
      if (array.host == host) return &array;
    const int64_t bytes = n * static_cast<int64_t>(sizeof(X));
    return &arrays_.emplace_back(Array{host, memory_->make(host, bytes, sizeof(X)), bytes});
  }
  template <class X>
  X* load(X* host, int64_t n) {
    Array* array = find(host, n);
    if (array == nullptr) return nullptr;
    if (!array->loaded) memory_->copy(array->copy, host, array->bytes);
    array->loaded = true;
    return reinterpret_cast<X*>(array->copy);
  }

  Memory* memory_;
  std::list<Array> arrays_;
};

}  // namespace moe::test
