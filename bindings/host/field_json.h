// Tables of fields (engine/base/field.h) at the border to Lua: describes for the Lua library which
// fields exist (fields_json), reads structs from values (read_fields), and converts structs to
// values (values_json). Not here: the checks of recipes, which scripts/moe/base/schema.lua makes
// from fields_json() before anything is read.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bindings/host/convert.h"
#include "engine/base/field.h"

namespace moe::lua {

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

/// Returns a member's value in the form that results have. row: the member's row in the table of
/// its struct; in a list, the row's `unit` and `first` (engine/base/field.h) apply to every number.
template <class Row, class M>
nlohmann::json value_json(const Row& row, const M& value);

/// Returns the fields of a struct in the form that Lua tables and results.json have.
template <HasFields S>
nlohmann::json values_json(const S& object) {
  nlohmann::json all = nlohmann::json::object();
  for_each_field(object, [&](const std::string& name, const auto& row, const auto& value) {
    all[name] = value_json(row, value);
  });
  return all;
}

template <class Row, class M>
nlohmann::json value_json(const Row& row, const M& value) {
  if constexpr (HasFields<M>) {
    return values_json(value);
  } else if constexpr (HasNames<M>) {
    return name_of(value);
  } else if constexpr (IsVector<M>::value) {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& one : value) list.push_back(value_json(row, one));
    return list;
  } else if constexpr (std::is_same_v<M, uint64_t>) {
    return fmt::format("{:016x}", value);
  } else if constexpr (std::is_integral_v<M> && !std::is_same_v<M, bool>) {
    if (row.unit != 1) return static_cast<double>(value) / row.unit;
    return value + row.first;
  } else {
    return value;
  }
}

/// Reads the member of a row; `into` does not change if the field is missing and not required.
template <class Row, class M>
void read_field(const Fields& from, const Row& row, M& into) {
  if (!row.required && !from.has(row.name)) return;
  if constexpr (HasFields<M>) {
    read_fields(from.at(row.name), into);
  } else if constexpr (IsVector<M>::value) {
    for (const nlohmann::json& one : from.value().at(row.name)) {
      read_fields(Fields(one, row.name), into.emplace_back());
    }
  } else if constexpr (HasNames<M>) {
    into = value_named<M>(row.name, from.text(row.name));
  } else if constexpr (std::is_same_v<M, bool>) {
    into = from.flag(row.name, into);
  } else if constexpr (std::is_same_v<M, std::string>) {
    into = from.text(row.name);
  } else if constexpr (std::is_floating_point_v<M>) {
    into = from.number(row.name) * row.unit;
  } else if (row.unit != 1) {
    into = from.time(row.name, row.unit);
  } else {
    into = static_cast<M>(from.number(row.name)) - static_cast<M>(row.first);
  }
}

/// Reads those fields of a struct that `from` has. Throws UserError naming a field with a wrong
/// value, or a required field that is missing.
template <HasFields S>
void read_fields(const Fields& from, S& into) {
  for_each_row<S>([&]<class Row>(const Row& row) {
    if constexpr (requires { row.as; }) {
      read_fields(from, into.*row.member);
    } else if constexpr (requires {
                           row.doc;
                           row.member;
                         }) {
      read_field(from, row, into.*row.member);
    }
  });
}

/// Describes the fields of a struct that may be written: a list of { name, type, doc, lo, hi,
/// default, required, enum, fields, of }, which schema.declared() of the Lua library reads.
template <HasFields S>
nlohmann::json fields_json();

/// Sets the entry `type` of a field's description and, depending on it, enum, fields, or for a list
/// `of`, the description of its entries.
template <class M>
void set_type(nlohmann::json& one, double unit) {
  if constexpr (HasFields<M>) {
    one["type"] = "table";
    one["fields"] = fields_json<M>();
  } else if constexpr (IsVector<M>::value) {
    one["type"] = "list";
    set_type<typename M::value_type>(one["of"], unit);
  } else if constexpr (HasNames<M>) {
    one["type"] = "string";
    one["enum"] = nlohmann::json::array();
    for (const std::string_view name : names_of(M{})) {
      if (!name.empty()) one["enum"].push_back(name);  // an empty name means "not given"
    }
  } else if constexpr (std::is_same_v<M, bool>) {
    one["type"] = "boolean";
  } else if constexpr (std::is_same_v<M, std::string> || std::is_same_v<M, uint64_t>) {
    one["type"] = "string";
  } else if constexpr (std::is_arithmetic_v<M>) {
    one["type"] = std::is_integral_v<M> && unit == 1 ? "integer" : "number";
  } else {
    one["type"] = "table";
  }
}

template <class Row, class M>
nlohmann::json field_json(const std::string& name, const Row& row, const M& usual) {
  nlohmann::json one = {{"name", name}, {"doc", row.doc}};
  if constexpr (requires { row.unit; }) {
    set_type<M>(one, row.unit);
    if (std::isfinite(row.lo)) one["lo"] = row.lo;
    if (std::isfinite(row.hi)) one["hi"] = row.hi;
    if (row.required) one["required"] = true;
    if constexpr (std::is_arithmetic_v<M> || HasNames<M> || std::is_same_v<M, std::string>) {
      const nlohmann::json written = value_json(row, usual);
      // A default that is out of range, or an empty string, means "not given" and is not shown.
      const bool refused = written.is_number() && !(written >= row.lo && written <= row.hi);
      if (!row.required && !refused && written != "") one["default"] = written;
    }
  } else {
    one["type"] = "number";
  }
  return one;
}

template <HasFields S>
nlohmann::json fields_json() {
  const S usual{};
  nlohmann::json all = nlohmann::json::array();
  for_each_field(usual, [&](const std::string& name, const auto& row, const auto& value) {
    all.push_back(field_json(name, row, value));
  });
  return all;
}

}  // namespace moe::lua
