// One kernel of every table that a program tests, beside the double reference, from the same
// numbers. check() makes the operands that operands.h lists and calls the kernel several times:
// with operands that may be null or share memory given in each way, at several places in memory,
// and with a NaN or an infinity in each operand. Whatever it is called with, it
//   * gives what the reference gives, NaN and infinity included;
//   * writes all of its outputs and nothing beside them, leaves its inputs as they are, and does
//     not use what lies beside them;
//   * gives the same bits in each run, and wherever its operands lie.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>

#include "tests/kernels/compare.h"
#include "tests/kernels/operands.h"
#include "tests/kernels/tested_tables.h"

namespace moe::test {

/// The numbers of an operand: those in [middle - range, middle + range).
struct Numbers {
  double range = 1, middle = 0;
};
/// Scores, and what else is positive.
constexpr Numbers kPositive = {0.5, 0.5};

struct How {
  /// The largest |got - want| / (1 + |want|) of a float; see worst_error().
  double tolerance;
  std::map<size_t, Numbers> numbers = {};  // of operands, by their number, if not [-1, 1)
  /// Whether a NaN or an infinity among the operands comes out where the reference has it.
  bool nan = true, infinity = true;
  /// Whether results have the same bits wherever operands lie.
  bool same_bits = true;
  /// Of results, by their number, that have another tolerance: sums beside numbers that are none.
  std::map<size_t, double> sums = {};
};

/// Memory of Copies (operands.h) whose arrays lie `shift` elements behind a multiple of 64 bytes,
/// between bytes that nobody may write.
class GuardedMemory {
 public:
  explicit GuardedMemory(int64_t shift) : shift_(shift) {}
  char* make(const void*, int64_t bytes, int64_t element) {
    std::vector<char>& all = all_.emplace_back(static_cast<size_t>(bytes + 4 * kGuard), '\xff');
    const auto to_multiple = -static_cast<int64_t>(reinterpret_cast<uintptr_t>(all.data()));
    return all.data() + kGuard + (to_multiple & (kAlign - 1)) + shift_ * element;
  }
  void copy(void* to, const void* from, int64_t bytes) {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  template <class Array>
  bool intact(const std::list<Array>& arrays) const {
    auto memory = all_.begin();
    for (const Array& a : arrays) {
      const std::vector<char>& all = *memory++;
      const auto untouched = [](char c) { return c == '\xff'; };
      const char* const end = all.data() + all.size();
      if (!std::all_of(all.data(), static_cast<const char*>(a.copy), untouched) ||
          !std::all_of(static_cast<const char*>(a.copy) + a.bytes, end, untouched))
        return false;
    }
    return true;
  }

 private:
  static constexpr int64_t kGuard = 128, kAlign = 64;
  int64_t shift_;
  std::list<std::vector<char>> all_;
};
/// A place (operands.h) for one call.
class Guarded : public Copies<GuardedMemory> {
 public:
  explicit Guarded(int64_t shift) : Copies(memory_), memory_(shift) {}
  /// Takes the results to the host if the call was right.
  void end() {
    INFO("what lies beside an operand was written");
    CHECK(memory_.intact(arrays()));
    for (const Array& a : arrays())
      if (!a.written && a.bytes > 0) {
        INFO("an operand that is only read was written");
        CHECK(std::memcmp(a.host, a.copy, static_cast<size_t>(a.bytes)) == 0);
      }
    take_back();
  }

 private:
  GuardedMemory memory_;
};

/// How the kernel is called.
struct Variant {
  bool nulls = false;        // what may be null is
  bool in_output = false;    // operands in the place of an output:
  bool accumulates = false;  //   those that are added to it, or those that are computed
  int64_t shift = 0;         // elements from a multiple of 64 bytes
  size_t with_bad = 1000;    // the operand with a `bad` number,
  bool at_end = false;       //   its last or one in its first half
  double bad = 0;
  unsigned wide = 0;  // bit i: operand i, an EitherIn or EitherOut, is float32
};

/// One result, as float and as it is stored.
struct Output {
  std::vector<double> values;
  std::vector<char> bytes;
  bool narrow = false;  // stored as bfloat16
};

/// What there is to know of the operands before a call.
using OperandList = std::vector<Operand>;
inline Operand whole(const Operand& o) {
  return o;
}
inline Operand whole(const Summands& s) {
  return s.count * s.n;
}

/// The host's arrays of one call.
class HostArrays {
 public:
  HostArrays(const OperandList& list, const std::vector<std::vector<double>>& numbers,
             const Variant& variant)
      : list_(list), numbers_(numbers), variant_(variant), pointers_(list.size()) {}

  template <class A>
  A make(size_t number) {
    if constexpr (std::is_same_v<A, kernels::EitherIn> || std::is_same_v<A, kernels::EitherOut>) {
      if ((variant_.wide >> number & 1) != 0) return A(array<float>(number, is_out<A>()));
      return A(array<kernels::Bf16>(number, is_out<A>()));
    } else {
      using X = std::remove_pointer_t<A>;
      if constexpr (std::is_pointer_v<std::remove_const_t<X>>) {
        using Element = std::remove_const_t<std::remove_pointer_t<X>>;
        const Element* const first = array<Element>(number, false);
        summands_.clear();
        // The summands follow one another.
        for (int64_t i = 0; i < num_summands; ++i)
          summands_.push_back(first + i * (list_[number].end / num_summands));
        return reinterpret_cast<A>(summands_.data());
      } else {
        using Element = std::conditional_t<std::is_void_v<X>, char, std::remove_const_t<X>>;
        return array<Element>(number, !std::is_const_v<X>);
      }
    }
  }
  std::vector<Output> outputs() const {
    std::vector<Output> all;
    for (const auto& read : outputs_) all.push_back(read());
    return all;
  }
  int64_t num_summands = 1;

 private:
  template <class A>
  static constexpr bool is_out() {
    return std::is_same_v<A, kernels::EitherOut>;
  }
  template <class X>
  static X converted(double v) {
    if constexpr (std::is_same_v<X, kernels::Bf16>) {
      return kernels::to_bf16(static_cast<float>(v));
    } else if constexpr (std::is_same_v<X, char>) {
      return static_cast<char>(100 * v);
    } else {
      return static_cast<X>(v);
    }
  }
  bool is_in_output(size_t number) const {
    const Operand& o = list_[number];
    return variant_.in_output && o.may_be >= 0 && o.accumulates == variant_.accumulates;
  }
  template <class X>
  X* array(size_t number, bool output) {
    const Operand& o = list_[number];
    if (is_in_output(number)) return static_cast<X*>(pointers_[static_cast<size_t>(o.may_be)]);
    if ((variant_.nulls && o.may_be_null) || o.end == 0) return nullptr;
    const auto values = std::make_shared<std::vector<X>>(static_cast<size_t>(o.end));
    size_t from = output && !o.both ? list_.size() : number;
    for (size_t i = 0; i < list_.size(); ++i)
      if (is_in_output(i) && list_[i].may_be == static_cast<int>(number)) from = i;
    if (from < list_.size())
      std::transform(numbers_[from].begin(), numbers_[from].end(), values->begin(), converted<X>);
    if (output) outputs_.push_back([values] { return read(*values); });
    arrays_.push_back(values);
    pointers_[number] = values->data();
    return values->data();
  }
  template <class X>
  static Output read(const std::vector<X>& all) {
    Output out;
    out.values.resize(all.size());
    double* value = out.values.data();
    for (const X v : all) {
      if constexpr (std::is_same_v<X, kernels::Bf16>) {
        *value++ = to_float(v);
      } else {
        *value++ = static_cast<double>(v);
      }
    }
    const auto* const bytes = reinterpret_cast<const char*>(all.data());
    out.bytes.assign(bytes, bytes + all.size() * sizeof(X));
    out.narrow = std::is_same_v<X, kernels::Bf16>;
    return out;
  }

  const OperandList& list_;
  const std::vector<std::vector<double>>& numbers_;
  const Variant& variant_;
  std::vector<void*> pointers_;
  std::vector<std::shared_ptr<void>> arrays_;
  std::vector<const void*> summands_;
  std::vector<std::function<Output()>> outputs_;
};

template <class Function>
struct ArgumentsOf;
template <class... A>
struct ArgumentsOf<void (*)(A...)> {
  using All = decltype(without_stream(std::declval<std::decay_t<A>>()...));
};
template <class T, size_t i>
using ArgumentsAt = typename ArgumentsOf<typename KernelAt<T, i>::Function>::All;

/// Arguments among the first of All that are given to check(): maps, and those that are no
/// operands.
template <class... A, size_t... i>
constexpr size_t given_among(const std::tuple<A...>*, std::index_sequence<i...>) {
  using All = std::tuple<A...>;
  return (
      size_t{0} + ... +
      size_t{!kIsOperand<std::tuple_element_t<i, All>> || kIsMap<std::tuple_element_t<i, All>>});
}

/// Calls kernel number i of the table.
template <class T, size_t i, class Given>
std::vector<Output> run(const kernels::KernelTable<T>& table, HostArrays host, int64_t shift,
                        const Given& given) {
  using All = ArgumentsAt<T, i>;
  const auto argument = [&]<size_t j>() {
    using A = std::tuple_element_t<j, All>;
    constexpr All* kAll = nullptr;
    constexpr size_t from_given = given_among(kAll, std::make_index_sequence<j>());
    if constexpr (kIsOperand<A> && !kIsMap<A>) {
      return host.template make<A>(operands_among(kAll, std::make_index_sequence<j>()));
    } else {
      return static_cast<A>(std::get<from_given>(given));
    }
  };
  const auto arguments = [&]<size_t... j>(std::index_sequence<j...>) {
    return All{argument.template operator()<j>()...};
  }
  (std::make_index_sequence<std::tuple_size_v<All>>());
  Guarded place(shift);
  call_placed<typename KernelAt<T, i>::Extents>(table.*KernelAt<T, i>::kMember, place, arguments,
                                                nullptr);
  place.end();
  return host.outputs();
}

inline void compare(const std::vector<Output>& got, const std::vector<Output>& want,
                    const How& how) {
  REQUIRE(got.size() == want.size());
  for (size_t o = 0; o < got.size(); ++o) {
    INFO("result " << o);
    const double tolerance = how.sums.contains(o) ? how.sums.at(o) : how.tolerance;
    const std::vector<float> values(got[o].values.begin(), got[o].values.end());
    CHECK(worst_error(values, want[o].values, got[o].narrow ? kBf16Rounding : 0) <= tolerance);
    // Where all cancels, 0.01 is what is rounded.
    CHECK(relative_l2(values, want[o].values, 0.01) <=
          (got[o].narrow ? kMaxRelativeL2Bf16 : kMaxRelativeL2));
  }
}
inline void same_bits(const std::vector<Output>& got, const std::vector<Output>& want) {
  REQUIRE(got.size() == want.size());
  for (size_t o = 0; o < got.size(); ++o) {
    INFO("result " << o << " has the same bits in each run and at each place");
    const bool same = got[o].bytes == want[o].bytes;
    CHECK(same);  // the bytes themselves say nothing
  }
}

/// All ways to give operands that may be null or share memory.
inline std::vector<Variant> variants_of(const OperandList& list) {
  std::vector<Variant> all = {{}};
  const auto any = [&](auto has) { return std::any_of(list.begin(), list.end(), has); };
  if (any([](const Operand& o) { return o.may_be_null; }))
    all.push_back({.nulls = true, .shift = 1});
  for (const bool accumulates : {false, true})
    if (any([=](const Operand& o) { return o.may_be >= 0 && o.accumulates == accumulates; }))
      all.push_back({.in_output = true, .accumulates = accumulates, .shift = accumulates ? 0 : 3});
  return all;
}

/// The numbers as T stores them, in the place of operand i of kernel number k.
template <class T, class A>
void store_as(std::vector<double>& numbers, bool wide) {
  const bool narrow =
      std::is_same_v<T, kernels::Bf16> &&
      (std::is_same_v<std::decay_t<std::remove_pointer_t<A>>, kernels::Bf16> ||
       std::is_same_v<A, kernels::EitherIn> || (std::is_same_v<A, kernels::EitherOut> && !wide) ||
       std::is_same_v<A, const kernels::Bf16* const*>);
  if (!narrow) return;
  for (double& v : numbers) v = to_float(kernels::to_bf16(static_cast<float>(v)));
}
template <class T, size_t i>
std::vector<std::vector<double>> stored(std::vector<std::vector<double>> numbers,
                                        const Variant& v) {
  using All = ArgumentsAt<T, i>;
  [&]<size_t... j>(std::index_sequence<j...>) {
    const auto one = [&]<size_t at>() {
      using A = std::tuple_element_t<at, All>;
      constexpr size_t number =
          operands_among(static_cast<All*>(nullptr), std::make_index_sequence<at>());
      if constexpr (kIsOperand<A>) store_as<T, A>(numbers[number], (v.wide >> number & 1) != 0);
    };
    (one.template operator()<j>(), ...);
  }
  (std::make_index_sequence<std::tuple_size_v<All>>());
  return numbers;
}

inline void put_bad(std::vector<std::vector<double>>& numbers, const Variant& v) {
  if (v.with_bad >= numbers.size()) return;
  std::vector<double>& operand = numbers[v.with_bad];
  operand[v.at_end ? operand.size() - 1 : operand.size() / 3] = v.bad;
}

/// Kernel number i of one table.
template <class T, size_t i, class Given>
void conforms(const kernels::KernelTable<T>& table, const How& how, const OperandList& list,
              const std::vector<std::vector<double>>& numbers, int64_t summands,
              const Given& given) {
  using Function = typename KernelAt<T, i>::Function;
  INFO(table.name);
  REQUIRE(table.*KernelAt<T, i>::kMember != nullptr);
  const TestedTables& tables = tested_tables();
  int64_t elements = 0;
  for (const Operand& o : list) elements += o.end;

  const auto want_of = [&](const Variant& v) {
    auto rounded = stored<T, i>(numbers, v);
    put_bad(rounded, v);
    HostArrays host(list, rounded, v);
    host.num_summands = summands;
    return run<double, i>(kernels::reference_table(), host, 0, given);
  };
  const auto got_of = [&](const Variant& v, uint64_t number) {
    tables.begin_run(number);
    auto all = numbers;
    put_bad(all, v);
    HostArrays host(list, all, v);
    host.num_summands = summands;
    auto got = run<T, i>(table, host, v.shift, given);
    REQUIRE(tables.error() == "");
    return got;
  };
  const auto check_one = [&](const Variant& v) {
    INFO("nulls " << v.nulls << ", in an output " << v.in_output << " (added " << v.accumulates
                  << "), shift " << v.shift << ", float32 operands " << v.wide);
    const auto got = got_of(v, 0);
    compare(got, want_of(v), how);
    return got;
  };

  const std::vector<Variant> variants = variants_of(list);
  std::vector<Output> first;
  for (size_t n = 0; n < variants.size(); ++n) {
    auto got = check_one(variants[n]);
    if (n == 0) first = std::move(got);
  }
  for (uint64_t number = 1; number < tables.runs; ++number) same_bits(got_of({}, number), first);
  constexpr int64_t kFew = 1000;  // so few elements that all can be tried
  for (int64_t shift = 1; shift < 9 && how.same_bits; shift += elements < kFew ? 1 : 6) {
    INFO("shift " << shift);
    same_bits(got_of({.shift = shift}, 0), first);
  }
  for (size_t o = 0; o < list.size() && elements < kFew; ++o) {
    if (numbers[o].empty()) continue;
    for (const double bad : {double{NAN}, double{INFINITY}, -double{INFINITY}})
      for (const bool at_end : {false, true}) {
        if (!(std::isnan(bad) ? how.nan : how.infinity)) continue;
        INFO(bad << " in operand " << o);
        check_one({.with_bad = o, .at_end = at_end, .bad = bad});
      }
  }
  if constexpr (std::is_same_v<Function, decltype(kernels::KernelTable<kernels::Bf16>::gemm)>)
    for (unsigned wide = 1; wide < 8; ++wide) {
      check_one({.shift = wide % 2, .wide = wide});
      if (!numbers[0].empty()) check_one({.with_bad = 0, .bad = NAN, .wide = wide});
      if (!numbers[1].empty()) check_one({.with_bad = 1, .bad = INFINITY, .wide = wide});
    }
}

template <class V>
const V& as_argument(const V& v) {
  return v;
}
template <class V>
const V* as_argument(const std::vector<V>& v) {
  return v.data();
}

/// The kernel with this member of KernelTable<double>, in all tested tables. `given`: its arguments
/// that are no operands, and index maps as vectors, in the order of the arguments.
template <auto kMember, class... G>
void check(const How& how, const G&... given) {
  constexpr size_t i = kIndexOf<double, kMember>;
  using All = ArgumentsAt<double, i>;
  using Function = typename KernelAt<kernels::Bf16, i>::Function;
  const auto arguments = std::make_tuple(as_argument(given)...);
  INFO(kernel_name<kMember>(kernels_of<double>()));

  const auto extents = std::apply(typename KernelAt<double, i>::Extents(), arguments);
  OperandList list;
  int64_t summands = 1;
  std::vector<std::vector<double>> numbers;
  const auto add = [&](const auto& extent) {
    if constexpr (std::is_same_v<std::decay_t<decltype(extent)>, Summands>) summands = extent.count;
    const size_t number = list.size();
    list.push_back(whole(extent));
    const Numbers from = how.numbers.contains(number) ? how.numbers.at(number) : Numbers();
    std::vector<double>& all = numbers.emplace_back();
    for (const double v : random_values<double>(list.back().end, number + 1, 1))
      all.push_back(static_cast<float>(from.middle + from.range * v));
  };
  std::apply([&](const auto&... each) { (add(each), ...); }, extents);
  // Maps are given; what is written whole has no numbers before.
  [&]<size_t... j>(std::index_sequence<j...>) {
    const auto one = [&]<size_t at>() {
      using A = std::tuple_element_t<at, All>;
      constexpr size_t number =
          operands_among(static_cast<All*>(nullptr), std::make_index_sequence<at>());
      if constexpr (kIsMap<A>) numbers[number].clear();
      if constexpr (std::is_pointer_v<A> && !std::is_const_v<std::remove_pointer_t<A>>)
        if (!list[number].both) numbers[number].clear();
    };
    (one.template operator()<j>(), ...);
  }
  (std::make_index_sequence<std::tuple_size_v<All>>());

  for (const auto* const table : tested_tables().floats)
    conforms<float, i>(*table, how, list, numbers, summands, arguments);
  // What has the same type in both takes Wide<T> alone.
  if constexpr (!std::is_same_v<Function, typename KernelAt<float, i>::Function>)
    for (const auto* const table : tested_tables().mixed)
      conforms<kernels::Bf16, i>(*table, how, list, numbers, summands, arguments);
}

}  // namespace moe::test
