// What a field of a struct is: its name in recipes and results, its member, its unit, the values
// that are allowed, and its meaning. The table of a struct's fields is next to the struct:
//   struct LinkSpec { double bytes_per_s = 0; Nanoseconds latency_ns = 0; };
//   constexpr auto fields_of(const LinkSpec*) {
//     return field_table<LinkSpec>(
//         field("bytes_per_s", &LinkSpec::bytes_per_s, "one way").from(1e-9, 1e18),
//         field("latency_us", &LinkSpec::latency_ns, "one traversal").in(kMicroseconds));
//   }
//
// Checks, conversions from and to Lua, results.json, `moebench list`, type stubs and messages
// between processes walk the table. A struct member without a row in its table does not compile.
// The default of a field is its value in a default-constructed struct. JSON and Lua:
// bindings/host/field_json.h.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/base/units.h"

namespace moe {

/// Nanoseconds per microsecond and millisecond, the units of times in recipes and results.
constexpr double kMicroseconds = 1e3, kMilliseconds = 1e6;

/// A member that has a name in recipes or results. `unit`: how many units of the member make one
/// unit of the written value (1000 for a member in ns that is written in us). check_fields()
/// refuses a written value outside [lo, hi], except the default. `first`: the written number for a
/// member of 0; 1 for ids, which count from 1 in Lua. A uint64_t is written as 16 hexadecimal
/// digits.
template <class S, class M>
struct Field {
  const char* name;
  M S::*member;
  const char* doc;
  double unit = 1;
  double lo = -std::numeric_limits<double>::infinity();
  double hi = std::numeric_limits<double>::infinity();
  bool required = false;
  int64_t first = 0;

  constexpr Field in(double of_unit) const {
    Field copy = *this;
    copy.unit = of_unit;
    return copy;
  }
  constexpr Field from(double least, double most) const {
    Field copy = *this;
    copy.lo = least;
    copy.hi = most;
    return copy;
  }
  constexpr Field counted_from_one() const {
    Field copy = *this;
    copy.first = 1;
    return copy;
  }
  /// Marks the field as required: a recipe must give a value.
  constexpr Field must() const {
    Field copy = *this;
    copy.required = true;
    return copy;
  }
};

/// A member that is itself a struct with fields; these appear among the fields of the outer struct.
/// "{}" in their names is replaced by `as`.
template <class S, class M>
struct Inlined {
  const char* as;
  M S::*member;
};

/// A member that is sent between processes but has no name in recipes or results.
template <class S, class M>
struct Carried {
  M S::*member;
};

/// A member that is neither sent between processes nor named, with the reason in `why`.
template <class S, class M>
struct Internal {
  M S::*member;
  const char* why;
};

/// A number that results show and that is computed from members by `value`.
template <class S>
struct Derived {
  const char* name;
  const char* doc;
  double (S::*value)() const;
};

template <class S, class M>
constexpr Field<S, M> field(const char* name, M S::*member, const char* doc = "") {
  return {name, member, doc};
}
template <class S, class M>
constexpr Inlined<S, M> inlined(const char* as, M S::*member) {
  return {as, member};
}
template <class S, class M>
constexpr Carried<S, M> carried(M S::*member) {
  return {member};
}
template <class S, class M>
constexpr Internal<S, M> internal(M S::*member, const char* why) {
  return {member, why};
}
template <class S>
constexpr Derived<S> derived(const char* name, double (S::*value)() const, const char* doc) {
  return {name, doc, value};
}

namespace field_detail {

struct AnyMember {
  template <class T>
  operator T() const;
};
template <class S, size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  return requires {
    S{(static_cast<void>(I), AnyMember{})...};
  };
}
/// Returns the number of members of S, which is in [kLow, kHigh); 0 stands for no upper bound.
template <class S, size_t kLow = 0, size_t kHigh = 0>
constexpr size_t num_members() {
  constexpr size_t kTry = kHigh == 0 ? 2 * kLow + 1 : (kLow + kHigh) / 2;
  if constexpr (kTry == kLow) {
    return kLow;
  } else if constexpr (takes<S>(std::make_index_sequence<kTry>{})) {
    return num_members<S, kTry, kHigh>();
  } else {
    return num_members<S, kLow, kTry>();
  }
}

template <class A, class B>
constexpr bool same_member(const A& a, const B& b) {
  if constexpr (requires { a.member == b.member; }) return a.member == b.member;
  return false;
}

}  // namespace field_detail

/// Returns the table of fields of S: a function that calls f(row) for each row.
template <class S, class... Rows>
constexpr auto field_table(Rows... rows) {
  // Not a std::tuple, whose instantiation takes a quarter of a whole build's time.
  return [=](auto&& f) { (f(rows), ...); };
}

template <class S>
concept HasFields = requires {
  fields_of(static_cast<const S*>(nullptr));
};

/// Returns the table of a struct whose members are all sent between processes and have no names.
template <class S, class... M>
constexpr auto carried_table(M S::*... members) {
  return field_table<S>(Carried<S, M>{members}...);
}

namespace field_detail {

template <HasFields S>
constexpr size_t num_rows_of_members() {
  size_t rows = 0;
  fields_of(static_cast<const S*>(nullptr))([&](const auto& row) {
    if constexpr (requires { row.member; }) ++rows;
  });
  return rows;
}

}  // namespace field_detail

/// Calls f(row) for each row of the table of S; an inlined struct is one row. A member of S without
/// a row is an error at compile time.
template <HasFields S, class F>
constexpr void for_each_row(F&& f) {
  static_assert(
      field_detail::num_rows_of_members<S>() == field_detail::num_members<S>(),
      "a member of the struct has no row in its table of fields, or the table has too many rows");
  fields_of(static_cast<const S*>(nullptr))(f);
}

/// Returns whether no member of S has two rows in its table; a test checks this for every table.
template <HasFields S>
constexpr bool rows_differ() {
  bool differ = true;
  size_t i = 0;
  for_each_row<S>([&](const auto& a) {
    size_t j = 0;
    for_each_row<S>([&](const auto& b) {
      if (i != j++ && field_detail::same_member(a, b)) differ = false;
    });
    ++i;
  });
  return differ;
}

/// Returns `pattern` with `as` in place of "{}".
std::string inlined_name(std::string_view pattern, std::string_view as);

/// Calls visit(name, row, value) for each named member of `object`, including the named members of
/// inlined structs, and visit(name, row, number) for each Derived number. `row` is the entry of the
/// member or number in the table of fields. S may be const.
template <class S, class Visit>
void for_each_field(S& object, Visit&& visit, std::string_view as = "") {
  using Struct = std::remove_const_t<S>;
  for_each_row<Struct>([&]<class Row>(const Row& row) {
    if constexpr (requires { row.as; }) {
      for_each_field(object.*row.member, visit, row.as);
    } else if constexpr (requires {
                           row.name;
                           row.member;
                         }) {
      visit(inlined_name(row.name, as), row, object.*row.member);
    } else if constexpr (requires { row.name; }) {
      const double value = (object.*row.value)();
      visit(inlined_name(row.name, as), row, value);
    }
  });
}

/// Calls visit(member) for each member of `object` that is sent between processes.
template <class S, class Visit>
void for_each_carried(S& object, Visit&& visit) {
  for_each_row<std::remove_const_t<S>>([&](const auto& row) {
    if constexpr (
        requires { row.member; } && !requires { row.why; })
      visit(object.*row.member);
  });
}

/// Throws UserError "<path>.<field> = <value>: must be from <lo> to <hi>" for a number in `object`
/// outside the range in its table, except the default. Also checks members that have fields.
template <HasFields S>
void check_fields(const S& object, const std::string& path) {
  const S usual{};
  for_each_field(object, [&]<class Row, class M>(const std::string& name, const Row& row,
                                                 const M& value) {
    if constexpr (HasFields<M>) {
      check_fields(value, path + "." + name);
    } else if constexpr (std::is_arithmetic_v<M> && !std::is_same_v<M, bool>) {
      if constexpr (requires { usual.*row.member == value; }) {
        if (usual.*row.member == value) return;
      }
      if constexpr (requires { row.lo; }) {
        const double written = static_cast<double>(value) / row.unit;
        if (written >= row.lo && written <= row.hi && std::isfinite(written)) return;
        throw user_error("{}.{} = {}: must be from {} to {}", path, name, written, row.lo, row.hi);
      }
    }
  });
}

}  // namespace moe
